"""What a user should know about a configuration that can run: options that rest, differ, or stand in for others."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path

from .checkpoint_contents import checkpoint_notices
from .engines import engine_notices
from .lora import lora_notices
from .resting import resting_notices
from .schema import EvaluationConfig, GenerationConfig, PPOConfig, SFTConfig
from .schema.base import Node
from .schema.reward import CustomRewardFunction

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"

# Settings of sharding: one process has nothing to shard.
SHARDING = (
    "fsdp_size",
    "reshard_after_forward",
    "forward_prefetch",
    "min_num_params",
    "transformer_layer_cls_to_wrap",
    "reduce_dtype",
)


def notices(config: Node, user_keys: Collection[str]) -> Iterator[str]:
    """One sentence each."""
    if isinstance(config, PPOConfig):
        yield from _algorithm(config)
        yield from _sampling(config)
        yield from _compile(config, user_keys)
    if isinstance(config, (PPOConfig, SFTConfig)):
        yield from checkpoint_notices(config)
        yield from lora_notices(config, user_keys)
    if isinstance(config, EvaluationConfig) and "data.prompt_key" in user_keys:
        yield "data.prompt_key is not read here: responses are scored without their prompts"
    if isinstance(config, (PPOConfig, EvaluationConfig)) and config.custom_reward_function.path is not None:
        yield from _own_scores(config.custom_reward_function, user_keys)
    if isinstance(config, (PPOConfig, GenerationConfig)):
        yield from engine_notices(config, user_keys, may_have_gpu=_may_have_gpu(config))
    if isinstance(config, (PPOConfig, SFTConfig, GenerationConfig)):
        yield from resting_notices(config, user_keys)
        yield from _sharding(config, user_keys)
        yield from _idle_ranks(config)
        yield from _attention(config, user_keys)


def _algorithm(config: PPOConfig) -> Iterator[str]:
    name, n, actor = config.algorithm.adv_estimator, config.actor_rollout_ref.rollout.n, config.actor_rollout_ref.actor
    if name == "grpo" and n == 1:
        yield f"{name} with {ROLLOUT}.n=1: a group of one has no baseline, its advantage is its reward"
    if name in ("opo", "gpg", "reinforce_plus_plus_baseline") and n == 1:
        yield f"{name} with {ROLLOUT}.n=1: every reward is its own baseline, so all advantages are 0"
    if actor.use_kl_loss and config.algorithm.use_kl_in_reward:
        yield f"the KL counts twice: {ACTOR}.use_kl_loss and algorithm.use_kl_in_reward are both on"
    if actor.use_kl_loss and actor.kl_loss_coef == 0:
        yield f"{ACTOR}.kl_loss_coef=0: the KL loss is measured and has no effect"
    algorithm = config.algorithm
    if algorithm.filter_groups.enable and config.reward_model.launch_reward_fn_async:
        yield "reward_model.launch_reward_fn_async rests: algorithm.filter_groups needs the scores while it samples"
    if algorithm.rollout_is and algorithm.rollout_is_threshold is None:
        yield "algorithm.rollout_is_threshold=null: the importance weights have no bound"


def _sampling(config: PPOConfig) -> Iterator[str]:
    rollout = config.actor_rollout_ref.rollout
    cuts = {"top_p": rollout.top_p < 1, "top_k": rollout.top_k > 0, "min_p": rollout.min_p > 0}
    if any(cuts.values()):
        cut = ", ".join(f"{name}={getattr(rollout, name):g}" for name, acts in cuts.items() if acts)
        yield f"{ROLLOUT}.{cut}: the sampler's support differs from the trainer's"
    if rollout.repetition_penalty != 1:
        penalty = f"{ROLLOUT}.repetition_penalty={rollout.repetition_penalty:g}"
        yield f"{penalty}: the sampler's distribution differs from the trainer's"
    if rollout.use_fire_sampling:
        yield (
            f"{ROLLOUT}.use_fire_sampling: first tokens are drawn at temperature {rollout.fire_temperature:g} and "
            f"trained on at {rollout.temperature:g}; training/rollout_probs_diff_* shows it, rollout_is corrects it"
        )
    val = rollout.val_kwargs
    if val.n > 1 and (not val.do_sample or val.temperature == 0):
        yield f"{ROLLOUT}.val_kwargs.n={val.n} without sampling: the responses of a prompt are all the same"
    if rollout.mode == "sync":
        yield f"{ROLLOUT}.mode=sync: trajectories are taken as they finish all the same, with the same result"
    if config.data.return_raw_chat:
        yield "data.return_raw_chat=True asks for what is always so: agents have a prompt's messages at hand"
    if config.data.val_files is None:
        yield "data.val_files=null: nothing is validated"
    if config.data.val_batch_size is not None:
        yield (
            f"data.val_batch_size={config.data.val_batch_size} is deprecated: null hands the whole set to the engine, "
            "with the same answers"
        )


def _sharding(config: PPOConfig | SFTConfig | GenerationConfig, user_keys: Collection[str]) -> Iterator[str]:
    sharding = sorted(key for key in user_keys if _rests_in_one_process(key))
    prefetching = sorted(key for key in user_keys if key.endswith("fsdp_config.forward_prefetch"))
    if config.ranks > 1 and prefetching:
        yield "fsdp2 gathers ahead by itself: only strategy=fsdp reads " + ", ".join(prefetching)
    if config.ranks == 1 and sharding:
        yield "one process has nothing to shard or to balance, so nothing is left to do for " + ", ".join(sharding)


def _rests_in_one_process(key: str) -> bool:
    of_ray = key.startswith("ray_init.") or key == "trainer.ray_wait_register_center_timeout"
    how = key == "model.strategy" or ("fsdp_config." in key and key.rsplit(".", 1)[-1] in SHARDING)
    return of_ray or how or key == "trainer.balance_batch"


def _idle_ranks(config: PPOConfig | SFTConfig | GenerationConfig) -> Iterator[str]:
    """PPO has a rule of its own, since its ranks also sample."""
    idle = f"leaves some of the {config.ranks} ranks without work"
    if isinstance(config, SFTConfig) and config.data.train_batch_size < config.ranks:
        yield f"data.train_batch_size={config.data.train_batch_size} {idle}"
    if isinstance(config, GenerationConfig) and config.data.batch_size is not None:
        together = config.data.batch_size * config.data.n_samples
        if together < config.ranks:
            yield f"data.batch_size * data.n_samples={together} {idle}"


def _compile(config: PPOConfig, user_keys: Collection[str]) -> Iterator[str]:
    key = f"{ACTOR}.use_torch_compile"
    if key in user_keys and config.actor_rollout_ref.actor.use_torch_compile and not _may_have_gpu(config):
        yield f"{key}=True acts on a GPU only: on a CPU, compiling costs minutes"


def _attention(config: PPOConfig | SFTConfig | GenerationConfig, user_keys: Collection[str]) -> Iterator[str]:
    model = config.actor_rollout_ref.model if isinstance(config, PPOConfig) else config.model
    wanted = model.override_config.attn_implementation
    if not any(key.endswith("attn_implementation") for key in user_keys):
        return
    if wanted == "flash_attention_2" and (find_spec("flash_attn") is None or not _may_have_gpu(config)):
        yield "flash_attention_2 is not available here; torch's exact attention is used, with the same result"


def _may_have_gpu(config: PPOConfig | SFTConfig | GenerationConfig) -> bool:
    """Looked up without torch, whose import takes seconds. What a cluster has is not known here."""
    device, elsewhere = config.trainer.device, config.ranks > 1 and config.ray_init.address is not None
    return device == "cuda" or (device == "auto" and (elsewhere or Path("/dev/nvidia0").exists()))


def _own_scores(own: CustomRewardFunction, user_keys: Collection[str]) -> Iterator[str]:
    """A path that comes from a preset of the user's is as good as one on the command line."""
    if "custom_reward_function.path" in user_keys:
        yield f"{own.name} of {own.path} scores the rows of every data source: hone's rules, and their checks, rest"

"""Rules that tie several keys together: batch sizes, estimators, sampling, token caps."""

from __future__ import annotations

from collections.abc import Iterator

from .check_batches import batch_problems
from .check_ranks import rank_problems
from .checkpoint_contents import checkpoint_problems
from .conversations import conversation_problems
from .engines import engine_problems
from .lora import lora_problems
from .problems import Problem
from .schema import EvaluationConfig, GenerationConfig, PPOConfig, SFTConfig
from .schema.actor import CustomFunction
from .schema.base import Node
from .schema.rollout import CustomServer

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
GROUP_METRICS = ("score", "seq_reward", "seq_final_reward")  # beside what a reward function returns


def cross_field_problems(config: Node) -> Iterator[Problem]:
    """Everything that is wrong between keys of one configuration."""
    if isinstance(config, PPOConfig):
        yield from batch_problems(config)
        yield from rank_problems(config)
        yield from _estimator(config)
        yield from _scores(config)
        yield from _own_functions(config)
        yield from _clip_ranges(config)
        yield from _sampling(config)
        yield from _token_caps(config)
        yield from _shared_prompts(config)
        yield from _corrections(config)
        yield from _validation(config)
    if isinstance(config, SFTConfig):
        yield from _sft_liger(config)
        yield from _sft_token_cap(config)
        yield from _sft_offload(config)
        yield from rank_problems(config)
    if isinstance(config, (PPOConfig, SFTConfig)):
        yield from _resume(config)
        yield from checkpoint_problems(config)
        yield from lora_problems(config)
    if isinstance(config, (PPOConfig, EvaluationConfig)):
        yield from _reward_function(config)
    if isinstance(config, (PPOConfig, GenerationConfig)):
        yield from engine_problems(config)
        yield from conversation_problems(config)
    yield from _sample_limits(config)


def _estimator(config: PPOConfig) -> Iterator[Problem]:
    name, n = config.algorithm.adv_estimator, config.actor_rollout_ref.rollout.n
    estimator = "algorithm.adv_estimator"
    if name in ("rloo", "grpo_passk") and n == 1:
        wrong = f"{estimator}={name} compares the responses of one prompt, and there is only one"
        yield Problem(f"{ROLLOUT}.n", wrong, "2 or more", f"set {ROLLOUT}.n=4, for example", (estimator,))
    if name == "gae" and config.critic.enable is False:
        wrong = "is false, but algorithm.adv_estimator=gae needs values"
        yield Problem("critic.enable", wrong, "null or true", "remove it, or choose another estimator", (estimator,))
    if name != "gae" and config.critic.enable:
        wrong = f"is true, but algorithm.adv_estimator={name} reads no values"
        yield Problem("critic.enable", wrong, "null or false", f"remove it, or set {estimator}=gae", (estimator,))
    if config.trainer.critic_warmup and not config.trains_critic:
        wrong = f"{config.trainer.critic_warmup} steps would train nothing: {estimator}={name} has no critic"
        yield Problem("trainer.critic_warmup", wrong, "0", f"remove it, or set {estimator}=gae", (estimator,))


def _scores(config: PPOConfig) -> Iterator[Problem]:
    buffer, key = config.reward_model.overlong_buffer, "reward_model.overlong_buffer.len"
    longest, limit = config.data.max_response_length, "data.max_response_length"
    if buffer.enable and not 0 < buffer.len <= longest:
        expected, fix = f"1 to {limit}={longest}", f"set {key}={max(longest // 4, 1)}, for example"
        yield Problem(key, f"{buffer.len} tokens are not the end of a response", expected, fix, (limit,))
    groups = config.algorithm.filter_groups
    if groups.enable and config.actor_rollout_ref.rollout.n == 1:
        wrong = "algorithm.filter_groups compares the responses of one prompt, and there is only one"
        switch = "algorithm.filter_groups.enable"
        yield Problem(f"{ROLLOUT}.n", wrong, "2 or more", f"set {ROLLOUT}.n=8, for example", (switch,))
    own = config.custom_reward_function.path
    if groups.enable and own is None and groups.metric not in GROUP_METRICS:
        key, other = "algorithm.filter_groups.metric", "custom_reward_function.path"
        wrong = f"{groups.metric} is nothing that the built-in reward functions return"
        expected = f"{' or '.join(GROUP_METRICS)}, or a key that a reward function of yours returns"
        yield Problem(key, wrong, expected, f"set {key}=score, or {other}", (other,))
    if groups.enable and groups.metric == "seq_final_reward" and config.algorithm.use_kl_in_reward:
        key, switch = "algorithm.filter_groups.metric", "algorithm.use_kl_in_reward"
        wrong = f"seq_final_reward holds the KL with {switch}, which is not known while groups are chosen"
        yield Problem(key, wrong, "seq_reward, score or a key of the reward function", f"set {key}=score", (switch,))


def _own_functions(config: PPOConfig) -> Iterator[Problem]:
    sections: dict[str, CustomFunction | CustomServer] = {
        "algorithm.custom_estimator": config.algorithm.custom_estimator,
        f"{ACTOR}.policy_loss.custom_loss": config.actor_rollout_ref.actor.policy_loss.custom_loss,
        f"{ROLLOUT}.agent.custom_async_server": config.actor_rollout_ref.rollout.agent.custom_async_server,
    }
    for section, named in sections.items():
        if (named.path is None) != (named.name is None):
            given, missing = ("path", "name") if named.name is None else ("name", "path")
            expected = "a name that the file defines" if missing == "name" else "a Python file"
            key, other = f"{section}.{missing}", f"{section}.{given}"
            yield Problem(key, f"is null, but {other} is set", expected, f"set {key}, or remove {other}", (other,))


def _reward_function(config: PPOConfig | EvaluationConfig) -> Iterator[Problem]:
    own = config.custom_reward_function
    if own.path is None and own.name != type(own).model_fields["name"].default:
        key, name = "custom_reward_function.path", "custom_reward_function.name"
        fix = f"set {key}, or remove {name}"
        yield Problem(key, f"is null, but {name}={own.name} is set", "a Python file", fix, (name,))


def _clip_ranges(config: PPOConfig) -> Iterator[Problem]:
    actor = config.actor_rollout_ref.actor
    if actor.loss_scale_factor is not None and actor.loss_agg_mode != "seq-mean-token-sum-norm":
        key, mode = f"{ACTOR}.loss_scale_factor", f"{ACTOR}.loss_agg_mode"
        wrong = f"is {actor.loss_scale_factor}, but {mode}={actor.loss_agg_mode} does not read it"
        yield Problem(key, wrong, "null", f"remove it, or set {mode}=seq-mean-token-sum-norm", (mode,))
    loss = actor.policy_loss
    if loss.clip_cov_lb >= loss.clip_cov_ub:
        key, other = f"{ACTOR}.policy_loss.clip_cov_lb", f"{ACTOR}.policy_loss.clip_cov_ub"
        wrong = f"{loss.clip_cov_lb:g} is not below {other}={loss.clip_cov_ub:g}"
        yield Problem(key, wrong, "clip_cov_lb < clip_cov_ub", "change one of them", (other,))


def _sampling(config: PPOConfig) -> Iterator[Problem]:
    rollout = config.actor_rollout_ref.rollout
    if rollout.max_model_len is not None and rollout.max_model_len < rollout.prompt_length + rollout.response_length:
        wrong = f"{rollout.max_model_len} is too short for prompt_length + response_length"
        least = rollout.prompt_length + rollout.response_length
        yield Problem(f"{ROLLOUT}.max_model_len", wrong, f"{least} or more, or null", "remove it")
    for name, data_key in (("prompt_length", "max_prompt_length"), ("response_length", "max_response_length")):
        length, longest = getattr(rollout, name), getattr(config.data, data_key)
        if length != longest:
            wrong = f"{length} differs from data.{data_key}={longest}"
            yield Problem(f"{ROLLOUT}.{name}", wrong, "the same length", f"set data.{data_key} only")
    if config.trainer.val_only:
        return
    fix = "validation has its own val_kwargs; set trainer.val_only=True to validate only"
    if rollout.temperature == 0:
        wrong = "0 takes the most likely token each time, so nothing is explored"
        yield Problem(f"{ROLLOUT}.temperature", wrong, "a number > 0 in training", fix)
    if not rollout.do_sample:
        wrong = "false takes the most likely token each time, so nothing is explored"
        yield Problem(f"{ROLLOUT}.do_sample", wrong, "true in training", fix)


def _token_caps(config: PPOConfig) -> Iterator[Problem]:
    """With dynamic batching a micro-batch must hold at least one trajectory."""
    role, critic = config.actor_rollout_ref, config.critic
    of_actor = role.actor.ulysses_sequence_parallel_size
    caps = [
        (
            role.actor.use_dynamic_bsz,
            f"{ACTOR}.ppo_max_token_len_per_gpu",
            role.actor.ppo_max_token_len_per_gpu,
            of_actor,
        ),
        (
            role.rollout.log_prob_use_dynamic_bsz,
            f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
            role.rollout.log_prob_max_token_len_per_gpu,
            of_actor,
        ),
    ]
    if config.needs_reference:
        key, shared_by = f"{REF}.log_prob_max_token_len_per_gpu", role.ref.ulysses_sequence_parallel_size
        caps.append((role.ref.log_prob_use_dynamic_bsz, key, role.ref.log_prob_max_token_len_per_gpu, shared_by))
    if config.trains_critic:
        for name in ("ppo_max_token_len_per_gpu", "forward_max_token_len_per_gpu"):
            shared_by = critic.ulysses_sequence_parallel_size
            caps.append((critic.use_dynamic_bsz, f"critic.{name}", getattr(critic, name), shared_by))
    longest = config.data.max_prompt_length + config.data.max_response_length
    for dynamic, key, cap, shared_by in caps:
        if dynamic and cap * shared_by < longest:
            yield _small_cap(key, cap, longest, "data.max_prompt_length + data.max_response_length", shared_by)


def _small_cap(key: str, cap: int, longest: int, formula: str, shared_by: int = 1) -> Problem:
    """`shared_by` ranks hold a trajectory together, each up to the cap."""
    of_ranks = f" of each of {shared_by} ranks" if shared_by > 1 else ""
    wrong = f"{cap} tokens{of_ranks} cannot hold one trajectory of {formula} = {longest}"
    least = -(-longest // shared_by)
    return Problem(key, wrong, f"{least} or more", f"set {key}={least}", tuple(formula.split(" + ")))


def _shared_prompts(config: PPOConfig) -> Iterator[Problem]:
    role = config.actor_rollout_ref
    if role.actor.use_prefix_grouper and not role.model.use_remove_padding:
        key, packing = f"{ACTOR}.use_prefix_grouper", "actor_rollout_ref.model.use_remove_padding"
        wrong = f"is true, but with {packing}=False every response is padded behind its own prompt"
        yield Problem(key, wrong, "packed sequences", f"set {packing}=True", (packing,))


def _corrections(config: PPOConfig) -> Iterator[Problem]:
    algorithm = config.algorithm
    lower, upper = algorithm.rollout_is_threshold_lower, algorithm.rollout_is_threshold
    key, other = "algorithm.rollout_is_threshold_lower", "algorithm.rollout_is_threshold"
    if lower is not None and upper is not None and lower >= upper:
        yield Problem(key, f"{lower:g} is not below {other}={upper:g}", "lower < upper", "change one of them", (other,))
    weightless = algorithm.rollout_is and not algorithm.rollout_is_weights
    if weightless and algorithm.rollout_is_mode != "mask" and algorithm.rollout_is_veto_threshold is None:
        key, mode = "algorithm.rollout_is_weights", "algorithm.rollout_is_mode"
        wrong = f"is false, and {mode}={algorithm.rollout_is_mode} without a veto drops nothing: it is empty"
        yield Problem(key, wrong, "true, or something that is dropped", f"set {mode}=mask, or remove {key}", (mode,))
    for name in ("rollout_is", "rollout_rs", "rollout_token_veto_threshold"):
        if getattr(algorithm.rollout_correction, name) is not None:
            key = f"algorithm.rollout_correction.{name}"
            yield Problem(key, "refers to another key, which is not read", "the value itself", f"write {key}=VALUE")
    if algorithm.rollout_is and algorithm.rollout_is_mode == "veto" and algorithm.rollout_is_veto_threshold is None:
        veto = "algorithm.rollout_is_veto_threshold"
        fix = f"set {veto}=1e-4, for example"
        yield Problem(veto, "is null, but algorithm.rollout_is_mode=veto rests on it", "a number > 0", fix)


def _validation(config: PPOConfig) -> Iterator[Problem]:
    if config.trainer.val_only and config.data.val_files is None:
        wrong = "is true, but data.val_files is null"
        yield Problem("trainer.val_only", wrong, "validation files", "set data.val_files", ("data.val_files",))


def _sft_token_cap(config: SFTConfig) -> Iterator[Problem]:
    data, shared_by, key = config.data, config.ulysses_sequence_parallel_size, "data.max_token_len_per_gpu"
    if data.use_dynamic_bsz and data.max_token_len_per_gpu * shared_by < data.max_length:
        yield _small_cap(key, data.max_token_len_per_gpu, data.max_length, "data.max_length", shared_by)


def _sft_liger(config: SFTConfig) -> Iterator[Problem]:
    if config.model.use_liger and config.trainer.device == "cpu":
        wrong = "is true, but trainer.device=cpu: Liger's kernels are programs for a GPU"
        fix = "set model.use_liger=False; the results are the same"
        yield Problem("model.use_liger", wrong, "false on a CPU", fix, ("trainer.device",))


def _sample_limits(config: Node) -> Iterator[Problem]:
    if isinstance(config, EvaluationConfig):
        return
    for name in ("train_max_samples", "val_max_samples", "max_samples"):
        if getattr(config.data, name, None) == 0:  # type: ignore[attr-defined]
            key, expected = f"data.{name}", "-1 for all rows, or 1 and more"
            yield Problem(key, "0 leaves no row", expected, f"set {key}=-1")


def _sft_offload(config: SFTConfig) -> Iterator[Problem]:
    key, other = "model.fsdp_config.offload_params", "model.fsdp_config.cpu_offload"
    if config.model.fsdp_config.offload_params and not config.model.fsdp_config.cpu_offload:
        yield Problem(key, f"is true, but {other} is false", "both, or neither", f"set {other}=True", (other,))


def _resume(config: PPOConfig | SFTConfig) -> Iterator[Problem]:
    trainer, key, mode = config.trainer, "trainer.resume_from_path", "trainer.resume_mode"
    if trainer.resume_mode == "resume_path" and trainer.resume_from_path is None:
        fix = f"set {key}=DIR/global_step_N, or {mode}=auto"
        yield Problem(key, f"is null, but {mode}=resume_path", "a checkpoint folder", fix, (mode,))
    if trainer.resume_mode != "resume_path" and trainer.resume_from_path is not None:
        wrong = f"is set, but {mode}={trainer.resume_mode} does not read it"
        yield Problem(key, wrong, "null", f"set {mode}=resume_path, or remove it", (mode,))

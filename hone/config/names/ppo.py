"""Other names of the keys of `hone ppo`."""

from __future__ import annotations

from collections.abc import Iterator

from .rows import ANY, Divided, Renamed, Row, Settled, same_in
from .shared import conversations, lora_section, ray, reward_function

MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
REWARD = "reward_model"
NSIGHT = ("trace", "cuda-memory-usage", "cuda-graph-trace")


def _fsdp(section: str, role: str, *moved: str) -> Iterator[Row]:
    """What became part of `fsdp_config`, and of it what the engine decides."""
    yield from same_in(section, role, "strategy", "ulysses_sequence_parallel_size", *moved)
    yield Renamed(f"{section}.dtype", f"{section}.mixed_precision.param_dtype")
    yield Settled(f"{section}.grad_offload", (False,), "gradients go with offload_policy")
    yield Settled(f"{section}.full_determinism", (False,), "deterministic kernels")
    yield Settled(f"{section}.use_orig_params", ANY, "the strategy decides it")
    yield Settled(f"{section}.forward_only", ANY, "the role decides it")
    yield Settled(f"{section}.seed", ANY, "trainer.seed is the seed of a run")


def _engine(role: str) -> Iterator[Row]:
    """Other training engines' settings, and the profiler's, of one role."""
    yield Settled(f"{role}.megatron.*", (), "only strategy=megatron reads it", apart=(f"{role}.strategy", "megatron"))
    yield Settled(f"{role}.veomni.*", (), "VeOmni")
    yield Settled(f"{role}.load_weight", (True,), "weights are always loaded")
    yield Settled(f"{role}.nccl_timeout", ANY, "torch's own time limit is used")
    yield Settled(f"{role}.rollout_n", (f"${{{ROLLOUT}.n}}",), "rollout.n is the number of responses")
    yield Settled(f"{role}.profiler.enable", (False,), "profiling")
    yield Settled(f"{role}.profiler.tool", (), "profiling")
    yield Settled(f"{role}.profiler.save_path", ANY, "nothing is profiled")
    yield Settled(f"{role}.profiler.tool_config.*", (), "profiling")


def _trained(role: str) -> Iterator[Row]:
    """The optimiser and the checkpoints of a role that is trained."""
    yield Renamed(f"{role}.optim.warmup_style", f"{role}.optim.lr_scheduler_type")
    yield Renamed(f"{role}.optim.clip_grad", f"{role}.grad_clip", apart=(f"{role}.strategy", "megatron"))
    yield Renamed(f"{role}.checkpoint.contents", f"{role}.checkpoint.save_contents")
    yield Settled(f"{role}.checkpoint.async_save", (False,), "a run waits for its checkpoints")


def _policy() -> Iterator[Row]:
    sharing = f"{ACTOR}.ulysses_sequence_parallel_size"
    compiling = ("use_torch_compile", "entropy_checkpointing", "entropy_from_logits_with_chunking")
    yield Divided(f"{ACTOR}.ppo_micro_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu", sharing)
    yield Divided(f"{ROLLOUT}.log_prob_micro_batch_size", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", sharing)
    yield from (*_trained(ACTOR), *_engine(ACTOR), *_fsdp(f"{ACTOR}.fsdp_config", ACTOR, *compiling))
    yield from same_in(ACTOR, MODEL, "use_remove_padding", "use_fused_kernels")
    yield Settled(f"{ACTOR}.calculate_entropy", ANY, "the entropy is always measured")
    yield Settled(f"{ACTOR}.calculate_sum_pi_squared", (False,), "that measure")
    yield Settled(f"{ACTOR}.use_rollout_log_probs", (False,), "updates use the trainer's log-probs")
    yield Settled(f"{ACTOR}.freeze_vision_tower", (False,), "images")
    yield Settled(f"{ACTOR}.router_replay.mode", ("disabled",), "replaying the choice of experts")
    capped = "set algorithm.rollout_correction.rollout_is=token and algorithm.rollout_correction.rollout_is_threshold"
    yield Settled(f"{ACTOR}.tis_imp_ratio_cap", (-1,), "a cap without a switch", instead=capped)
    yield from lora_section(MODEL)
    yield Renamed(f"{MODEL}.tokenizer_path", "data.tokenizer")
    template = "write it into the tokenizer's chat_template and name the tokenizer's folder in data.tokenizer"
    yield Settled(f"{MODEL}.custom_chat_template", (), "templates in the configuration", instead=template)
    yield Settled(f"{MODEL}.hf_config_path", (), "a model's folder holds its config.json")
    yield Settled(f"{MODEL}.mtp.enable", (False,), "predicting several tokens")
    yield Settled(f"{MODEL}.tiled_mlp.enabled", (False,), "layers in tiles")
    yield Settled("actor_rollout_ref.nccl_timeout", ANY, "torch's own time limit is used")
    yield Settled("model_engine=", ("dp", "fsdp"), "engines without torch's FSDP", instead=f"set {ACTOR}.strategy")


def _reference() -> Iterator[Row]:
    section, sharing = f"{REF}.fsdp_config", f"{REF}.ulysses_sequence_parallel_size"
    yield Divided(f"{REF}.log_prob_micro_batch_size", f"{REF}.log_prob_micro_batch_size_per_gpu", sharing)
    yield from (*_engine(REF), *_fsdp(section, REF))
    for place in (REF, section):
        for name in ("entropy_checkpointing", "entropy_from_logits_with_chunking"):
            yield Settled(f"{place}.{name}", ANY, "the reference computes no entropy")
        yield Settled(f"{place}.use_torch_compile", ANY, f"{ACTOR}.use_torch_compile counts for all log-probs")
    yield Settled(f"{REF}.model", (), "the reference is the policy as it began")


def _critic() -> Iterator[Row]:
    sharing = "critic.ulysses_sequence_parallel_size"
    yield Divided("critic.ppo_micro_batch_size", "critic.ppo_micro_batch_size_per_gpu", sharing)
    yield Divided("critic.forward_micro_batch_size", "critic.forward_micro_batch_size_per_gpu", sharing)
    yield from (*_trained("critic"), *_engine("critic"), *_fsdp("critic.model.fsdp_config", "critic"))
    yield from lora_section("critic.model")


def _rollout() -> Iterator[Row]:
    yield from conversations(ROLLOUT, ROLLOUT)
    for name in ("data_parallel_size", "expert_parallel_size", "pipeline_model_parallel_size"):
        yield Settled(f"{ROLLOUT}.{name}", (1,), "an engine is not split so")
    for name in ("update_weights_bucket_megabytes", "layered_summon", "multi_stage_wake_up"):
        yield Settled(f"{ROLLOUT}.{name}", ANY, "how weights reach the engine is not chosen by key")
    yield Settled(f"{ROLLOUT}.checkpoint_engine.*", ANY, "how weights reach the engine is not chosen by key")
    yield Settled(f"{ROLLOUT}.enable_prefix_caching", ANY, "a prompt is computed once for all its samples")
    yield Settled(f"{ROLLOUT}.cudagraph_capture_sizes", (), "the engine chooses them")
    yield Settled(f"{ROLLOUT}.over_sample_rate", (0.0,), "sampling more than is trained")
    yield Settled(f"{ROLLOUT}.skip_rollout", (False,), "trajectories of an earlier run")
    yield Settled(f"{ROLLOUT}.skip_dump_dir", ANY, "no trajectories of an earlier run are read")
    yield Settled(f"{ROLLOUT}.quantization", (), "quantised engines")
    yield Settled(f"{ROLLOUT}.enable_rollout_routing_replay", (False,), "replaying the choice of experts")
    yield Settled(f"{ROLLOUT}.trace.backend", (), "tracing of conversations")
    yield Settled(f"{ROLLOUT}.trace.token2text", ANY, "conversations are not traced")
    yield Settled(f"{ROLLOUT}.prometheus.enable", (False,), "Prometheus")
    yield Settled(f"{ROLLOUT}.profiler.enable", (False,), "profiling")


def _data() -> Iterator[Row]:
    yield Settled("data.dataloader_num_workers", ANY, "the driver reads the rows of a batch by itself")
    yield Settled("data.gen_batch_size", ("${data.train_batch_size}",), "prompts are sampled by data.train_batch_size")
    yield Settled("data.sampler.class_path", (), "samplers of your own")
    yield Settled("data.sampler.class_name", ANY, "there is no sampler of your own")
    yield Settled("data.datagen.path", (), "generators of data")
    yield Settled("data.datagen.name", ANY, "there is no generator of data")
    yield Settled("data.apply_chat_template_kwargs.*", (), "arguments of the chat template")


def _rewards() -> Iterator[Row]:
    yield from reward_function("reward")
    yield Renamed("reward.reward_manager.name", f"{REWARD}.reward_manager")
    yield Settled("reward.reward_manager.source", ("register",), "managers of your own")
    yield Settled("reward.reward_manager.module.*", (), "managers of your own")
    yield Renamed("reward.reward_model.enable", f"{REWARD}.enable")
    yield Renamed("reward.reward_model.model_path", f"{REWARD}.model.path")
    yield Divided(f"{REWARD}.micro_batch_size", f"{REWARD}.micro_batch_size_per_gpu")
    fsdp = f"{REWARD}.model.fsdp_config"
    yield Renamed(f"{fsdp}.min_num_params", f"{fsdp}.wrap_policy.min_num_params")
    for place in ("sandbox_fusion", "reward.sandbox_fusion"):
        yield from same_in(place, f"{REWARD}.sandbox_fusion", "url", "max_concurrent")
        yield Settled(f"{place}.memory_limit_mb", ANY, "no sandbox runs")
    yield Settled(f"{REWARD}.sandbox_fusion.memory_limit_mb", ANY, "no sandbox runs")
    for place in (REWARD, "reward", "reward.reward_model"):
        kwargs = f"{place}.reward_kwargs"
        yield from same_in(
            f"{kwargs}.overlong_buffer_cfg", f"{REWARD}.overlong_buffer", "enable", "len", "penalty_factor"
        )
        yield Settled(f"{kwargs}.overlong_buffer_cfg.log", ANY, "the penalty is always logged")
        limit = "the penalty ends at data.max_response_length"
        yield Settled(f"{kwargs}.max_resp_len", ("${data.max_response_length}",), limit)
        yield Settled(f"{kwargs}.*", (), "arguments of a reward manager")
        yield Settled(f"{place}.num_workers", ANY, f"{REWARD}.reward_manager says how many scores are computed at once")
        yield Settled(f"{place}.use_reward_loop", ANY, "there is one way to compute rewards")
        yield Settled(f"{place}.enable_resource_pool", (False,), "devices for rewards alone")
        for name in ("nnodes", "n_gpus_per_node"):
            yield Settled(f"{place}.{name}", ANY, "there are no devices for rewards alone")
        yield Settled(f"{place}.rollout.*", (), "rewards from models")
    yield Settled(f"{REWARD}.overlong_buffer.log", ANY, "the penalty is always logged")
    yield Settled(f"{REWARD}.megatron.*", (), "rewards from models")


def _algorithm() -> Iterator[Row]:
    section = "algorithm.rollout_correction"
    for name in ("bypass_mode", "bypass_old_logprob_for_rollout"):
        yield Settled(f"{section}.{name}", (False,), "old log-probs are always the trainer's")
    for name in ("use_policy_gradient", "use_pure_rollout_correction"):
        yield Settled(f"{section}.{name}", (False,), f"{ACTOR}.policy_loss.loss_mode chooses the loss")
    yield Settled(f"{section}.loss_type", ("ppo_clip",), f"{ACTOR}.policy_loss.loss_mode chooses the loss")
    yield Settled(f"{section}.rollout_is_batch_normalize", (False,), "weights with mean 1")


def _trainer() -> Iterator[Row]:
    yield Renamed("trainer.val_generations_to_log_to_wandb", "trainer.log_val_generations")
    yield Settled("trainer.use_legacy_worker_impl", ANY, "there is one kind of worker")
    yield Settled("trainer.esi_redundant_time", (0,), "the end of a lease is not watched")
    yield Renamed("global_profiler.steps", "trainer.profile_steps")
    yield Settled("global_profiler.tool", (), "profiling")
    for place in ("global_profiler.profile_continuous_steps", "trainer.profile_continuous_steps"):
        yield Settled(place, (False,), "profiling")
    yield Settled("global_profiler.save_path", ANY, "nothing is profiled")
    nsys = "global_profiler.global_tool_config.nsys"
    controller, worker = "controller_nsight_options", "worker_nsight_options"
    yield from same_in(f"{nsys}.{controller}", f"trainer.{controller}", *NSIGHT)
    more = ("capture-range", "capture-range-end", "kill")
    yield from same_in(f"{nsys}.{worker}", f"trainer.{worker}", *NSIGHT, *more)
    yield Settled(f"{nsys}.discrete", (False,), "profiling")
    yield Settled("global_profiler.global_tool_config.*", (), "profiling")
    yield Settled("trainer.npu_profile.*", (), "profiling")
    yield Settled("transfer_queue.enable", (False,), "queues between workers")


PPO: tuple[Row, ...] = (
    *_policy(), *_reference(), *_critic(), *_rollout(), *_data(), *_rewards(), *_algorithm(), *_trainer(), *ray(),
)  # fmt: skip

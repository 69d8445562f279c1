"""Command lines as verl's users write them load as they are: whatever is refused is refused because this build has no
such engine, never because a key or a value is not understood."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hone.config import ConfigError, load

PPO = """
data.train_files={rows} data.val_files={rows} data.train_batch_size=512 data.max_prompt_length=400
data.max_response_length=300 data.filter_overlong_prompts=True data.truncation='error' critic.model.path={model}
actor_rollout_ref.model.path={model} actor_rollout_ref.actor.optim.lr=2e-6
actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.model.enable_gradient_checkpointing=True
actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.actor.fsdp_config.param_offload=False
actor_rollout_ref.actor.fsdp_config.optimizer_offload=False actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 actor_rollout_ref.rollout.gpu_memory_utilization=0.5
actor_rollout_ref.rollout.tensor_model_parallel_size=2 trainer.project_name='sums' trainer.experiment_name='first'
trainer.logger='["console","wandb"]' trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.save_freq=25
trainer.test_freq=10 trainer.total_epochs=5 trainer.val_before_train=False
"""
CRITIC = """
algorithm.adv_estimator=gae algorithm.use_kl_in_reward=False critic.optim.lr=2e-5 critic.model.use_remove_padding=True
critic.model.enable_gradient_checkpointing=True critic.ppo_micro_batch_size_per_gpu=16 trainer.critic_warmup=0
critic.model.fsdp_config.param_offload=False critic.model.fsdp_config.optimizer_offload=False
"""
GROUPS = """
algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=6 actor_rollout_ref.actor.use_kl_loss=True
actor_rollout_ref.actor.kl_loss_coef=0.002 actor_rollout_ref.actor.kl_loss_type=low_var_kl
actor_rollout_ref.actor.entropy_coeff=0 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16
actor_rollout_ref.ref.fsdp_config.param_offload=True algorithm.use_kl_in_reward=False
"""
TOKENS = """
actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=12000
actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=20000
actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=20000
critic.use_dynamic_bsz=True critic.ppo_max_token_len_per_gpu=24000 critic.forward_max_token_len_per_gpu=24000
"""
MEGATRON = """
--config-path=config --config-name='ppo_megatron_trainer.yaml'
actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.ref.megatron.param_offload=True
actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 actor_rollout_ref.actor.megatron.param_offload=True
+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full
actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2 actor_rollout_ref.actor.optim.clip_grad=0.5
actor_rollout_ref.actor.optim.lr_decay_style=cosine actor_rollout_ref.actor.optim.min_lr=1e-7
"""
SFT = """
data.train_files={rows} data.val_files={rows} optim.lr=2e-5 trainer.project_name=sums-sft
trainer.experiment_name=small trainer.logger=['console','wandb'] trainer.total_epochs=2
trainer.default_local_dir={runs}
"""

LINES = {
    "PPO with a critic": ("ppo", PPO + CRITIC),
    "PPO with old names": ("ppo", PPO.replace("_per_gpu=8", "=64").replace("_per_gpu=16", "=128") + """
        algorithm.adv_estimator=gae critic.ppo_micro_batch_size=32 critic.forward_micro_batch_size=64
        actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05 actor_rollout_ref.actor.optim.warmup_style=cosine
        actor_rollout_ref.actor.fsdp_config.grad_offload=False data.val_batch_size=600
        trainer.val_generations_to_log_to_wandb=4 trainer.default_hdfs_dir=null"""),
    "PPO by tokens over shared sequences": ("ppo", PPO + CRITIC + TOKENS + """
        actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 critic.ulysses_sequence_parallel_size=2
        actor_rollout_ref.actor.strategy=fsdp2"""),
    "PPO on Megatron": ("ppo", PPO + MEGATRON + """
        algorithm.adv_estimator=gae critic.optim.lr=1e-5 critic.megatron.tensor_model_parallel_size=2
        critic.megatron.pipeline_model_parallel_size=2 critic.ppo_micro_batch_size_per_gpu=4"""),
    "GRPO": ("ppo", PPO + GROUPS + "trainer.critic_warmup=0"),
    "GRPO by tokens with SGLang": ("ppo", PPO + GROUPS + TOKENS + """
        actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.mode=async data.return_raw_chat=True
        +actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3"""),
    "GRPO on Megatron": ("ppo", PPO + GROUPS + MEGATRON),
    "GRPO with adapters": ("ppo", PPO + GROUPS + """
        actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.lora_alpha=16 data.shuffle=False
        actor_rollout_ref.rollout.load_format=safetensors actor_rollout_ref.model.target_modules=all-linear
        actor_rollout_ref.model.use_shm=True actor_rollout_ref.rollout.layered_summon=True"""),
    "GRPO as newer versions write it": ("ppo", PPO + GROUPS + """
        model_engine=dp reward.custom_reward_function.path={code} reward.custom_reward_function.name=score
        reward.reward_manager.name=naive reward.num_workers=8 trainer.use_legacy_worker_impl=disable
        actor_rollout_ref.actor.optim.clip_grad=0.8 actor_rollout_ref.actor.fsdp_config.strategy=fsdp2
        actor_rollout_ref.rollout.agent.num_workers=4 actor_rollout_ref.actor.use_torch_compile=False
        actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent ray_kwargs.ray_init.num_cpus=32
        algorithm.rollout_correction.rollout_is=token algorithm.rollout_correction.rollout_is_threshold=3.0
        algorithm.rollout_correction.bypass_mode=False global_profiler.steps=null global_profiler.tool=null"""),
    "RLOO": ("ppo", PPO + """
        algorithm.adv_estimator=rloo actor_rollout_ref.rollout.n=4 algorithm.use_kl_in_reward=True
        algorithm.kl_penalty=kl algorithm.kl_ctrl.kl_coef=0.002 trainer.critic_warmup=0"""),
    "REINFORCE++": ("ppo", PPO + """
        algorithm.adv_estimator=reinforce_plus_plus actor_rollout_ref.rollout.n=4
        actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=mse
        actor_rollout_ref.actor.kl_loss_coef=0.002 algorithm.use_kl_in_reward=False"""),
    "REINFORCE++ with a baseline": ("ppo", PPO + """
        algorithm.adv_estimator=reinforce_plus_plus_baseline actor_rollout_ref.rollout.n=8
        actor_rollout_ref.ref.fsdp_config.param_offload=True"""),
    "ReMax": ("ppo", PPO + TOKENS + """
        algorithm.adv_estimator=remax actor_rollout_ref.rollout.n=2 algorithm.use_kl_in_reward=True
        algorithm.kl_penalty=kl algorithm.kl_ctrl.kl_coef=0.002"""),
    "DAPO": ("ppo", PPO + TOKENS + """
        algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.clip_ratio_low=0.2
        actor_rollout_ref.actor.clip_ratio_high=0.3 actor_rollout_ref.actor.clip_ratio_c=8.0
        actor_rollout_ref.actor.loss_agg_mode=token-mean actor_rollout_ref.actor.grad_clip=1.0
        +data.gen_batch_size=512 algorithm.filter_groups.enable=True algorithm.filter_groups.metric=score
        algorithm.filter_groups.max_num_gen_batches=8 reward_model.reward_manager=dapo
        +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True
        +reward_model.reward_kwargs.overlong_buffer_cfg.len=80
        +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0
        +reward_model.reward_kwargs.overlong_buffer_cfg.log=False +reward_model.reward_kwargs.max_resp_len=300
        actor_rollout_ref.rollout.val_kwargs.temperature=0.8 actor_rollout_ref.rollout.val_kwargs.top_p=0.7
        actor_rollout_ref.rollout.val_kwargs.do_sample=True actor_rollout_ref.rollout.val_kwargs.n=2
        actor_rollout_ref.rollout.enable_chunked_prefill=True actor_rollout_ref.rollout.max_num_batched_tokens=9000
        trainer.resume_mode=auto"""),
    "SFT": ("sft", SFT + """
        data.prompt_key=extra_info data.response_key=extra_info data.prompt_dict_keys=['question']
        +data.response_dict_keys=['answer'] data.micro_batch_size_per_gpu=8 model.partial_pretrain={model}
        trainer.default_hdfs_dir=null ulysses_sequence_parallel_size=1 use_remove_padding=true"""),
    "SFT with adapters": ("sft", SFT + """
        data.prompt_key=question data.response_key=answer data.micro_batch_size=16 model.partial_pretrain={model}
        model.lora_rank=16 model.lora_alpha=32 model.target_modules=all-linear model.use_liger=False
        trainer.n_gpus_per_node=4 model.fsdp_config.cpu_offload=True"""),
    "SFT as newer versions write it": ("sft", SFT + """
        engine=fsdp optim=fsdp data.messages_key=messages data.pad_mode=no_padding data.use_dynamic_bsz=True
        data.max_token_len_per_gpu=6000 data.truncation=error model.path={model} model.use_remove_padding=True
        engine.strategy=fsdp2 engine.ulysses_sequence_parallel_size=2 engine.fsdp_size=-1 trainer.n_gpus_per_node=4
        optim.lr_warmup_steps_ratio=0.05 optim.weight_decay=0.05 optim.betas="[0.9,0.95]" optim.clip_grad=0.9
        optim.min_lr_ratio=0.1 optim.warmup_style=cosine trainer.test_freq=20 trainer.save_freq=-1
        checkpoint.save_contents=[model,optimizer,extra] trainer.resume_mode=disable"""),
    "generation": ("generate", """
        trainer.nnodes=1 trainer.n_gpus_per_node=8 data.path={rows} data.prompt_key=prompt data.n_samples=4
        data.output_path={runs}/answers.parquet model.path={model} +model.trust_remote_code=True
        rollout.temperature=0.9 rollout.top_k=40 rollout.top_p=0.8 rollout.prompt_length=900 rollout.response_length=500
        rollout.name=vllm rollout.tensor_model_parallel_size=2 rollout.gpu_memory_utilization=0.7"""),
    "evaluation": ("eval", """
        data.path={rows} data.prompt_key=prompt data.response_key=responses
        custom_reward_function.path={code} custom_reward_function.name=score"""),
}  # fmt: skip
ENGINES = {"vllm", "sglang", "megatron", "dapo"}  # whatever names one of these is refused, and nothing else is
ROLLOUT = "actor_rollout_ref.rollout"
MAY_BE_REFUSED = {
    "GRPO by tokens with SGLang": {"actor_rollout_ref.rollout.engine_kwargs.sglang"},
    "GRPO with adapters": {"actor_rollout_ref.model.use_shm"},
}


@pytest.mark.parametrize("name", LINES)
def test_a_command_line_of_verls_loads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("paths", "engines"):  # wandb and vllm may be missing here
        monkeypatch.setattr(f"hone.config.{module}.find_spec", lambda package: package)
    command, line = LINES[name]
    paths = {which: tmp_path / which for which in ("rows", "model", "code", "runs")}
    paths["rows"].touch()
    paths["code"].touch()
    paths["model"].mkdir()
    argv = shlex.split(line.format(**paths))
    refused: dict[str, str] = {}
    try:
        load(command, argv)
    except ConfigError as error:
        refused = {problem.key: problem.wrong for problem in error.problems}
    assert all("is not available in this build" in wrong for wrong in refused.values()), refused
    unexpected = {key for key, wrong in refused.items() if wrong.split()[0] not in ENGINES}
    # Not built for any engine yet; verl's examples set 2 or more.
    assert unexpected <= {f"{ROLLOUT}.tensor_model_parallel_size", *MAY_BE_REFUSED.get(name, set())}, refused

"""Other names of keys, deprecated or of newer versions of verl: read as the key that counts, and said once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hone.config import ConfigError, load
from hone.config.load import preview
from hone.config.names import NAMES, Settled
from hone.config.names.translate import followed
from hone.config.presets import DEFAULT_PRESET, PRESETS
from hone.config.schema.walk import document
from hone.config.support import hydra_text
from hone.config.tree import get
from tests.shows import shows

MODEL, ACTOR, REF = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.ref"
ROLLOUT, CORRECTION = "actor_rollout_ref.rollout", "algorithm.rollout_correction"
Runnable = dict[str, list[str]]

# Names that the reference's key tree has beside the keys that they are read as.
IN_THE_SCHEMA = {
    "ppo": {
        *(f"{role}.optim.{name}" for role in (ACTOR, "critic") for name in ("warmup_style", "clip_grad")),
        *(f"{role}.ppo_micro_batch_size" for role in (ACTOR, "critic")),
        *(f"{role}.log_prob_micro_batch_size" for role in (REF, ROLLOUT)),
        "reward_model.model.fsdp_config.min_num_params",
    },
    "sft": {"optim.warmup_steps_ratio"},
    "generate": set(),
    "eval": set(),
}

RENAMED: list[tuple[str, str, str, Any]] = [
    ("ppo", "reward.custom_reward_function.path=mine.py", "custom_reward_function.path", "mine.py"),
    ("ppo", "reward.custom_reward_function.name=mine", "custom_reward_function.name", "mine"),
    ("ppo", "reward.reward_manager.name=prime", "reward_model.reward_manager", "prime"),
    ("ppo", "reward.sandbox_fusion.url=http://a", "reward_model.sandbox_fusion.url", "http://a"),
    ("ppo", "sandbox_fusion.max_concurrent=3", "reward_model.sandbox_fusion.max_concurrent", 3),
    ("ppo", "reward.reward_model.enable=True", "reward_model.enable", True),
    ("ppo", "reward.reward_model.model_path=m", "reward_model.model.path", "m"),
    ("ppo", "+reward_model.reward_kwargs.overlong_buffer_cfg.len=16", "reward_model.overlong_buffer.len", 16),
    ("ppo", "+reward.reward_kwargs.overlong_buffer_cfg.enable=True", "reward_model.overlong_buffer.enable", True),
    ("ppo", "reward_model.model.fsdp_config.min_num_params=5",
     "reward_model.model.fsdp_config.wrap_policy.min_num_params", 5),
    ("ppo", "global_profiler.steps=[1,2]", "trainer.profile_steps", [1, 2]),
    ("ppo", "global_profiler.global_tool_config.nsys.worker_nsight_options.kill=none",
     "trainer.worker_nsight_options.kill", "none"),
    ("ppo", "ray_kwargs.ray_init.num_cpus=4", "ray_init.num_cpus", 4),
    ("ppo", "+ray_kwargs.ray_init.address=auto", "ray_init.address", "auto"),
    ("ppo", "ray_kwargs.timeline_json_file=t.json", "ray_init.timeline_json_file", "t.json"),
    ("ppo", f"{MODEL}.lora.rank=8", f"{MODEL}.lora_rank", 8),
    ("ppo", f"{MODEL}.lora.alpha=4", f"{MODEL}.lora_alpha", 4),
    ("ppo", f"{MODEL}.lora.target_modules=[q_proj]", f"{MODEL}.target_modules", ["q_proj"]),
    ("ppo", "critic.model.lora.rank=8", "critic.model.lora_rank", 8),
    ("ppo", f"{MODEL}.tokenizer_path=t", "data.tokenizer", "t"),
    ("ppo", f"{ACTOR}.optim.clip_grad=0.5", f"{ACTOR}.grad_clip", 0.5),
    ("ppo", "critic.optim.clip_grad=0.5", "critic.grad_clip", 0.5),
    ("ppo", f"{ACTOR}.optim.warmup_style=cosine", f"{ACTOR}.optim.lr_scheduler_type", "cosine"),
    ("ppo", "critic.optim.warmup_style=cosine", "critic.optim.lr_scheduler_type", "cosine"),
    ("ppo", f"{ACTOR}.use_remove_padding=True", f"{MODEL}.use_remove_padding", True),
    ("ppo", f"{ACTOR}.use_fused_kernels=True", f"{MODEL}.use_fused_kernels", True),
    ("ppo", f"{ACTOR}.fsdp_config.strategy=fsdp2", f"{ACTOR}.strategy", "fsdp2"),
    ("ppo", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2", f"{ACTOR}.ulysses_sequence_parallel_size", 2),
    ("ppo", f"{ACTOR}.fsdp_config.use_torch_compile=False", f"{ACTOR}.use_torch_compile", False),
    ("ppo", f"{ACTOR}.fsdp_config.entropy_checkpointing=True", f"{ACTOR}.entropy_checkpointing", True),
    ("ppo", f"{ACTOR}.fsdp_config.dtype=float32", f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", "float32"),
    ("ppo", f"{REF}.fsdp_config.strategy=fsdp2", f"{REF}.strategy", "fsdp2"),
    ("ppo", f"{ACTOR}.checkpoint.contents=[model]", f"{ACTOR}.checkpoint.save_contents", ["model"]),
    ("ppo", "trainer.val_generations_to_log_to_wandb=3", "trainer.log_val_generations", 3),
    ("ppo", f"{ACTOR}.ppo_micro_batch_size=16", f"{ACTOR}.ppo_micro_batch_size_per_gpu", 2),
    ("ppo", f"{REF}.log_prob_micro_batch_size=32", f"{REF}.log_prob_micro_batch_size_per_gpu", 4),
    ("ppo", f"{ROLLOUT}.log_prob_micro_batch_size=32", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", 4),
    ("ppo", "critic.ppo_micro_batch_size=24", "critic.ppo_micro_batch_size_per_gpu", 3),
    ("ppo", "critic.forward_micro_batch_size=16", "critic.forward_micro_batch_size_per_gpu", 2),
    ("ppo", f"{ROLLOUT}.multi_turn.max_assistant_turns=3", f"{ROLLOUT}.multi_turn.max_turns", 3),
    ("ppo", f"{ROLLOUT}.multi_turn.tokenization_sanity_check_mode=disable",
     f"{ROLLOUT}.multi_turn.enable_tokenization_sanity_check", False),
    ("sft", "model.path=m", "model.partial_pretrain", "m"),
    ("sft", "model.lora.rank=8", "model.lora_rank", 8),
    ("sft", "data.micro_batch_size=4", "data.micro_batch_size_per_gpu", 4),
    ("sft", "data.multiturn.messages_key=talk", "data.messages_key", "talk"),
    ("sft", "data.pad_mode=no_padding", "model.use_remove_padding", True),
    ("sft", "use_remove_padding=true", "model.use_remove_padding", True),
    ("sft", "optim.lr_scheduler_type=wsd", "optim.lr_scheduler", "wsd"),
    ("sft", "optim.warmup_style=constant", "optim.lr_scheduler", "constant"),
    ("sft", "optim.warmup_steps_ratio=0.3", "optim.lr_warmup_steps_ratio", 0.3),
    ("sft", "engine.strategy=fsdp", "model.strategy", "fsdp"),
    ("sft", "engine.ulysses_sequence_parallel_size=2", "ulysses_sequence_parallel_size", 2),
    ("sft", "engine.optimizer_offload=True", "model.fsdp_config.cpu_offload", True),
    ("sft", "engine.mixed_precision.param_dtype=fp32", "model.fsdp_config.mixed_precision.param_dtype", "fp32"),
    ("sft", "checkpoint.save_contents=[model]", "trainer.checkpoint.save_contents", ["model"]),
    ("sft", "ray_kwargs.ray_init.num_cpus=4", "ray_init.num_cpus", 4),
    ("generate", "rollout.n=3", "data.n_samples", 3),
    ("generate", f"{MODEL}.path=m", "model.path", "m"),
    ("generate", f"{ROLLOUT}.response_length=9", "rollout.response_length", 9),
    ("generate", f"{ROLLOUT}.multi_turn.enable=True", "rollout.multi_turn.enable", True),
    ("generate", f"{ROLLOUT}.multi_turn.max_assistant_turns=3", "rollout.multi_turn.max_turns", 3),
    ("generate", f"{ROLLOUT}.agent.agent_loop_path=a.py", "rollout.agent.agent_loop_path", "a.py"),
    ("generate", "data.train_files=a.parquet", "data.path", "a.parquet"),
    ("eval", "reward.custom_reward_function.path=mine.py", "custom_reward_function.path", "mine.py"),
]  # fmt: skip


PAGE = Path(__file__).parents[2] / "docs" / "names.md"


def test_the_page_of_names_is_the_table() -> None:
    lines = PAGE.read_text().splitlines()
    for command, rows in NAMES.items():
        for row in rows:
            assert isinstance(row, Settled) or f"    {row.old} -> {row.new}" in lines, (command, row)
    shown = [line for line in lines if " -> " in line]
    assert len(shown) == sum(not isinstance(row, Settled) for rows in NAMES.values() for row in rows)


def problem_of(command: str, argv: list[str]) -> Any:
    with pytest.raises(ConfigError) as caught:
        preview(command, argv)
    (problem,) = caught.value.problems
    return problem


@shows(*sorted(IN_THE_SCHEMA["ppo"]))
@shows("optim.warmup_steps_ratio", command="sft")
@pytest.mark.parametrize(("command", "override", "key", "value"), RENAMED, ids=[f"{c}-{o}" for c, o, _, _ in RENAMED])
def test_another_name_is_read_as_the_key_that_counts_and_said_once(
    command: str, override: str, key: str, value: Any
) -> None:
    loaded = preview(command, [override])
    assert get(loaded.config.model_dump(by_alias=True), key) == value
    name = override.lstrip("+").partition("=")[0]
    (notice,) = [text for text in loaded.notices if text.startswith(f"{name} is ")]
    assert f"{key}={hydra_text(value)} is used" in notice
    assert key in loaded.user_keys and name not in loaded.user_keys


@pytest.mark.parametrize("command", NAMES)
def test_every_name_leads_to_a_key_and_is_none_itself(command: str) -> None:
    docs = document(PRESETS[DEFAULT_PRESET[command]].schema)
    for row in NAMES[command]:
        assert isinstance(row, Settled) or not docs[row.new].section, row
        known = row.old.removesuffix("=") in docs and not row.old.endswith("=")
        assert known == (row.old in IN_THE_SCHEMA[command]), f"{row.old} is a key by now: delete its row"


@pytest.mark.parametrize(
    ("command", "first", "second"),
    [
        ("ppo", "reward.custom_reward_function.path=a.py", "custom_reward_function.path=b.py"),
        ("ppo", f"{ACTOR}.optim.clip_grad=0.5", f"{ACTOR}.grad_clip=0.7"),
        ("ppo", f"{ACTOR}.optim.clip_grad=1.0", f"{ACTOR}.grad_clip=0.7"),
        ("ppo", f"{ACTOR}.optim.warmup_style=cosine", f"{ACTOR}.optim.lr_scheduler_type=constant"),
        ("ppo", f"{MODEL}.lora.rank=8", f"{MODEL}.lora_rank=4"),
        ("ppo", "ray_kwargs.ray_init.num_cpus=8", "ray_init.num_cpus=4"),
        ("ppo", "reward.reward_manager.name=prime", "reward_model.reward_manager=naive"),
        ("ppo", f"{ACTOR}.ppo_micro_batch_size=8", f"{ACTOR}.ppo_micro_batch_size_per_gpu=8"),
        ("ppo", "sandbox_fusion.url=http://b", "reward.sandbox_fusion.url=http://c"),
        ("sft", "model.path=a", "model.partial_pretrain=b"),
        ("sft", "optim.warmup_style=constant", "optim.lr_scheduler=wsd"),
    ],
)
def test_two_names_that_say_different_things_are_one_error_that_names_both(
    command: str, first: str, second: str
) -> None:
    for argv in ([first, second], [second, first]):
        text = str(problem_of(command, argv))
        assert all(override.partition("=")[0] in text for override in (first, second))


def test_a_name_is_held_against_what_the_other_refers_to() -> None:
    refers = [f"{ACTOR}.optim.clip_grad=0.5", f"{ACTOR}.grad_clip=${{critic.grad_clip}}"]
    assert "another name of it" in problem_of("ppo", refers).wrong
    assert preview("ppo", [*refers, "critic.grad_clip=0.5"]).config.actor_rollout_ref.actor.grad_clip == 0.5


def test_keys_that_go_round_in_a_circle_stay_references() -> None:
    assert followed({"a": "${b}", "b": "${a}"}, "a") in ("${a}", "${b}")
    assert followed({"a": "${b}", "b": 3}, "a") == 3


def test_two_names_that_say_the_same_are_fine() -> None:
    loaded = preview("ppo", [f"{ACTOR}.optim.clip_grad=0.5", f"{ACTOR}.grad_clip=0.5", f"{MODEL}.lora.rank=null"])
    assert loaded.config.actor_rollout_ref.actor.grad_clip == 0.5


def test_the_command_line_goes_before_a_file_by_whatever_name(tmp_path: Path) -> None:
    text = "reward: {custom_reward_function: {path: a.py}}\nactor_rollout_ref: {actor: {grad_clip: 0.5}}\n"
    (tmp_path / "mine.yaml").write_text(text)
    file = ["-cp", str(tmp_path), "-cn", "mine"]
    assert preview("ppo", file).config.custom_reward_function.path == "a.py"
    loaded = preview("ppo", [*file, "custom_reward_function.path=b.py", f"{ACTOR}.optim.clip_grad=0.7"])
    config = loaded.config
    assert (config.custom_reward_function.path, config.actor_rollout_ref.actor.grad_clip) == ("b.py", 0.7)
    assert any("of the file gives way to custom_reward_function.path" in text for text in loaded.notices)
    assert preview("ppo", [*file, "~reward.custom_reward_function.path"]).config.custom_reward_function.path is None


def test_what_a_run_writes_down_can_be_changed_by_either_name(runnable: Runnable, tmp_path: Path) -> None:
    changes = [f"{ACTOR}.grad_clip=0.5", f"{ACTOR}.optim.warmup_style=cosine", "algorithm.rollout_is=True",
               "algorithm.rollout_is_threshold=2", "critic.ppo_micro_batch_size=4"]  # fmt: skip
    first = load("ppo", [*runnable["ppo"], *changes])
    (tmp_path / "written.yaml").write_text(first.to_yaml())
    file = ["-cp", str(tmp_path), "-cn", "written"]
    again = load("ppo", file)
    assert again.config == first.config and not [text for text in again.notices if " another name" in text]
    for change, key, value in (
        (f"{ACTOR}.grad_clip=0.7", f"{ACTOR}.grad_clip", 0.7),
        (f"{ACTOR}.optim.clip_grad=0.7", f"{ACTOR}.grad_clip", 0.7),
        (f"{ACTOR}.optim.lr_scheduler_type=constant", f"{ACTOR}.optim.lr_scheduler_type", "constant"),
        ("algorithm.rollout_is_threshold=3", f"{ACTOR}.rollout_is_threshold", 3),
        (f"{ACTOR}.rollout_is_threshold=3", "algorithm.rollout_is_threshold", 3),
        ("critic.ppo_micro_batch_size=6", "critic.ppo_micro_batch_size_per_gpu", 6),
    ):
        assert get(load("ppo", [*file, change]).config.model_dump(by_alias=True), key) == value


def test_a_fault_in_a_value_names_the_key_as_it_was_written() -> None:
    problem = problem_of("ppo", [f"{MODEL}.lora.rank=many"])
    assert problem.key == f"{MODEL}.lora_rank" and f"(set as {MODEL}.lora.rank)" in problem.wrong
    assert "no count" in problem_of("ppo", [f"{ACTOR}.ppo_micro_batch_size=many"]).wrong


SETTLED = [
    ("ppo", f"{ROLLOUT}.agent.num_workers=8", "event loop"),
    ("ppo", "trainer.use_legacy_worker_impl=disable", "one kind of worker"),
    ("ppo", "reward.num_workers=8", "reward_manager"),
    ("ppo", f"{CORRECTION}.bypass_mode=False", "so anyway"),
    ("ppo", "+data.gen_batch_size=1024", "so anyway"),
    ("ppo", "+reward_model.reward_kwargs.max_resp_len=512", "so anyway"),
    ("ppo", "+reward_model.reward_kwargs.overlong_buffer_cfg.log=False", "always logged"),
    ("ppo", f"{ACTOR}.rollout_n=1", "so anyway"),
    ("ppo", f"{ACTOR}.profiler.enable=False", "so anyway"),
    ("ppo", f"{ROLLOUT}.quantization=null", "so anyway"),
    ("ppo", "model_engine=dp", "so anyway"),
    ("sft", "engine=fsdp", "so anyway"),
    ("sft", "optim=fsdp", "so anyway"),
    ("sft", "trainer.default_hdfs_dir=null", "so anyway"),
    ("sft", "checkpoint.load_contents=[model,optimizer,extra,hf_model]", "so anyway"),
    ("generate", "rollout.load_format=auto", "not read here"),
]


@pytest.mark.parametrize(("command", "override", "words"), SETTLED, ids=[row[1] for row in SETTLED])
def test_a_name_with_nothing_to_choose_says_so(command: str, override: str, words: str) -> None:
    loaded = preview(command, [override])
    name = override.lstrip("+").partition("=")[0]
    (notice,) = [text for text in loaded.notices if text.startswith(f"{name}=")]
    assert words in notice
    assert loaded.config == preview(command, []).config


REFUSED = [
    ("ppo", f"{CORRECTION}.bypass_mode=True", "old log-probs"),
    ("ppo", "data.gen_batch_size=7", "data.train_batch_size"),
    ("ppo", f"{ACTOR}.tis_imp_ratio_cap=2", "cap"),
    ("ppo", f"{ACTOR}.megatron.tensor_model_parallel_size=2", "strategy=megatron"),
    ("ppo", f"+{ACTOR}.megatron.override_transformer_config.moe_grouped_gemm=True", "strategy=megatron"),
    ("ppo", "ray_kwargs.ray_init._temp_dir=/tmp/x", "Ray"),
    ("ppo", f"{MODEL}.lora.type=dora", "adapters"),
    ("ppo", "+custom_reward_function.reward_kwargs.a=1", "reward function"),
    ("ppo", "global_profiler.tool=nsys", "profiling"),
    ("ppo", "model_engine=megatron", "FSDP"),
    ("sft", "engine=megatron", "FSDP"),
    ("sft", "data.custom_cls.path=a.py", "of your own"),
    ("sft", "data.tools_key=tools", "tools"),
]


@pytest.mark.parametrize(("command", "override", "words"), REFUSED, ids=[row[1] for row in REFUSED])
def test_a_name_that_this_build_cannot_act_on_is_refused(command: str, override: str, words: str) -> None:
    problem = problem_of(command, [override])
    assert problem.key == override.lstrip("+").partition("=")[0]
    assert "is not available in this build" in problem.wrong and words in problem.wrong
    assert problem.expected and problem.fix


def test_megatrons_clip_grad_stays_its_own() -> None:
    config = preview("ppo", ["-cn", "ppo_megatron_trainer", f"{ACTOR}.optim.clip_grad=0.5"]).config
    assert (config.actor_rollout_ref.actor.optim.clip_grad, config.actor_rollout_ref.actor.grad_clip) == (0.5, 1.0)


@shows("data.messages_key", "data.multiturn.enable", command="sft")
def test_naming_a_column_of_conversations_alone_trains_on_them() -> None:
    loaded = preview("sft", ["data.messages_key=talk"])
    assert loaded.config.data.multiturn.enable and any("data.messages_key names" in text for text in loaded.notices)
    for other in ("data.multiturn.enable=False", "data.prompt_key=question"):
        assert not preview("sft", ["data.messages_key=talk", other]).config.data.multiturn.enable

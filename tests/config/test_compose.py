"""Where values come from: presets, YAML files with and without a defaults list, overrides in Hydra's grammar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hone.config import ConfigError, load
from hone.config.load import preview
from hone.config.schema import PPOConfig

ROLLOUT = "actor_rollout_ref.rollout"


def ppo(*argv: str) -> PPOConfig:
    config = preview("ppo", argv).config
    assert isinstance(config, PPOConfig)
    return config


def keys_at_fault(*argv: str, command: str = "ppo") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        preview(command, argv)
    return [problem.key for problem in caught.value.problems]


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_an_existing_key_can_be_set_with_any_sign(sign: str) -> None:
    assert ppo(f"{sign}data.train_batch_size=7").data.train_batch_size == 7


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("data.train_files=[a.parquet,b.parquet]", ["a.parquet", "b.parquet"]),
        ("data.train_files=~/a.parquet", "~/a.parquet"),
        ("data.train_files=[~/a.parquet,/b.parquet]", ["~/a.parquet", "/b.parquet"]),
        ("data.train_files='a b.parquet'", "a b.parquet"),
        ('data.train_files="1"', "1"),
    ],
)
def test_lists_paths_and_quoted_texts_are_read(override: str, value: object) -> None:
    assert ppo(override).data.train_files == value


def test_a_mapping_sets_the_keys_it_names_and_leaves_the_others() -> None:
    loaded = preview("ppo", ["algorithm={gamma:0.9,kl_ctrl:{horizon:5}}"])
    assert (loaded.config.algorithm.gamma, loaded.config.algorithm.lam) == (0.9, 1.0)
    assert (loaded.config.algorithm.kl_ctrl.horizon, loaded.config.algorithm.kl_ctrl.kl_coef) == (5, 0.005)
    assert loaded.user_keys == {"algorithm.gamma", "algorithm.kl_ctrl.horizon"}


def test_free_form_sections_take_any_key() -> None:
    config = ppo(
        f"+{ROLLOUT}.engine_kwargs.vllm.swap_space=4",
        f"{ROLLOUT}.engine_kwargs.sglang.mem_fraction_static=0.5",
        "actor_rollout_ref.actor.optim.override_optimizer_config.fused=True",
        "actor_rollout_ref.model.override_config.attention_dropout=0.1",
        "+actor_rollout_ref.model.override_config.model_config.rope_theta=5.0",
    )
    assert config.actor_rollout_ref.rollout.engine_kwargs.vllm == {"swap_space": 4}
    assert config.actor_rollout_ref.rollout.engine_kwargs.sglang.model_extra == {"mem_fraction_static": 0.5}
    assert config.actor_rollout_ref.actor.optim.override_optimizer_config == {"fused": True}
    assert config.actor_rollout_ref.model.override_config.hf_overrides == {
        "attention_dropout": 0.1, "rope_theta": 5.0,
    }  # fmt: skip


def test_a_removed_key_is_back_at_its_default(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("trainer: {seed: 3, total_epochs: 2}\n")
    loaded = preview("ppo", ["-cp", str(tmp_path), "-cn", "mine", "~trainer.seed"])
    assert (loaded.config.trainer.seed, loaded.config.trainer.total_epochs) == (0, 2)
    assert loaded.user_keys == {"trainer.total_epochs"}
    assert keys_at_fault("~trainer.seed=4") == ["~trainer.seed"]


def test_an_entry_of_a_free_form_section_can_be_removed() -> None:
    key = f"{ROLLOUT}.engine_kwargs.vllm"
    assert ppo(f"{key}.a=1", f"{key}.b=2", f"~{key}.a").actor_rollout_ref.rollout.engine_kwargs.vllm == {"b": 2}
    assert keys_at_fault(f"~{key}.c") == [f"~{key}.c"]


def test_later_overrides_win() -> None:
    assert ppo("trainer.seed=1", "trainer.seed=2").trainer.seed == 2


def test_keys_with_dashes_can_be_set() -> None:
    config = ppo("trainer.controller_nsight_options.cuda-memory-usage=false")
    assert config.trainer.controller_nsight_options.cuda_memory_usage == "false"


def test_interpolations_follow_the_key_they_name_unless_set() -> None:
    config = ppo("data.max_prompt_length=64", "trainer.project_name=a", "trainer.experiment_name=b")
    assert config.actor_rollout_ref.rollout.prompt_length == 64
    assert config.trainer.default_local_dir == "checkpoints/a/b"
    followed = ppo("actor_rollout_ref.actor.ppo_mini_batch_size=8", "critic.ppo_epochs=3")
    assert (followed.critic.ppo_mini_batch_size, followed.critic.ppo_epochs) == (8, 3)
    assert followed.actor_rollout_ref.actor.ppo_epochs == 1


def test_an_override_may_hold_an_interpolation() -> None:
    assert ppo("data.max_response_length=9", "trainer.seed=${data.max_response_length}").trainer.seed == 9


def test_a_section_with_nothing_below_it_keeps_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("data: null\ntrainer:\n  # seed: 3\nalgorithm: {adv_estimator: grpo}\n")
    config = preview("ppo", ["-cp", str(tmp_path), "-cn", "mine", "data.seed=2"]).config
    assert (config.data.seed, config.trainer.seed) == (2, preview("ppo", []).config.trainer.seed)


def test_a_yaml_without_a_defaults_list_lies_over_the_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("data:\n  train_batch_size: 4\nalgorithm: {adv_estimator: grpo}\n")
    argv = [f"--config-path={tmp_path}", "--config-name=mine", "data.seed=1"]
    loaded = preview("ppo", argv)
    assert (loaded.config.data.train_batch_size, loaded.config.algorithm.adv_estimator) == (4, "grpo")
    assert loaded.config.data.max_prompt_length == 512
    assert loaded.user_keys == {"data.train_batch_size", "algorithm.adv_estimator", "data.seed"}


@pytest.mark.parametrize("name", ["mine", "mine.yaml"])
def test_a_config_name_may_be_a_whole_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.yaml").write_text("trainer: {seed: 5}\n")
    assert ppo("--config-name", str(tmp_path / name)).trainer.seed == 5


def test_a_yaml_with_a_defaults_list_is_composed_by_hydra(tmp_path: Path) -> None:
    (tmp_path / "size").mkdir()
    (tmp_path / "size" / "small.yaml").write_text("# @package _global_\ndata: {train_batch_size: 2}\n")
    (tmp_path / "size" / "large.yaml").write_text("# @package _global_\ndata: {train_batch_size: 64}\n")
    text = "defaults:\n  - ppo_trainer\n  - size: small\n  - _self_\ntrainer: {seed: 5}\n"
    (tmp_path / "mine.yaml").write_text(text)
    argv = ["--config-path", str(tmp_path), "--config-name", "mine"]
    loaded = preview("ppo", argv)
    assert (loaded.config.data.train_batch_size, loaded.config.trainer.seed) == (2, 5)
    assert loaded.user_keys == {"data.train_batch_size", "trainer.seed"}
    assert preview("ppo", [*argv, "size=large"]).config.data.train_batch_size == 64


def test_a_yaml_may_start_from_the_megatron_preset(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [ppo_megatron_trainer, _self_]\ntrainer: {seed: 5}\n")
    config = ppo("-cp", str(tmp_path), "-cn", "mine")
    assert (config.critic.strategy, config.trainer.seed) == ("megatron", 5)
    assert config.actor_rollout_ref.actor.optim.optimizer == "adam"


def test_a_preset_can_be_named() -> None:
    assert ppo("--config-name", "ppo_megatron_trainer").actor_rollout_ref.ref.strategy == "megatron"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("defaults: [sft_trainer]\n", "defaults"),
        ("defaults: [nothing_there]\n", "mine.yaml"),
        ("data: [\n", "mine.yaml"),
        ("- 1\n", "mine.yaml"),
        ("3\n", "mine.yaml"),
        ("defaults: 3\n", "defaults"),
        ("defaults: {a: b}\n", "defaults"),
        ("defaults: [[1]]\n", "mine.yaml"),
        ("defaults: [mine]\n", "mine.yaml"),
        ("a: \0\n", "mine.yaml"),
        ("trainer: {seed: 1}\ntrainer: {seed: 2}\n", "mine.yaml"),
        ("trainer: !!python/object:os.system {}\n", "mine.yaml"),
        ("trainer: {seed: '${a'}\n", "mine.yaml"),
        ("a: " + "{b: " * 300 + "1" + "}" * 300, "mine.yaml"),
    ],
)
def test_a_file_that_cannot_be_composed_is_one_clear_error(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    (key,) = keys_at_fault("-cp", str(tmp_path), "-cn", "mine")
    assert fault in key


def test_a_file_that_is_no_text_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"trainer: \xe9\xff\n")
    assert keys_at_fault("-cp", str(tmp_path), "-cn", "mine") == [str(tmp_path / "mine.yaml")]


def test_a_folder_and_a_link_to_itself_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    for name in ("folder", "loop"):
        assert keys_at_fault("-cp", str(tmp_path), "-cn", name) == [name]


def test_a_missing_file_is_reported_with_the_names_that_exist(tmp_path: Path) -> None:
    (tmp_path / "math.yaml").write_text("trainer: {seed: 5}\n")
    with pytest.raises(ConfigError, match=r"did you mean math\?"):
        preview("ppo", ["-cp", str(tmp_path), "-cn", "maths"])


@pytest.mark.parametrize(
    "argv", [["--foo"], ["-cn"], ["-cp", "/tmp"], ["-cn", "sft_trainer"], ["-cp", "~nobody_here", "-cn", "a"]]
)
def test_wrong_flags_are_refused(argv: list[str]) -> None:
    assert len(keys_at_fault(*argv)) == 1


UNREADABLE = (
    "a.b=(", "data.train_batch_size=1,2", "optim@trainer=1", "a/b=1", "nonsense", "=1", "~", "+",
    "trainer.seed=" + "9" * 5000, "trainer.seed=" + "(" * 300,
)  # fmt: skip


@pytest.mark.parametrize("override", UNREADABLE, ids=lambda text: text[:20])
def test_what_is_not_an_override_is_reported_as_it_was_written(override: str) -> None:
    assert keys_at_fault(override) == [override]


@pytest.mark.parametrize("command", ["ppo", "sft", "generate", "eval"])
def test_a_written_configuration_loads_as_the_same_one(
    command: str, runnable: dict[str, list[str]], tmp_path: Path
) -> None:
    argv = runnable[command]
    if command == "ppo":
        argv = [*argv, "actor_rollout_ref.actor.ppo_micro_batch_size=4", "algorithm.rollout_is=True"]
    first = load(command, argv)
    (tmp_path / "written.yaml").write_text(first.to_yaml())
    assert load(command, ["-cp", str(tmp_path), "-cn", "written"]).config == first.config


def test_a_loaded_configuration_is_read_only() -> None:
    config: Any = ppo()
    with pytest.raises(ValueError, match="frozen"):
        config.trainer.seed = 3

"""`hone config explain`: what is known about a key, and that it is true."""

from __future__ import annotations

import ast
import textwrap

import pytest

from hone.config.explain import answer, related
from hone.config.names import NAMES
from hone.config.presets import DEFAULT_PRESET, PRESETS
from hone.config.readers import readers, reads_in
from hone.config.schema.walk import document, knows
from hone.config.support import NOT_BUILT
from hone.errors import UserError

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
LEAVES = [
    (command, key)
    for command, preset in DEFAULT_PRESET.items()
    for key, doc in document(PRESETS[preset].schema).items()
    if not doc.section
]
# Keys that no module reads: settings of engines that are not built, of which a run that sets them says that they rest.
RESTING = {
    ("eval", "data.prompt_key"),
    *(("ppo", f"{ROLLOUT}.{name}") for name in ("mode", "calculate_log_probs")),
    ("ppo", "data.return_raw_chat"),
    ("ppo", f"{ROLLOUT}.engine_kwargs.sglang.attention_backend"),  # handed on with all others
}  # fmt: skip


def facts(command: str, key: str) -> dict[str, str]:
    """{label: text} of an explanation."""
    lines = answer(command, key).splitlines()[2:]
    return dict(line.strip().split(": ", 1) for line in lines)


def test_a_key_is_explained_with_its_bounds_default_and_readers() -> None:
    found = facts("ppo", f"{ACTOR}.clip_ratio_low")
    assert found["accepts"] == "a number > 0 and <= 1, or null" and found["default"] == "null"
    assert found["read by"] == "hone.workers.actor" and f"{ACTOR}.clip_ratio" in found["related"]


def test_a_key_that_follows_another_says_so_and_so_does_the_other() -> None:
    assert facts("ppo", f"{ROLLOUT}.prompt_length")["default"] == "that of data.max_prompt_length, which is 512"
    assert f"{ROLLOUT}.prompt_length" in facts("ppo", "data.max_prompt_length")["related"]


@pytest.mark.parametrize("command", DEFAULT_PRESET)
def test_every_value_that_this_build_refuses_is_named_with_the_reason(command: str) -> None:
    docs = document(PRESETS[DEFAULT_PRESET[command]].schema)
    for row in NOT_BUILT[command]:
        key = next(key for key, doc in docs.items() if not doc.section and f"{key}.".startswith(f"{row.key}."))
        assert row.reason in facts(command, key)["this build"], row.key


def test_what_a_refused_switch_leaves_idle_says_so() -> None:
    text = facts("ppo", "reward_model.model.path")
    assert "reward_model.enable takes only False" in text["this build"] and "no module" in text["read by"]
    assert "custom_cls.path takes only null" in facts("ppo", "data.custom_cls.name")["this build"]


def test_a_key_that_a_switch_decides_over_names_the_switch() -> None:
    assert facts("ppo", "algorithm.pf_ppo.weight_pow")["rests while"] == "algorithm.use_pf_ppo=False"
    assert "rests while" not in facts("ppo", "algorithm.use_pf_ppo")


def test_other_names_lead_to_the_key_that_counts_and_back() -> None:
    old, new = f"{ACTOR}.ppo_micro_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    assert old in facts("ppo", new)["other names"] and new in facts("ppo", old)["another name of"]
    assert "optim.warmup_steps_ratio" in facts("sft", "optim.lr_warmup_steps_ratio")["other names"]


@pytest.mark.parametrize("command", DEFAULT_PRESET)
def test_every_other_name_is_explained(command: str) -> None:
    schema = PRESETS[DEFAULT_PRESET[command]].schema
    for row in NAMES[command]:
        name = row.old.removesuffix(".*").removesuffix("=")
        if not knows(schema, name):
            assert getattr(row, "new", name) in answer(command, name), name
            assert getattr(row, "reason", "") in answer(command, name), name


def test_the_end_of_a_name_is_enough() -> None:
    assert answer("ppo", "clip_ratio_low") == answer("ppo", f"{ACTOR}.clip_ratio_low")
    assert "critic.optim.lr=1e-05" in answer("ppo", "lr") and f"{ACTOR}.optim.lr=1e-06" in answer("ppo", "lr")


def test_a_section_a_free_form_entry_and_a_misspelt_key_are_answered() -> None:
    section = answer("ppo", "algorithm.kl_ctrl")
    assert section.startswith("algorithm.kl_ctrl\n") and section.count("algorithm.kl_ctrl.") == 4
    assert "any name" in answer("ppo", f"{ROLLOUT}.engine_kwargs.vllm.swap_space")
    with pytest.raises(UserError, match=r"did you mean algorithm.kl_ctrl.target_kl\?"):
        answer("ppo", "algorithm.kl_ctl.target_kl")


def test_relatives_are_followers_mentions_and_namesakes() -> None:
    docs = document(PRESETS["ppo_trainer"].schema)
    assert "trainer.resume_mode" in related(docs, "trainer.resume_from_path")
    assert "critic.optim.lr" in related(docs, f"{ACTOR}.optim.lr")
    assert f"{ACTOR}.ppo_max_token_len_per_gpu" in related(docs, f"{ACTOR}.use_dynamic_bsz")
    assert f"{ACTOR}.optim.lr" not in related(docs, "algorithm.gamma")


@pytest.mark.parametrize(("command", "key"), LEAVES, ids=lambda value: value)
def test_every_key_is_read_or_there_is_a_reason_why_not(command: str, key: str) -> None:
    found = facts(command, key)
    is_read = found["read by"].startswith("hone.")
    of_correction = "rollout_correction." in key or key.startswith(f"{ACTOR}.rollout_is")
    becomes_another = "another name of" in found or of_correction
    assert is_read or becomes_another or "this build" in found or (command, key) in RESTING
    assert not (is_read and (command, key) in RESTING), "take it off the list"


READS = [
    ("def f(actor: ActorConfig):\n return actor.ppo_epochs", {("ActorConfig", "ppo_epochs")}),
    ("def f(config: PPOConfig):\n a, b = config.data, config.critic\n return b.ppo_epochs",
     {("PPOConfig", "data"), ("PPOConfig", "critic"), ("CriticConfig", "ppo_epochs")}),
    ("class A:\n def g(self):\n  return self.c.seed\n def __init__(self, config: PPOConfig):\n  self.c = config.data",
     {("PPOConfig", "data"), ("DataConfig", "seed")}),
    ("class A:\n config: SFTConfig\n def g(self):\n  return self.config.optim.lr",
     {("SFTConfig", "optim"), ("SFTOptimConfig", "lr")}),
    ("def f(c: PPOConfig):\n return c.trains_critic",
     {("PPOConfig", "critic"), ("CriticConfig", "enable"), ("PPOConfig", "algorithm"),
      ("AlgorithmConfig", "adv_estimator")}),
    ("def f(d: EvaluationDataConfig):\n for k in ('response_key', 'x'):\n  getattr(d, k)",
     {("EvaluationDataConfig", "response_key")}),
    ("def f(c: PPOConfig | SFTConfig):\n m = c.model if c else None\n return m.use_liger",
     {("SFTConfig", "model"), ("SFTModelConfig", "use_liger")}),
    ("def f(data):\n return data.seed", set()),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), READS)
def test_reads_are_found_through_names_attributes_and_properties(code: str, expected: set[tuple[str, str]]) -> None:
    found = {(section.__name__, name) for section, name in reads_in(ast.parse(textwrap.dedent(code)))}
    assert found == expected


def test_a_section_that_nobody_reads_hides_what_is_in_it() -> None:
    assert readers("ppo", "critic.model.fsdp_config.fsdp_size") == ["hone.workers.engine_parts"]
    assert readers("ppo", "reward_model.model.fsdp_config.fsdp_size") == []  # the same class, never handed over

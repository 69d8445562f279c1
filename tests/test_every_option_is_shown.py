"""Every option of the algorithms has a test that shows what it does (`@shows`): none is accepted and ignored."""

from __future__ import annotations

import pytest

from hone.config.schema import GenerationConfig, PPOConfig, SFTConfig
from hone.config.schema.base import Node
from hone.config.schema.walk import document
from tests.conftest import SHOWN

ACTOR = "actor_rollout_ref.actor"
SECTIONS = ("algorithm.", f"{ACTOR}.policy_loss.", "reward_model.overlong_buffer.")
KEYS = (
    *(f"{ACTOR}.{name}" for name in (
        "ppo_mini_batch_size", "ppo_epochs", "shuffle", "data_loader_seed", "grad_clip", "clip_ratio", "clip_ratio_low",
        "clip_ratio_high", "clip_ratio_c", "loss_agg_mode", "loss_scale_factor", "entropy_coeff", "use_kl_loss",
        "kl_loss_coef", "kl_loss_type", "use_prefix_grouper",
    )),
    *(f"critic.{name}" for name in (
        "ppo_mini_batch_size", "ppo_epochs", "shuffle", "data_loader_seed", "grad_clip", "loss_agg_mode",
        "cliprange_value",
    )),
    *(f"actor_rollout_ref.rollout.{name}" for name in (
        "use_fire_sampling", "fire_temperature", "dtype", "gpu_memory_utilization", "enforce_eager", "max_num_seqs",
        "max_num_batched_tokens", "max_model_len", "enable_chunked_prefill", "load_format", "free_cache_engine",
        "disable_log_stats", "engine_kwargs.vllm", "verify_weights",
    )),
)  # fmt: skip


def keys_of(schema: type[Node]) -> list[str]:
    return [doc.key for doc in document(schema).values() if not doc.section]


def test_every_option_of_the_algorithms_is_shown(request: pytest.FixtureRequest) -> None:
    if request.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        pytest.skip("only a run over all tests knows all marks")
    leaves = keys_of(PPOConfig)
    wanted = [key for key in leaves if key.startswith(SECTIONS) or key in KEYS]
    assert set(KEYS) <= set(leaves)
    assert not [key for key in wanted if key not in SHOWN]
    known = {*leaves, *keys_of(SFTConfig), *keys_of(GenerationConfig)}
    assert not [key for key in SHOWN if key not in known]

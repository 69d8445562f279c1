"""What needs more than the configuration to be known and less than a model: the user's own functions, agents and tools,
the GPU, and whether a model that is on no disk can be had from the hub."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from hone.config import ConfigError, Loaded, load
from hone.config.conversations import conversation_files, rollout_of
from hone.config.paths import models_of
from hone.config.schema import EvaluationConfig, GenerationConfig, PPOConfig, SFTConfig
from hone.config.schema.base import Node
from hone.errors import UserError
from hone.user_code import load_function

ROLLOUT = "actor_rollout_ref.rollout"


def load_and_check(command: str, argv: Sequence[str], *, here: bool = True) -> Loaded:
    """The configuration, with everything that is wrong with it in one error, this module's findings included.

    here: the run is to be on this machine, which must have the device
    """
    try:
        loaded = load(command, argv)
    except ConfigError as error:
        others = [] if error.config is None else list(findings(error.config, error.faulty, here=here))
        raise ConfigError(command, error.problems, others=others) from error
    if found := list(findings(loaded.config, here=here)):
        raise UserError(found[0]) if len(found) == 1 else ConfigError(command, [], others=found)
    return loaded


def findings(config: Node, faulty: Collection[str] = (), *, here: bool = True) -> Iterator[str]:
    """What a run would fail on, one message each. Imports only what the configuration asks for. Keys that are `faulty`
    already, and the sections that they are in, are left alone."""
    for check in _checks(config, frozenset(faulty), here):
        try:
            check()
        except UserError as mistake:
            yield str(mistake)


def _checks(config: Node, faulty: frozenset[str], here: bool) -> Iterator[Callable[[], object]]:
    for section, path, name in _functions(config):
        if not faulty & {f"{section}.path", f"{section}.name"}:
            yield partial(load_function, path, name, section=section)
    if isinstance(config, (PPOConfig, GenerationConfig)) and not faulty & _of_agents(config):
        yield partial(_check_agents, config)
    if isinstance(config, PPOConfig) and not faulty & {f"{ROLLOUT}.name", f"{ROLLOUT}.engine_kwargs.vllm"}:
        yield partial(_check_engine, config)
    if here and isinstance(config, (PPOConfig, SFTConfig, GenerationConfig)):
        yield partial(_check_device, config)
    for key, path in models_of(config).items():
        if key not in faulty:
            yield partial(_check_model, key, path)


def _of_agents(config: PPOConfig | GenerationConfig) -> set[str]:
    return {f"{rollout_of(config)[1]}.agent.default_agent_loop", *conversation_files(config)}


def _functions(config: Node) -> Iterator[tuple[str, str, str]]:
    """(section, file, name) of each function from a file of the user's."""
    if isinstance(config, (PPOConfig, EvaluationConfig)):
        reward = config.custom_reward_function
        if reward.path is not None:
            yield "custom_reward_function", reward.path, reward.name
    if isinstance(config, PPOConfig):
        sections = {
            "algorithm.custom_estimator": config.algorithm.custom_estimator,
            "actor_rollout_ref.actor.policy_loss.custom_loss": config.actor_rollout_ref.actor.policy_loss.custom_loss,
        }
        for section, own in sections.items():
            if own.path is not None and own.name is not None:
                yield section, own.path, own.name


def _check_agents(config: PPOConfig | GenerationConfig) -> None:
    rollout, _ = rollout_of(config)
    plain = type(rollout.agent).model_fields["default_agent_loop"].default
    named = rollout.agent.agent_loop_path is not None or rollout.agent.default_agent_loop != plain
    if named or rollout.multi_turn.enable:
        from hone.trainers.row_checks import load_conversations

        load_conversations(config)


def _check_engine(config: PPOConfig) -> None:
    """Importing vLLM takes seconds: only for arguments that it alone knows."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name == "vllm" and rollout.engine_kwargs.vllm:
        from hone.rollout.vllm.arguments import check_names

        check_names(rollout.engine_kwargs.vllm)


def _check_device(config: PPOConfig | SFTConfig | GenerationConfig) -> None:
    """Several ranks may run on other machines; the cluster is asked then."""
    if config.trainer.device == "cuda" and config.ranks == 1:
        from hone.models.precision import pick_device

        pick_device("cuda")


def _check_model(key: str, path: str) -> None:
    from hone.models.hub import require_reachable

    require_reachable(key, path)

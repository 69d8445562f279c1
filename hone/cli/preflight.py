"""What needs more than the configuration to be known and less than a model: data files and model folders, the user's
own functions, agents and tools, and the GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from hone.config import ConfigError, Loaded, load
from hone.config.conversations import conversation_files, rollout_of
from hone.config.engines import own_arguments
from hone.config.schema import EvaluationConfig, GenerationConfig, PPOConfig, SFTConfig
from hone.config.schema.base import Node
from hone.errors import UserError
from hone.user_code import load_function

ROLLOUT = "actor_rollout_ref.rollout"
REWARD_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
KWARGS = (f"{ROLLOUT}.engine_kwargs.vllm", f"{ROLLOUT}.engine_kwargs.sglang")


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
    return replace(loaded, notices=[*loaded.notices, *_remarks(loaded.config)])


def _remarks(config: Node) -> Iterator[str]:
    from hone.cli.preflight_data import data_remarks
    from hone.cli.preflight_models import model_remarks

    yield from model_remarks(config)
    yield from data_remarks(config)


def findings(config: Node, faulty: Collection[str] = (), *, here: bool = True) -> Iterator[str]:
    """What a run would fail on, one message each. Imports only what the configuration asks for. Keys that are `faulty`
    already, and the sections that they are in, are left alone."""
    from hone.cli.preflight_data import data_findings
    from hone.cli.preflight_models import model_findings

    for check in _checks(config, frozenset(faulty), here):
        try:
            check()
        except UserError as mistake:
            yield str(mistake)
    yield from data_findings(config, faulty)
    yield from model_findings(config, faulty, here=here)


def _checks(config: Node, faulty: frozenset[str], here: bool) -> Iterator[Callable[[], object]]:
    for section, path, name in _functions(config):
        if not faulty & {f"{section}.path", f"{section}.name"}:
            yield partial(_check_function, path, name, section)
    if isinstance(config, (PPOConfig, GenerationConfig)) and not faulty & _of_agents(config):
        yield partial(_check_agents, config)
    if isinstance(config, PPOConfig) and not faulty & {f"{ROLLOUT}.name", *KWARGS}:
        yield partial(_check_engine, config)
    if here and isinstance(config, (PPOConfig, SFTConfig, GenerationConfig)):
        yield partial(_check_device, config)


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


def _check_function(path: str, name: str, section: str) -> None:
    """Of a reward function also whether it can be called as it will be."""
    function = load_function(path, name, section=section)
    if section != "custom_reward_function":
        return
    try:
        inspect.signature(function).bind(**dict.fromkeys(REWARD_ARGUMENTS))
    except TypeError as problem:
        called = ", ".join(f"{argument}=..." for argument in REWARD_ARGUMENTS)
        raise UserError(f"{section}.name={name}: {path} defines it so that {name}({called}) fails: {problem}") from None
    except ValueError:  # a function without a signature, such as a built-in one
        return


def _check_agents(config: PPOConfig | GenerationConfig) -> None:
    rollout, _ = rollout_of(config)
    plain = type(rollout.agent).model_fields["default_agent_loop"].default
    named = rollout.agent.agent_loop_path is not None or rollout.agent.default_agent_loop != plain
    if named or rollout.multi_turn.enable:
        from hone.trainers.row_checks import load_conversations

        load_conversations(config)


def _check_engine(config: PPOConfig) -> None:
    """Importing an engine takes seconds: only for arguments that it alone knows."""
    own = config.actor_rollout_ref.rollout.agent.custom_async_server
    if own.path is not None and own.name is not None:
        from hone.rollout.custom import server_class

        server_class(own.path, own.name)
    if not (more := own_arguments(config)):
        return
    if config.actor_rollout_ref.rollout.name == "vllm":
        from hone.rollout.vllm.arguments import check_names
    else:
        from hone.rollout.sglang.arguments import check_names
    check_names(more)


def _check_device(config: PPOConfig | SFTConfig | GenerationConfig) -> None:
    """Several ranks may run on other machines; the cluster is asked then."""
    if config.trainer.device == "cuda" and config.ranks == 1:
        from hone.models.precision import pick_device

        pick_device("cuda")

"""Whether model folders hold models, and whether these take sequences as long as the run makes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.config.paths import models_of
from hone.config.schema import GenerationConfig, PPOConfig, SFTConfig
from hone.config.schema.base import Node
from hone.config.schema.model import OverrideConfig
from hone.errors import UserError
from hone.models.folder import check_tokenizer, check_weights, read_config
from hone.models.hub import require_reachable
from hone.models.positions import Reach, reach_of

ACTOR, CRITIC, ROLLOUT = "actor_rollout_ref.model", "critic.model", "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class Lengths:
    """tokens: of the longest sequence; keys: that make it"""

    tokens: int
    keys: tuple[str, ...]

    @property
    def said(self) -> str:
        return f"{' + '.join(self.keys)} = {self.tokens}"


def model_findings(config: Node, faulty: Collection[str], *, here: bool) -> Iterator[str]:
    """One message for each fault. here: the run is to be on this machine, which must have weights and tokenizers too;
    a plan needs only config.json."""
    for key, path in models_of(config).items():
        if key in faulty:
            continue
        for check in _checks(config, key, path, here):
            try:
                check()
            except (UserError, PermissionError) as problem:
                yield str(problem) if str(problem).startswith(key) else f"{key}: {problem}"
    yield from (said for said, fatal in _too_long(config, faulty) if fatal)


def model_remarks(config: Node) -> Iterator[str]:
    """What should be known of models that may run."""
    for key, path in models_of(config).items():
        if not Path(path).expanduser().is_dir():
            yield f"{key}={path} is a name on the hub: the model's files were not looked at"
    yield from (said for said, fatal in _too_long(config, ()) if not fatal)


def _checks(config: Node, key: str, path: str, here: bool) -> Iterator[Callable[[], object]]:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        yield lambda: require_reachable(key, path)
        return
    tokenizer_only = key in ("data.tokenizer", "critic.model.tokenizer_path")
    if not tokenizer_only:
        yield lambda: read_config(folder)
        if (folder / "config.json").is_file() and here:
            yield lambda: check_weights(folder)
    if here and key == _tokenizer_key(config):
        yield lambda: check_tokenizer(folder, own_code=_own_code(config))


def _tokenizer_key(config: Node) -> str:
    """The key of the folder that prompts are rendered with."""
    if isinstance(config, PPOConfig):
        return f"{ACTOR}.path" if config.data.tokenizer is None else "data.tokenizer"
    return "model.partial_pretrain" if isinstance(config, SFTConfig) else "model.path"


def _own_code(config: Node) -> bool:
    """Whether a tokenizer may run code of its own, which may make it of other files."""
    return isinstance(config, (PPOConfig, SFTConfig, GenerationConfig)) and config.data.trust_remote_code


def _too_long(config: Node, faulty: Collection[str]) -> Iterator[tuple[str, bool]]:
    """(message, whether the run cannot work) for each model that is shorter than the run's sequences."""
    longest = _longest(config)
    for key, path, overrides in _language_models(config):
        folder = Path(path).expanduser()
        if longest is None or faulty and {key, *longest.keys} & set(faulty) or not (folder / "config.json").is_file():
            continue
        try:
            reach = reach_of(_overridden(read_config(folder), overrides))
        except UserError:  # found by another check
            continue
        if reach is not None and longest.tokens > reach.tokens:
            fatal = reach.fixed or (_engine(config) == "vllm" and key.startswith(("actor_rollout_ref", "model.path")))
            yield _message(longest, reach, key, folder, fatal=fatal), fatal


def _message(longest: Lengths, reach: Reach, key: str, folder: Path, *, fatal: bool) -> str:
    wrong = f"{longest.said} tokens are more than the {reach.tokens} that {key}={folder} was made for ({reach.said})"
    if not fatal:
        return f"{wrong}: it answers badly beyond them; lower one of the two, or scale its positions in override_config"
    why = "it has no positions beyond them" if reach.fixed else "vLLM refuses more"
    return f"{wrong}, and {why}; expected at most {reach.tokens}; lower {' or '.join(longest.keys)}"


def _longest(config: Node) -> Lengths | None:
    if isinstance(config, SFTConfig):
        return Lengths(config.data.max_length, ("data.max_length",))
    if isinstance(config, PPOConfig):
        lengths, section, limit = _of_training(config), ROLLOUT, config.actor_rollout_ref.rollout.max_model_len
    elif isinstance(config, GenerationConfig):
        keys, rollout = ("rollout.prompt_length", "rollout.response_length"), config.rollout
        lengths, section = Lengths(rollout.prompt_length + rollout.response_length, keys), "rollout"
        limit = rollout.max_model_len
    else:
        return None
    if _engine(config) == "vllm" and limit is not None and limit > lengths.tokens:  # it makes room for so many
        return Lengths(limit, (f"{section}.max_model_len",))
    return lengths


def _of_training(config: PPOConfig) -> Lengths:
    tokens = config.data.max_prompt_length + config.data.max_response_length
    return Lengths(tokens, ("data.max_prompt_length", "data.max_response_length"))


def _language_models(config: Node) -> Iterator[tuple[str, str, OverrideConfig]]:
    """(key, folder, changes to its config.json)"""
    if isinstance(config, PPOConfig):
        actor, critic = config.actor_rollout_ref.model, config.critic.model
        yield f"{ACTOR}.path", actor.path, actor.override_config
        if config.trains_critic and critic.path != actor.path:
            yield f"{CRITIC}.path", critic.path, critic.override_config
    elif isinstance(config, SFTConfig):
        yield "model.partial_pretrain", config.model.partial_pretrain, config.model.override_config
    elif isinstance(config, GenerationConfig):
        yield "model.path", config.model.path, config.model.override_config


def _overridden(config: dict[str, Any], overrides: OverrideConfig) -> dict[str, Any]:
    return {**config, **overrides.hf_overrides}


def _engine(config: Node) -> str:
    if isinstance(config, PPOConfig):
        return config.actor_rollout_ref.rollout.name
    return config.rollout.name if isinstance(config, GenerationConfig) else ""

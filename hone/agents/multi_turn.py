"""What conversations of several turns need beside the engine: tools, interactions, formats and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hone.agents.formats import Parser, Said, parser_of
from hone.agents.interactions import Interaction, load_interactions
from hone.agents.named import load_named
from hone.agents.rendering import Rendering
from hone.agents.row_arguments import interaction_arguments, tool_arguments
from hone.agents.tools import Tool, ToolLimits, load_tools
from hone.config.schema.generation import GenerationRolloutConfig
from hone.config.schema.rollout import MultiTurnConfig, RolloutConfig
from hone.data.prompts import Sample
from hone.errors import UserError
from hone.rollout.interface import Completion

SECTION = "actor_rollout_ref.rollout.multi_turn"


@dataclass(frozen=True)
class Surroundings:
    """Who answers the model. `after_turn` is the user's completion_callback, `section` where all this is configured."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    interactions: Mapping[str, Interaction] = field(default_factory=dict)
    after_turn: Callable[..., Any] | None = None
    section: str = SECTION

    @property
    def schemas(self) -> list[dict[str, Any]] | None:
        """For the chat template; None where there is no tool."""
        return [{"type": "function", "function": tool.schema} for tool in self.tools.values()] or None

    def check_row(self, sample: Sample) -> None:
        """Raises UserError for a row that names a tool or an interaction that there is not."""
        tool_arguments(sample, self.tools)
        interaction_arguments(sample, self.interactions, self.section)


def load_surroundings(keys: MultiTurnConfig, section: str = SECTION) -> Surroundings:
    """What the files of a configuration name; nothing where multi_turn.enable is false. `section` is the place of the
    keys, for messages."""
    if not keys.enable:
        return Surroundings(section=section)
    tools, users = keys.tool_config_path, keys.interaction_config_path
    return Surroundings(
        load_tools(tools, key=f"{section}.tool_config_path") if tools else {},
        load_interactions(users, key=f"{section}.interaction_config_path") if users else {},
        _callback(keys.completion_callback, f"{section}.completion_callback"),
        section,
    )


def _callback(named: str | None, key: str) -> Callable[..., Any] | None:
    if named is None:
        return None
    found = load_named(named, key=key)
    if not callable(found):
        raise UserError(f"{key}={named} is no function")
    return found


@dataclass(frozen=True)
class MultiTurn:
    """`max_turns` of the model in a trajectory. `as_at_inference` renders earlier turns as the template does then,
    `checked` compares the ids with those of the whole conversation."""

    tokenizer: Any
    surroundings: Surroundings
    rendering: Rendering
    parse: Parser | None
    limits: ToolLimits
    max_turns: int
    as_at_inference: bool = False
    checked: bool = True

    @classmethod
    def of(
        cls, rollout: RolloutConfig | GenerationRolloutConfig, tokenizer: Any, section: str = SECTION
    ) -> MultiTurn | None:
        keys = rollout.multi_turn
        if not keys.enable:
            return None
        surroundings = load_surroundings(keys, section)
        longest = rollout.max_model_len or rollout.prompt_length + rollout.response_length
        return cls(
            tokenizer=tokenizer,
            surroundings=surroundings,
            rendering=Rendering(tokenizer, surroundings.schemas),
            parse=_parser(keys, tokenizer, surroundings),
            limits=ToolLimits(
                seconds=keys.tool_timeout,
                calls=keys.max_parallel_calls,
                characters=keys.max_tool_response_length,
                side=keys.tool_response_truncate_side,
            ),
            max_turns=keys.max_turns or max(longest // 3, 1),
            as_at_inference=keys.use_inference_chat_template,
            checked=keys.enable_tokenization_sanity_check,
        )

    def read(self, completion: Completion) -> Said:
        """What a turn says, without its end token."""
        ids = completion.token_ids
        if completion.stop_reason == "stop" and ids and ids[-1] in self.rendering.special:
            ids = ids[:-1]
        text = str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        if self.parse is None:
            return Said(text)
        return self.parse(text, {name: tool.schema or {} for name, tool in self.surroundings.tools.items()})


def _parser(keys: MultiTurnConfig, tokenizer: Any, surroundings: Surroundings) -> Parser | None:
    if not surroundings.tools:
        return None
    template = tokenizer.get_chat_template(tools=surroundings.schemas)
    return parser_of(keys.format, template, key=f"{surroundings.section}.format")

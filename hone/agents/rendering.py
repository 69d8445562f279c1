"""What a chat template writes between two turns of the model. Only that is ever tokenized: sampled tokens stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from hone.data.chat import Message
from hone.errors import UserError

MARK = "honeturnmark"  # stands for the text of a turn; letters only, so that no template changes it
PROBE = "honetoolprobe"


class Rendering:
    """`tools` are the schemas that the template shows to the model, or None."""

    def __init__(self, tokenizer: Any, tools: list[dict[str, Any]] | None) -> None:
        self.tokenizer = tokenizer
        self.tools = tools
        self.special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.special.update(tokenizer.all_special_ids)
        self.special_texts = [tokenizer.convert_ids_to_tokens(i) for i in sorted(self.special)]
        closing = self._encode(self._behind_mark([{"role": "assistant", "content": MARK}], generation=False))
        self.closes_turns = bool(closing) and closing[0] in self.special
        self._check_roles()

    def continuation(self, messages: Sequence[Message], last_token: int) -> list[int]:
        """The ids from the end of a sampled turn, whose last token is `last_token`, over `messages`, which answer it,
        to where the model goes on."""
        ids = self._encode(self._behind_turn(messages))
        return ids[1:] if ids and self._stands_for(last_token, ids[0]) else ids

    def whole(self, messages: Sequence[Message], *, generation: bool) -> str:
        """The text of a conversation as the template renders it at once."""
        return self._render(list(messages), generation)

    def _stands_for(self, sampled: int, closing: int) -> bool:
        """Whether the sampled end token is the one that the template writes there, or stands in its place: models have
        several, and some templates (GLM's) write none, since the next turn's first token is the end token."""
        return sampled == closing or (self.closes_turns and closing in self.special and sampled in self.special)

    def _behind_turn(self, messages: Sequence[Message]) -> str:
        plain: Message = {"role": "assistant", "content": MARK}
        try:
            return self._behind_mark([plain, *messages], generation=True)
        except TemplateError:
            if messages[0]["role"] != "tool":
                raise
        # Some templates (gpt-oss's) take answers of tools behind a call only. What they write to close its arguments
        # belongs to the turn: the rest begins with the first special token.
        function = {"name": messages[0]["name"], "arguments": {"value": MARK}}
        asked = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        text = self._behind_mark([asked, *messages], generation=True)
        starts = [place for token in self.special_texts if (place := text.find(token)) >= 0]
        return text[min(starts, default=0) :]

    def _behind_mark(self, turns: list[Message], *, generation: bool) -> str:
        return self._render([{"role": "user", "content": "u"}, *turns], generation).partition(MARK)[2]

    def _render(self, messages: list[Message], generation: bool) -> str:
        text = self.tokenizer.apply_chat_template(
            messages, tools=self.tools, add_generation_prompt=generation, tokenize=False
        )
        return str(text).encode("utf-8", "replace").decode()  # half a character, \ud800, has no tokens

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _check_roles(self) -> None:
        """Raises UserError for a template that has no place for what is going to be said."""
        for role in ("tool", "user") if self.tools else ("user",):
            message = {"role": role, "content": PROBE, "name": "probe", "tool_call_id": "call00000"}
            try:
                text, reason = self._behind_turn([message]), "its content is left out"
            except (TemplateError, TypeError) as problem:
                text, reason = "", str(problem)
            if PROBE not in text:
                raise UserError(
                    f"the model's chat template has no place for a message of the role {role} behind a turn of the "
                    f"assistant ({reason}): choose a model that was trained on tools, or give it a template that has"
                )

"""Stop strings: whether a completion's text contains one, without decoding the whole of it at every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

BROKEN = "\ufffd"  # what decoders write for bytes that are not a whole character
MARGIN = 8  # characters: more than decoding from the middle may change at the beginning
STRINGS_KEPT = 64


class StopStrings:
    """Asked after every token of a completion, says at which its text first contains one of the strings.

    Only the end of the text is decoded, and only where the last token may complete a string: where its own text has
    the last character of one or a part of a character. Tokens are looked at once each.

    decode: token ids -> text, special tokens included
    """

    def __init__(self, strings: tuple[str, ...], decode: Callable[[Sequence[int]], str]) -> None:
        self.strings = strings
        self.decode = decode
        self.longest = max(len(string) for string in strings)
        self._endings = {string[-1] for string in strings}
        self._tokens: dict[int, str] = {}  # the text of a token alone

    def ended(self, token_ids: Sequence[int]) -> bool:
        """Whether the text contains a string, for a completion that contained none without its last token."""
        last = self._alone(token_ids[-1])
        if not self._may_complete(last):
            return False
        text = self._end(token_ids, self.longest + len(last) + MARGIN)
        return any(string in text for string in self.strings)

    def _may_complete(self, last: str) -> bool:
        # A decoder may leave out the space at the beginning of a text, which may be all that a token is.
        return not last or BROKEN in last or " " in self._endings or not self._endings.isdisjoint(last)

    def _end(self, token_ids: Sequence[int], characters: int) -> str:
        """At least so many characters of the text's end, or all of it; never from the middle of a character."""
        count = self.longest + 1
        while True:
            while count < len(token_ids) and BROKEN in self._alone(token_ids[-count]):
                count += 1
            text = self.decode(token_ids[-count:])
            if len(text) >= characters or count >= len(token_ids):
                return text
            count *= 2

    def _alone(self, token: int) -> str:
        if token not in self._tokens:
            self._tokens[token] = self.decode([token])
        return self._tokens[token]


class StopReader:
    """Makes the StopStrings of an engine's requests; requests with equal strings share what was learned of tokens.

    tokenizer: a transformers tokenizer; None for an engine that is asked for no strings
    """

    def __init__(self, tokenizer: Any | None) -> None:
        self.tokenizer = tokenizer
        self._kept = lru_cache(STRINGS_KEPT)(self._make)

    def of(self, strings: Sequence[str]) -> StopStrings | None:
        """None where nothing is to be looked for. Raises ValueError for strings that cannot be."""
        return self._kept(tuple(strings)) if strings else None

    def _make(self, strings: tuple[str, ...]) -> StopStrings:
        if "" in strings:
            raise ValueError("a stop string is empty: every text contains it")
        if self.tokenizer is None:
            raise ValueError(f"the engine was made without a tokenizer, so it cannot look for {strings}")
        return StopStrings(strings, self._decode)

    def _decode(self, ids: Sequence[int]) -> str:
        # An array: of a list, transformers checks the type of every id, which takes longer than to decode it.
        array = np.asarray(ids)
        return str(self.tokenizer.decode(array, skip_special_tokens=False, clean_up_tokenization_spaces=False))  # type: ignore[union-attr]

"""How long a sequence may be for a model, read from its config.json: its positions, with their scaling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hone.models.folder import text_sections

NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
# Models whose positions are rows of a table: there is none for a later one.
TABLES = frozenset({"gpt2", "gpt_bigcode", "gpt_neo", "gptj", "codegen", "opt", "biogpt", "openai-gpt"})
EXTENDED = ("yarn", "llama3", "longrope", "proportional")  # max_position_embeddings counts the extension already
BEYOND = ("linear", "dynamic")  # their factor goes beyond max_position_embeddings


@dataclass(frozen=True)
class Reach:
    """tokens: of the longest sequence that the model was made for; fixed: it can compute no longer one
    name: of the number in config.json; scaling: how positions are scaled, "" where they are not
    """

    tokens: int
    name: str
    fixed: bool = False
    scaling: str = ""

    @property
    def said(self) -> str:
        return f"{self.name}, scaled by {self.scaling}" if self.scaling else self.name


def reach_of(config: dict[str, Any]) -> Reach | None:
    """None where the configuration names no limit, as of models without positions.

    transformers reads a factor of linear and dynamic scaling on top of max_position_embeddings, and those of yarn,
    llama3 and longrope on top of original_max_position_embeddings (modeling_rope_utils).
    """
    for section in text_sections(config):
        for name in NAMES:
            limit = section.get(name)
            if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
                fixed = section.get("model_type") in TABLES
                tokens, scaling = max([(limit, ""), *_scaled(section, limit)])
                return Reach(tokens, name, fixed, scaling)
    return None


def _scaled(section: dict[str, Any], limit: int) -> Iterator[tuple[int, str]]:
    for scaling in _scalings(section):
        kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
        if not isinstance(factor, int | float) or isinstance(factor, bool):
            continue
        if kind in BEYOND:
            yield int(limit * factor), str(kind)
        elif kind in EXTENDED:
            original = section.get("original_max_position_embeddings") or scaling.get(
                "original_max_position_embeddings"
            )
            yield int((original if isinstance(original, int) else limit) * factor), str(kind)


def _scalings(section: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One for all layers, or one for each kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        value = section.get(name)
        if isinstance(value, dict):
            yield value
            yield from (below for below in value.values() if isinstance(below, dict))

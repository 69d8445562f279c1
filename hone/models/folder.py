"""What a model folder lacks, as far as its small files and the headers of its weights tell: config.json, weights,
tokenizer. Imports no library of models, so that a configuration is checked in a moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hone.errors import UserError

CONFIG = "config.json"
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
TOKENIZERS = ("tokenizer.*", "vocab.*", "merges.txt", "*piece*.model", "*.bpe.model", "*.tiktoken", "tekken.json")
LENGTH_BYTES = 8  # before a safetensors header: how long it is
LARGEST_HEADER = 10**8  # which safetensors itself allows
COPY = "Copy or download it again"


def read_config(folder: Path) -> dict[str, Any]:
    """The model's config.json. Raises UserError where there is none, or none of a model."""
    file = folder / CONFIG
    if not file.is_file():
        raise UserError(
            f"{folder} is no model: it has no {CONFIG}. Name the folder of a Hugging Face model, with its {CONFIG}, "
            "weights and tokenizer"
        )
    config = _object(file)
    if not config.get("model_type") and not config.get("auto_map"):
        raise UserError(f"{file} names no model_type: expected the {CONFIG} of a Hugging Face model. {COPY}")
    return config


def check_weights(folder: Path) -> None:
    """Raises UserError for weights that are not there, or cut short. Their headers say how long files should be."""
    for name in INDICES:
        if (folder / name).is_file():
            _check_shards(folder, name)
            return
    found = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    if not found and not any(folder.glob("*.gguf")):
        known = " or ".join((*WEIGHTS, *INDICES))
        raise UserError(f"{folder} holds no weights: expected {known}. Copy them there from where the model is whole")
    for file in found[:1]:
        _check_file(file)


def _check_shards(folder: Path, index: str) -> None:
    shards = _object(folder / index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise UserError(f"{folder / index} names no files: expected a weight_map of tensors and files. {COPY}")
    names = sorted(set(map(str, shards.values())))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"{folder} lacks {missing[0]}{others} of the {len(names)} weights files that {index} names. Copy them there"
        )
    for name in names:
        _check_file(folder / name)


def _check_file(file: Path) -> None:
    if file.suffix == ".safetensors" and (fault := _fault_of_safetensors(file)):
        raise UserError(f"the weights file {file} is damaged or cut short: {fault}. {COPY}")
    if not file.stat().st_size:
        raise UserError(f"the weights file {file} is empty. {COPY}")


def _fault_of_safetensors(file: Path) -> str | None:
    """Its header, JSON behind eight bytes with its length, says where each tensor ends."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, LARGEST_HEADER):
            return "its header is not whole"
        try:
            header = json.loads(stream.read(length))
            tensors = [value for name, value in header.items() if name != "__metadata__"]
            end = max((tensor["data_offsets"][1] for tensor in tensors), default=0)
        except (ValueError, AttributeError, KeyError, TypeError, IndexError):
            return "its header cannot be read"
    there = size - LENGTH_BYTES - length
    return f"it holds {there:,} bytes of tensors, and its header names {end:,}" if there < end else None


def check_tokenizer(folder: Path, *, own_code: bool = False) -> None:
    """Raises UserError for a folder without a tokenizer or its chat template. own_code: one that comes with code of its
    own may run it, and may then be made of any files."""
    file = folder / "tokenizer_config.json"
    settings = _object(file) if file.is_file() else {}
    if own_code and "auto_map" in settings:
        return
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZERS):
        raise UserError(
            f"{folder} holds no tokenizer: expected tokenizer.json and tokenizer_config.json, which most models have. "
            "Copy them there from the model that this one was made from"
        )
    if not (settings.get("chat_template") or (folder / "chat_template.jinja").is_file() or _more_templates(folder)):
        raise UserError(
            f"the tokenizer of {folder} has no chat template, and prompts are rendered by it. Use an instruction-tuned "
            "model, or put a chat_template.jinja into the model's folder"
        )


def _more_templates(folder: Path) -> list[Path]:
    """In places that only some models use."""
    return [*folder.glob("chat_template.json"), *folder.glob("additional_chat_templates/*.jinja")]


def _object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{file} is not valid JSON: {problem}. {COPY}") from problem
    if not isinstance(value, dict):
        raise UserError(f"{file} holds {value!r:.40}: expected an object, {{...}}. {COPY}")
    return value


def text_sections(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The sections of a config.json that may describe the language model, its own first."""
    for section in (config.get("text_config"), config):
        if isinstance(section, dict):
            yield section

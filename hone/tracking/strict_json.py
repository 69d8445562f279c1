"""JSON that every reader takes: Python's own writes NaN and infinity as words that JSON does not have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any


def dumps(value: Any, *, indent: int | None = None) -> str:
    """NaN and infinity become null, keys become text, and what JSON does not know is written as text."""
    return json.dumps(_strict(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Integral):  # numpy's numbers among them
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    return str(value)

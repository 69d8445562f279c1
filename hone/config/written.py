"""Values as YAML that OmegaConf, which reads configurations, reads as the same values again."""

from __future__ import annotations

import re
from typing import Any

import yaml

# To YAML 1.1 the text 1e5 is no number; to OmegaConf, as to YAML 1.2, it is one unless it stands in quotes.
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)(\.[\d_]*)?([eE][-+]?\d+)?$|[-+]?\.[\d_]+([eE][-+]?\d+)?$")
_REFERENCE = re.compile(r"(\\*)\$\{")


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that would be read as numbers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))


def as_yaml(value: Any, **options: Any) -> str:
    return yaml.dump(_escaped(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, **options)


def _escaped(value: Any) -> Any:
    """A `${` in a value is text: a backslash before it says so, and those that stand there already count double."""
    if isinstance(value, dict):
        return {name: _escaped(below) for name, below in value.items()}
    if isinstance(value, list):
        return [_escaped(below) for below in value]
    return _REFERENCE.sub(r"\1\1\\${", value) if isinstance(value, str) else value

"""Other names of keys: what verl called a key before, or calls it now, is read as the key that counts here."""

from .generate import EVAL, GENERATE
from .ppo import PPO
from .rows import Divided, Renamed, Row, Settled
from .sft import SFT
from .translate import Translation, Translator

__all__ = [
    "NAMES",
    "Divided",
    "Renamed",
    "Row",
    "Settled",
    "Translation",
    "Translator",
    "chooses_a_group",
    "is_other_name",
]

NAMES: dict[str, tuple[Row, ...]] = {"ppo": PPO, "sft": SFT, "generate": GENERATE, "eval": EVAL}


def is_other_name(command: str, name: str) -> bool:
    """Whether a key, or a section of keys, is one of these names."""
    for row in NAMES[command]:
        if row.old == name or row.old.startswith(f"{name}."):
            return True
        if row.old.endswith(".*") and name.startswith(row.old[:-1]):
            return True
    return False


def chooses_a_group(command: str, name: str) -> bool:
    return any(row.old == f"{name}=" for row in NAMES[command])

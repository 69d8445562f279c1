"""hone trains language models with reinforcement learning; every subpackage is one step of that loop."""

__version__ = "0.1.0"

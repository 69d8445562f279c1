"""hone trains language models with reinforcement learning; every subpackage is one step of that loop."""

import os

# Torch lays large tensors on a CPU in huge pages (it reads this when it first allocates): decoding, which reads the KV
# cache from memory for every token, was about a tenth faster.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"

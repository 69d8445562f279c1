"""The update step packed against padded, and with shared prompts against without, in CPU seconds side by side.

    python benchmarks/packing.py [--threads 1] [--rounds 5]

A random Qwen3 (hidden 128, 2 layers, for shared prompts also 4 and 8: its last layer's MLP computes no prompt, shared
or not), 128 sequences of at most 512 tokens. Fill is the share of a padded micro-batch of 16 rows that holds tokens:
its longest row has 512. Packed micro-batches hold as many tokens as the padded ones have places. Shared prompts: 16
prompts of 128 tokens with 8 responses of 128 tokens each. One optimiser step of the clipped policy loss with entropy.
Seconds are those of all threads, whose waiting for each other would count too: one by default. A round measures every
way once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from hone.algorithms import PolicyLossParams, loss_weights
from hone.batch import Batch
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import ForwardOptions
from hone.workers.objectives import PolicyObjective

LONGEST, ROWS, MICRO_ROWS, VOCABULARY = 512, 128, 16, 512
OBJECTIVE = PolicyObjective("vanilla", PolicyLossParams(), entropy_coeff=0.01, kl_kind=None, kl_coef=0.0)


@dataclass
class Way:
    """One way to run an update, and the seconds it took in each round."""

    step: Callable[[], object]
    seconds: list[float]

    def measure(self) -> None:
        begun = time.process_time()
        self.step()
        self.seconds.append(time.process_time() - begun)


def lengths_of(fill: float) -> list[int]:
    """In each micro-batch one row is of full length; the others spread around the mean that gives `fill`."""
    generator = torch.Generator().manual_seed(0)
    mean = (fill * MICRO_ROWS - 1) / (MICRO_ROWS - 1) * LONGEST
    spread = min(mean - 8, LONGEST - mean)
    others = mean + spread * (2 * torch.rand(ROWS, generator=generator) - 1)
    return [LONGEST if i % MICRO_ROWS == 0 else int(others[i]) for i in range(ROWS)]


def batch_of(ids: list[torch.Tensor], prompts: list[int]) -> Batch:
    """Everything behind the prompts is trained."""
    mask = [[0] * prompt + [1] * (len(row) - prompt) for row, prompt in zip(ids, prompts, strict=True)]
    batch = Batch.from_sequences({"input_ids": ids, "loss_mask": mask}, {"prompt_length": torch.tensor(prompts)})
    generator = torch.Generator().manual_seed(1)
    columns = {
        "old_logprobs": torch.full((batch.num_tokens,), -6.0),
        "advantages": torch.randn(batch.num_tokens, generator=generator),
        "loss_weight": loss_weights(batch["loss_mask"], batch.offsets, "token-mean"),
    }
    return batch.with_tokens(response_mask=batch["loss_mask"], **columns)


def random_rows(lengths: list[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(2, VOCABULARY, (length,), generator=generator) for length in lengths]


def grouped_rows(prompts: int, samples: int, length: int) -> list[torch.Tensor]:
    """Prompts and responses of `length` tokens, `samples` responses to each prompt."""
    starts = random_rows([length] * prompts)
    ends = random_rows([length] * prompts * samples)
    return [torch.cat([starts[i // samples], end]) for i, end in enumerate(ends)]


def way(batch: Batch, micro: MicroBatching, options: ForwardOptions, layers: int = 2) -> Way:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            tie_word_embeddings=True,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    engine = TorchEngine(model, scoring=micro, train=micro, options=options, optimizer=optimizer)
    return Way(lambda: engine.step(batch, OBJECTIVE, training_step=0, mask="loss_mask"), [])


def compare(title: str, slow: Way, fast: Way, rounds: int) -> None:
    for one in (slow, fast):
        one.step()  # warms up
    for _ in range(rounds):
        slow.measure()
        fast.measure()
    ratio = statistics.median(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))
    medians = (statistics.median(one.seconds) for one in (slow, fast))
    print("{:40} {:6.2f} s against {:5.2f} s: {:4.2f} times as fast".format(title, *medians, ratio), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    budget = MicroBatching(max_tokens=2048)
    for fill in (0.25, 0.67):
        lengths = lengths_of(fill)
        batch = batch_of(random_rows(lengths), [length // 2 for length in lengths])
        true_fill = sum(lengths) / (ROWS * LONGEST)
        padded = way(batch, MicroBatching(MICRO_ROWS, padded=True), ForwardOptions(packed=False))
        packed = way(batch, budget, ForwardOptions())
        compare(f"packed, against padded at fill {true_fill:.0%}", padded, packed, options.rounds)
    batch = batch_of(grouped_rows(16, 8, 128), [128] * ROWS)
    for layers in (2, 4, 8):
        alone, shared = (way(batch, budget, ForwardOptions(shared_prompts=share), layers) for share in (False, True))
        compare(f"shared prompts, 1:1 and n = 8, {layers} layers", alone, shared, options.rounds)


if __name__ == "__main__":
    main()

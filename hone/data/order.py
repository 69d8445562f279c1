"""The order in which rows are seen: a pure function of seed and step, so that a resumed run needs no saved state."""

import numpy as np

from hone.errors import UserError

# Seeds are small numbers that users repeat, and numpy takes [0, 0] for 0: without a stream of its own, the order of
# epoch 0 would be the very permutation by which a data set of the same seed was laid out.
ORDER_STREAM = 0x07DE7


def epoch_order(num_rows: int, *, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """[num_rows] the row indices of one epoch; every epoch of a seed has an order of its own."""
    if not shuffle:
        return np.arange(num_rows)
    return np.random.default_rng([ORDER_STREAM, seed, epoch]).permutation(num_rows)


def too_few_rows(batch_size: int, num_rows: int) -> UserError:
    return UserError(
        f"data.train_batch_size={batch_size} is larger than the {num_rows} rows that data.train_files give "
        "(after sampling and filtering): not one full batch. Lower data.train_batch_size or give more rows."
    )


class BatchOrder:
    """Which rows make the batch of a step, with steps counted from 0 over all epochs."""

    def __init__(self, num_rows: int, batch_size: int, *, seed: int, shuffle: bool, drop_last: bool = True) -> None:
        if num_rows == 0 or (drop_last and num_rows < batch_size):
            raise too_few_rows(batch_size, num_rows)
        self.num_rows = num_rows
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.steps_per_epoch = num_rows // batch_size if drop_last else -(-num_rows // batch_size)
        self._epoch = -1
        self._order = np.arange(0)

    def total_steps(self, wanted: int | None, epochs: int) -> int:
        """Of a run of so many epochs, or of `wanted` steps if there is a number."""
        return wanted or epochs * self.steps_per_epoch

    def batch(self, step: int) -> np.ndarray:
        """Row indices of one step: batch_size of them, fewer at an epoch's end without drop_last."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = epoch_order(self.num_rows, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
            self._epoch = epoch
        return self._order[position * self.batch_size : (position + 1) * self.batch_size]

"""`Batches`: the same global batches for any number of ranks; each rank takes its share of each.

For training on p ranks to equal training on one rank, both must see the same samples in the same
order. So the *global* batch is fixed: every rank draws the same permutation of all samples (from
the seed and the number of the epoch), cuts it into the same global batches, and takes its own
contiguous share of each:

    epoch's order   7 2 9 0 | 4 1 8 3 | 6 5          batch_size 4, 10 samples: 3 rounds
    rank 0 of 2     7 2     | 4 1     | 6
    rank 1 of 2         9 0 |     8 3 |   5

Nothing is dropped: the last global batch may be shorter, shares may differ by one sample, and a
rank may get none in a round. Averages over ranks are therefore weighted by samples.
"""

import operator
import weakref
from collections.abc import Iterator

import numpy as np

from tutorial_dl.data.dataset import Batch, Data, share


class Batches:
    """This rank's share of every global batch.

    Args:
        data: All samples, the same on every rank.
        batch_size: Samples per global batch B, over all ranks together.
        seed: Seed of the shuffling; the same on every rank.
        rank, ranks: This rank, and the number of ranks that share each batch.
        shuffle: False keeps the order of `data`.
    """

    def __init__(
        self,
        data: Data,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        shuffle: bool = True,
    ) -> None:
        if operator.index(batch_size) < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if operator.index(seed) < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        share(batch_size, rank, ranks)  # raises ValueError for a rank that does not exist
        self.data = data
        self.batch_size, self.seed = operator.index(batch_size), operator.index(seed)
        self.rank, self.ranks, self.shuffle = rank, ranks, shuffle
        self._begun: weakref.WeakSet[Iterator[Batch]] = weakref.WeakSet()

    def __len__(self) -> int:
        """Number of rounds (global batches) per epoch: the same on every rank."""
        return -(-len(self.data) // self.batch_size)

    @property
    def rounds(self) -> int:
        return len(self)

    def order(self, epoch: int) -> np.ndarray:
        """All sample indices in the order of this epoch, shape (n,): the same on every rank."""
        return np.concatenate([np.arange(0), *self._order(epoch)])

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yield this rank's share of each round; a share without samples has arrays of length 0.

        The first `start` rounds are skipped without being read, so that training that stopped in
        the middle of an epoch continues there.

        Raises:
            ValueError: If the epoch has fewer rounds than `start`.
        """
        if not 0 <= operator.index(start) <= len(self):
            raise ValueError(f"start must be from 0 to {len(self)} (rounds per epoch), got {start}")
        rounds = self.data.read(self._rounds(epoch, start))
        self._begun.add(rounds)
        return rounds

    def samples(self, epoch: int, round: int) -> np.ndarray:
        """The indices of this rank's share of a round."""
        return next(iter(self._rounds(epoch, round)))[0]

    def close(self) -> None:
        """Close epochs that were not read to the end, and the threads that read for them."""
        for rounds in list(self._begun):
            rounds.close()

    def _order(self, epoch: int) -> Iterator[np.ndarray]:
        random = (self.seed, epoch) if self.shuffle else None
        return self.data.order(random, self.batch_size)

    def _rounds(self, epoch: int, start: int) -> Iterator[list[np.ndarray]]:
        """Yield this rank's samples of each round from `start` on, one list per window."""
        skipped = start * self.batch_size
        for window in self._order(epoch):
            whole = [
                window[first : first + self.batch_size]  # a global batch
                for first in range(skipped, len(window), self.batch_size)
            ]
            skipped = max(0, skipped - len(window))
            if whole:
                yield [samples[share(len(samples), self.rank, self.ranks)] for samples in whole]

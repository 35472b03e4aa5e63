"""The order of an epoch for data in files: well shuffled, and yet read in long stretches.

Drawing each sample from anywhere, as for data in memory, costs one seek per sample. Shuffling only
a few neighbours is cheap, but bad if files are sorted by class. So shuffling takes two steps, both
drawn from (seed, epoch) alone, so that all ranks agree on them without messages:

1.  All data are cut into *blocks* of neighbours (about 1 MiB), and the blocks are shuffled.
2.  The sequence is cut into *windows* of K global batches (about 64 MiB). A window of B K samples
    is cut into B *strata* of K neighbours; every batch takes one sample per stratum, at random:

        stratum     0       1       2       3          B = 4 samples per batch, K = 3 batches
        sequence    a b c   d e f   g h i   j k l
        batch 0     b       d       i       k
        batch 1     c       f       g       j          each stratum has an order of its own
        batch 2     a       e       h       l

Any sample may share a batch with any other except its neighbours, which would add least to it. A
batch is in the order of strata, and rank r of p takes samples rB/p to (r+1)B/p of each batch. So it
needs exactly the strata rB/p to (r+1)B/p of the window: one stretch of the sequence, which it reads
once and no other rank reads. For any p, the p ranks together read the files once and each holds 1/p
of a window, while the batches do not depend on p at all.
"""

from collections.abc import Iterator

import numpy as np


def windows(
    first: np.ndarray, length: np.ndarray, window: int, batch_size: int, seed: tuple | None
) -> Iterator[np.ndarray]:
    """Yield the sample indices of an epoch in order, one window at a time.

    Each block has `length` samples from `first` on, shape (blocks,). `window` is in samples, and
    rounded to a multiple of `batch_size`. Without a `seed` the order is that of the files.
    """
    if seed is not None:
        order = np.random.default_rng(seed).permutation(len(first))
        first, length = first[order], length[order]
    ends = np.cumsum(length)
    n = int(length.sum())
    window = max(1, window // batch_size) * batch_size
    for number, start in enumerate(range(0, n, window)):
        places = np.arange(start, min(start + window, n))
        block = np.searchsorted(ends, places, side="right")
        samples = first[block] + places - (ends - length)[block]
        if seed is None:
            yield samples
        else:  # number + 1, because numpy treats (s, 0) as (s,), which shuffled the blocks
            yield mixed(samples, batch_size, np.random.default_rng((*seed, number + 1)))


def mixed(samples: np.ndarray, batch_size: int, random: np.random.Generator) -> np.ndarray:
    """Order `samples` so that each batch takes at most one per stratum, in the order of strata.

    Sizes of strata differ by at most one. If `batch_size` doesn't divide the number of samples, the
    rest of the larger strata forms a last, shorter batch.
    """
    n = len(samples)
    edges = n * np.arange(batch_size + 1) // batch_size
    stratum = np.repeat(np.arange(batch_size), np.diff(edges))
    shuffled = samples[np.lexsort((random.random(n), stratum))]  # within each stratum
    batch = np.arange(n) - edges[stratum]  # the first of each stratum go to batch 0, ...
    return shuffled[np.lexsort((stratum, batch))]

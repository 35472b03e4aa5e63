"""The order of an epoch for data that lie in files: well mixed, and yet read in long stretches.

To draw each sample from anywhere, as for data in memory, means a seek for each. To mix only a few
neighbours is cheap, and bad where files are sorted by class. So the mixing is done in two steps,
both drawn from (seed, epoch) alone, so that all ranks agree on them without a word:

1.  All data are cut into *blocks* of neighbours (about 1 MiB), and the blocks are shuffled.
2.  The sequence is cut into *windows* of K global batches (about 64 MiB). A window of B K samples
    is cut into B *strata* of K neighbours; every batch takes one sample of each stratum, at random:

        stratum     0       1       2       3          B = 4 samples a batch, K = 3 batches
        sequence    a b c   d e f   g h i   j k l
        batch 0     b       d       i       k
        batch 1     c       f       g       j          each stratum in an order of its own
        batch 2     a       e       h       l

Any sample may meet any other but its neighbours, which are the ones it would be least worth to
meet. And as a batch is in the order of strata, rank r of p, whose share of each batch are the
samples rB/p to (r+1)B/p, needs of the window exactly the strata rB/p to (r+1)B/p: one stretch of
the sequence, read once, by no other rank. So p ranks read the files once between them, whatever p,
and each holds 1/p of a window, while the batches do not depend on p at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def windows(
    first: np.ndarray,
    length: np.ndarray,
    window: int,
    batch_size: int,
    seed: tuple[int, ...] | None,
) -> Iterator[np.ndarray]:
    """The samples' numbers in the order of an epoch, a window at a time.

    Args:
        first, length: Of each block, in samples, shape (blocks,).
        window: Samples to mix; made a multiple of `batch_size`, and at least one batch.
        batch_size: Samples of a global batch.
        seed: Of this epoch; None leaves the samples as they lie.
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
        else:  # (number + 1: numpy takes (s, 0) for (s,), which the blocks' order has used)
            yield mixed(samples, batch_size, np.random.default_rng((*seed, number + 1)))


def mixed(samples: np.ndarray, batch_size: int, random: np.random.Generator) -> np.ndarray:
    """`samples` in batches that take at most one of each stratum, in the order of strata.

    Strata are as equal as can be. Where `batch_size` doesn't divide the samples, what is left of
    the larger strata is a last, shorter batch.
    """
    n = len(samples)
    edges = n * np.arange(batch_size + 1) // batch_size
    stratum = np.repeat(np.arange(batch_size), np.diff(edges))
    shuffled = samples[np.lexsort((random.random(n), stratum))]  # within each stratum
    batch = np.arange(n) - edges[stratum]  # the first of each stratum go to batch 0, ...
    return shuffled[np.lexsort((stratum, batch))]

"""Checks of notebook 10, batch normalisation and its friends. `auc` runs on every rank."""

import numpy as np

from tutorial_dl.course.virtual_ranks import patient_team

from . import NotYet, call, call_on_ranks, close, must_have, must_not_be, must_reduce_once

BINS = 10  # scores are 0 ... 9


def auc(answer) -> str:
    """Check the area under the ROC curve of all ranks' samples, computed with one allreduce."""
    team = patient_team()
    rank, size = team.rank, team.size
    shares = [_scores(rank, size) for rank in range(size)]
    scores, labels = (np.concatenate(parts) for parts in zip(*shares, strict=True))
    right = _by_pairs(scores, labels)
    mine = tuple(part.copy() for part in shares[rank])
    found = call_on_ranks(answer, team, *mine)
    hint = "this is a mean of the ranks' areas; it lacks the pairs across ranks"
    some = [(_by_pairs(*share), len(share[1])) for share in shares if len(share[1])]
    areas, counts = np.transpose(some)
    for weights in (None, counts):  # plain, or weighted by samples: both wrong
        must_not_be(found, right, {hint: np.average(areas, weights=weights)}, f"rank {rank}")
    close(found, right, f"rank {rank}: the area", rtol=1e-9)
    must_reduce_once(team, "the area")
    if not all(np.array_equal(*pair) for pair in zip(mine, shares[rank], strict=True)):
        raise NotYet(f"rank {rank}: the area is right, but the input arrays have changed")
    return f"rank {rank}, with {len(mine[1])} of {len(labels)} samples, has {right:.4f}"


def combine(answer) -> str:
    """Check (mean, variance) of the whole, from the ranks' counts, means and variances."""
    random = np.random.default_rng(10)
    # name, samples per rank, dtype, mean, largest error (both in standard deviations)
    cases = [
        ("equal shares", (4, 4), np.float64, 0.0, 1e-12),
        ("shares of 7, 0, 1 and 12", (7, 0, 1, 12), np.float64, 0.5, 1e-12),
        ("float32, where the mean is 4096 standard deviations", (8, 5, 3), np.float32, 2**12, 2e-3),
        ("float64, where it is 2^27", (8, 5, 3), np.float64, 2**27, 1e-6),
    ]
    for what, counts, dtype, mean, error in cases:
        x = mean + random.normal(size=(sum(counts), 3))
        parts = np.split(x, np.cumsum(counts)[:-1])
        means = np.array([part.mean(axis=0) if len(part) else np.zeros(3) for part in parts])
        spreads = np.array([part.var(axis=0) if len(part) else np.zeros(3) for part in parts])
        found = call(answer, np.array(counts), means.astype(dtype), spreads.astype(dtype))
        must_have(found, 2, "two arrays: the mean and the variance")
        close(found[0], x.mean(axis=0), f"{what}: the mean", rtol=1e-7, atol=error)
        within = (np.array(counts)[:, None] * spreads).sum(axis=0) / sum(counts)
        hint = "this is the mean of the variances; the means differ between ranks, too"
        must_not_be(found[1], x.var(axis=0), {hint: within}, what, rtol=1e-3)
        close(found[1], x.var(axis=0), f"{what}: the variance", rtol=error)
    return "right to the last digits, also where the mean is 2^27 standard deviations"


def _scores(rank: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """A rank's scores 0 ... 9 and labels 0 or 1: as many as `rank` says, none on the last rank."""
    samples = 0 if size > 1 and rank == size - 1 else 6 + 5 * rank
    random = np.random.default_rng(rank)
    labels = random.integers(0, 2, samples)
    if samples:
        labels[:2] = 0, 1
    # High scores mean different values on different ranks, as with data that come sorted.
    scores = np.clip(random.integers(0, 5, samples) + 3 * labels + rank, 0, BINS - 1)
    return scores, labels


def _by_pairs(scores: np.ndarray, labels: np.ndarray) -> float:
    """By definition: the fraction of pairs of a 1 and a 0 where the 1 scores higher; ties: half."""
    above = scores[labels == 1][:, None] - scores[labels == 0]  # (ones, zeros)
    return float(((above > 0) + 0.5 * (above == 0)).mean())

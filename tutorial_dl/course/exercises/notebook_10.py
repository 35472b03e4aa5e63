"""Checks of notebook 10, batch normalisation and its friends. `auc` runs on every rank."""

import numpy as np

from tutorial_dl.course.virtual_ranks import patient_team

from . import NotYet, call, call_on_ranks, close, every_rank, must_have, must_not_be, number_of
from .ranks_agree import must_reduce, must_reduce_once

BINS = 10  # scores are 0 ... 9


@every_rank
def auc(answer) -> str:
    """Check the area under the ROC curve of all ranks' samples, computed with one allreduce."""
    team = patient_team()
    rank, size = team.rank, team.size
    shares = [_scores(rank, size) for rank in range(size)]
    scores, labels = (np.concatenate(parts) for parts in zip(*shares, strict=True))
    right = _by_pairs(scores, labels)
    found = call_on_ranks(answer, team, *(part.copy() for part in shares[rank]))
    must_reduce(team)
    found = number_of(found, "the area")
    ties = _by_pairs(scores, labels, ties=0.0), _by_pairs(scores, labels, ties=1.0)
    some = [(_by_pairs(*share), len(share[1])) for share in shares if len(share[1])]
    areas, counts = np.transpose(some)
    for mean in np.mean(areas), np.average(areas, weights=counts):
        mistakes = {
            "a pair with equal scores counts one half; yours count nothing": ties[0],
            "a pair with equal scores counts one half; yours count whole": ties[1],
            "this is 1 - the area: positives should score higher, not lower": 1 - right,
            "this is a mean of the ranks' areas; it lacks the pairs across ranks": mean,
            "only this rank's samples are in it": _by_pairs(*shares[rank]),
        }
        must_not_be(found, right, mistakes)
    close(found, right, "the area")
    must_reduce_once(team, "the area")
    return f"all ranks have the area of all {len(labels)} samples, {right:.4f}"


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
        found = must_have(found, 2, "two arrays: the mean and the variance")
        if np.shape(found[0]) == np.shape(found[1]) == (3,) and counts == (4, 4):
            swapped = (x.var(axis=0), x.mean(axis=0))
            if np.allclose(found, swapped):
                raise NotYet("the two are swapped: the mean comes first")
        plain = "ranks count by their numbers of samples; this is a plain mean over the ranks"
        mistakes = {plain: means.mean(axis=0)}
        close(found[0], x.mean(axis=0), f"{what}: the mean", mistakes, rtol=1e-7, atol=error)
        within = (np.array(counts)[:, None] * spreads).sum(axis=0) / sum(counts)
        between = x.var(axis=0) - within
        mistakes = {
            "this is the mean of the variances; the means differ between ranks, too": within,
            "this is the variance of the means; ranks have variances of their own": between,
            "this is with s - 1 in place of s": x.var(axis=0, ddof=1),
            "this is the sum over the samples; divide by their number": sum(counts) * x.var(axis=0),
            "this is a standard deviation": x.std(axis=0),
        }
        close(found[1], x.var(axis=0), f"{what}: the variance", mistakes, rtol=error)
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


def _by_pairs(scores: np.ndarray, labels: np.ndarray, ties: float = 0.5) -> float:
    """By definition: the fraction of pairs of a 1 and a 0 where the 1 scores higher; ties: half."""
    above = scores[labels == 1][:, None] - scores[labels == 0]  # (ones, zeros)
    return float(((above > 0) + ties * (above == 0)).mean()) if above.size else 0.0

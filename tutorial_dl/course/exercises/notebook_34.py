"""Checks of notebook 34, friends of batch normalisation. `auc` runs on every rank."""

import numpy as np

from tutorial_dl.course.virtual_ranks import patient_team

from . import call_on_ranks, close, every_rank, must_not_be, number_of
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

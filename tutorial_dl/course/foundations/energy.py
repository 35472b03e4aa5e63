"""The speed of gradient energy matching (GEM) on a slope, where the gradient g is constant.

One process with momentum mu finally moves by |m| = eta g / (1 - mu) per step. Let p workers take
turns and commit C each. Between two of its reads a worker then sees the weights move by
|theta - s| = p C: the commits of all others, and its own last one. So it commits
C = kappa |m| - p C, and in a round all workers together move by

    p C = kappa p / (p + 1) |m|

unless C is clipped at `most` times eta g. (The rule is that of Hermans and Louppe, arXiv
1805.08469; this consequence is our own, and tested against the rule.)
"""

from __future__ import annotations


def matched_pace(workers: int, kappa: float, momentum: float, most: float = 5.0) -> float:
    """Return how far all workers together move per round, in units of one process's step |m|.

    Args:
        workers: p, at least 1; they take turns, with one step each per round
        kappa: the energy factor; the speed that is asked for, relative to one process
        momentum: mu of the one process that GEM compares with
        most: largest value of pi, the factor on a worker's own step eta g

    Raises:
        ValueError: workers is below 1

    Example:
        >>> round(matched_pace(3, 1.0, 0.9), 6), round(matched_pace(1, 4.0, 0.9), 6)
        (0.75, 0.5)
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    return min(kappa * workers / (workers + 1), most * workers * (1 - momentum))

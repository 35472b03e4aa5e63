"""The pace of gradient energy matching on a slope, where the gradient g is the same everywhere.

One process with momentum mu moves by eta g / (1 - mu) a step in the end: that is |m|. p workers in
turn, which commit C each, see |theta - s| = p C between two looks of theirs: the commits of all
others, and their own last one. So each commits C = kappa |m| - p C, and in a round all together

    p C = kappa p / (p + 1) |m|

unless C is cut at `most` times eta g. (The rule: Hermans and Louppe, arXiv 1805.08469. What follows
from it here is our own, and tested against the rule.)
"""

from __future__ import annotations


def matched_pace(workers: int, kappa: float, momentum: float, most: float = 5.0) -> float:
    """How far all workers together move in a round, each making one step; one process: 1.

    Parameters
    ----------
    workers : p, 1 or more, in turn.
    kappa : the pace that is asked for.
    momentum : mu of the imagined process.
    most : where pi is cut.

    >>> round(matched_pace(3, 1.0, 0.9), 6), round(matched_pace(1, 4.0, 0.9), 6)
    (0.75, 0.5)
    """
    if workers < 1:
        raise ValueError(f"{workers} workers; 1 or more are needed")
    return min(kappa * workers / (workers + 1), most * workers * (1 - momentum))

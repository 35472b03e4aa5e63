"""Folding, for algorithms that need a power of two of ranks: fold the extra ranks in, then out.

With r ranks too many, the first 2r ranks form pairs: the even rank of a pair sends its vector to
the odd one and receives the result at the end. A power of two of ranks takes part in between,
numbered by `place`.

    p = 6: r = 2      rank   0 --> 1    2 --> 3    4    5
                      place        0          1    2    3

Cost if p is not a power of two: one more message of the whole vector before, and one after.
"""

from .steps import ADDS, IDLE, Steps, receive, send


def folding(ranks: int) -> tuple[int, int]:
    """Return (largest power of two up to `ranks`, number of ranks to fold in)."""
    group = 1 << ranks.bit_length() - 1
    return group, ranks - group


def rank_of(place: int, extra: int) -> int:
    return 2 * place + 1 if place < extra else place + extra


def folded(rank: int, ranks: int, steps) -> Steps:
    """Yield the steps of `rank` around `steps(place, group)`, which number ranks by place."""
    group, extra = folding(ranks)
    in_pair, even = rank < 2 * extra, rank % 2 == 0
    idle = in_pair and even
    place = rank // 2 if in_pair else rank - extra
    if extra:
        yield IDLE if not in_pair else send(rank + 1) if even else receive(rank - 1, ADDS)
    for step in steps(place, group):
        to, source = (-1 if each < 0 else rank_of(each, extra) for each in (step.to, step.source))
        yield IDLE if idle else step._replace(to=to, source=source)
    if extra:
        yield IDLE if not in_pair else receive(rank + 1) if even else send(rank - 1)

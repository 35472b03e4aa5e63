"""Classify spans: how long a rank computes, communicates or waits.

Spans nest, as calls do: time within an inner span counts for the inner one, not the outer one.
"""

from collections.abc import Iterable
from typing import NamedTuple

from numba_kernels.spans import COLLECTIVES, STEP, SUMS, WAITS

Span = tuple[str, int, int]  # name, begin, end in ns

COMPUTING, COMMUNICATING, WAITING = KINDS = ("computing", "communicating", "waiting")
_KINDS = (
    dict.fromkeys([*COLLECTIVES, *STEP, *SUMS, "Team", "push", "pull"], COMMUNICATING)
    | {"update": COMPUTING}
    | dict.fromkeys(WAITS, WAITING)
)


class Row(NamedTuple):
    """One rank: times in ns, on a clock that all rows share."""

    rank: int
    node: str
    begin: int  # of the recording
    end: int
    spans: list[Span]


def kind(name: str) -> str:
    """The kind of a span, one of KINDS.

    A pass that reduces and updates is communication, as it exists because of other ranks' data. A
    span with the user's own name is computing.
    """
    return _KINDS.get(name, COMPUTING)


def flat(spans: Iterable[Span]) -> list[Span]:
    """Flatten nested spans, sorted by begin, to the innermost one at each time, without overlaps.

    A collective inside a longer communication ("reduce") is part of that, and not shown separately.
    """
    pieces: list[Span] = []
    stack: list[tuple[str, int]] = []  # name, end
    at = 0  # the pieces are complete up to here

    def up_to(time: int) -> None:
        nonlocal at
        while stack and at < time:
            name, end = stack[-1]
            if min(end, time) > at:
                pieces.append((name, at, min(end, time)))
            at = max(at, min(end, time))
            if end <= time:
                stack.pop()

    for name, begin, end in spans:
        up_to(begin)
        while stack and stack[-1][1] <= begin:
            stack.pop()
        at = begin
        if stack and kind(name) == COMMUNICATING == kind(stack[-1][0]):
            name = stack[-1][0]
        stack.append((name, end))
    up_to(max((end for _, end in stack), default=0))
    return pieces


def share_out(pieces: Iterable[Span], begin: int, end: int) -> dict[str, float]:
    """Fractions of the time from `begin` to `end` by kind; time outside all spans is computing."""
    times = dict.fromkeys(KINDS, 0)
    for name, first, last in pieces:
        times[kind(name)] += max(0, min(last, end) - max(first, begin))
    whole = max(1, end - begin)
    times[COMPUTING] = whole - times[COMMUNICATING] - times[WAITING]
    return {kind: time / whole for kind, time in times.items()}

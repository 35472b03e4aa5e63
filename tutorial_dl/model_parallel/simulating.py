"""What a schedule costs, without running it: `simulate` a schedule with given times.

For S equal stages, m micro-batches, and F, B, W seconds for one stage and micro-batch, a step takes
m (F + B + W) at least. What it takes beyond is the bubble:

    gpipe, 1f1b    (S - 1) (F + B + W)          interleaved   (S - 1) (F + B + W) / v
    zb_h1          (S - 1) (F + B - W)          where F = B = W and m is at least S

and the fraction of time that ranks are idle is (S - 1) / (m + S - 1) for the first two. (Qi et al.,
arXiv 2401.10241, table 1; Narayanan et al., arXiv 2104.04473, section 2.2.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tutorial_dl.model_parallel.schedules import Action, Schedule
from tutorial_dl.simulate.clock import Processes


class Span(NamedTuple):
    """An action of a rank and when it ran, in seconds from the beginning of the step."""

    rank: int
    action: Action
    begin: float
    end: float


@dataclass(frozen=True)
class Timetable:
    """When each rank did what: predicted, or measured."""

    schedule: Schedule
    spans: tuple[Span, ...]  # of what is computed, and of waits in recv

    @property
    def seconds(self) -> float:
        return max((span.end for span in self.spans), default=0.0)

    def busy(self, rank: int) -> float:
        """Seconds that a rank computes."""
        return sum(s.end - s.begin for s in self.spans if s.rank == rank and not s.action.message)

    @property
    def bubble(self) -> float:
        """The fraction of the ranks' time in which they do not compute."""
        ranks, seconds = len(self.schedule.ranks), self.seconds
        return 1 - sum(map(self.busy, range(ranks))) / (ranks * seconds) if seconds else 0.0

    def __str__(self) -> str:
        """A line per rank, a column per unit of time, if all times are multiples of one."""
        unit = min((s.end - s.begin for s in self.spans if not s.action.message), default=1.0)
        columns = round(self.seconds / unit)
        width = max((len(str(s.action)) for s in self.spans if not s.action.message), default=1)
        lines = []
        for rank in range(len(self.schedule.ranks)):
            cells = ["." for _ in range(columns)]
            for span in self.spans:
                if span.rank == rank and not span.action.message:
                    first, last = round(span.begin / unit), round(span.end / unit)
                    cells[first:last] = [str(span.action)] * (last - first)
            lines.append(f"rank {rank}: " + " ".join(cell.ljust(width) for cell in cells).rstrip())
        return "\n".join(lines)


Times = float | Sequence[float]


def simulate(
    schedule: Schedule, F: Times = 1.0, B: Times = 1.0, W: Times = 1.0, send: float = 0.0
) -> Timetable:
    """When each action would run: a rank does its actions in order, and waits only in a recv.

    Args:
        schedule: One that `check` accepts.
        F, B, W: Seconds for one micro-batch, equal for all stages, or one number per stage.
        send: Seconds that a message is under way; sending keeps no rank busy.
    """
    times: Mapping[str, list[float]] = {
        kind: _per_stage(kind, given, schedule.stages)
        for kind, given in (("F", F), ("B", B), ("W", W))
    }
    spans, _ = played(schedule, lambda rank, a: times[a.kind][schedule.stage(rank, a.chunk)], send)
    return Timetable(schedule, tuple(spans))


def played(
    schedule: Schedule,
    seconds: Callable[[int, Action], float] = lambda rank, action: 0.0,
    send: float = 0.0,
) -> tuple[list[Span], list[int]]:
    """Run any schedule on a simulated clock, as far as it runs: a rank waits only in a recv.

    Returns what took time, and how many actions each rank has done.
    """
    processes, spans, done = Processes(), [], [0] * len(schedule.ranks)

    def process(rank: int, actions: Sequence[Action]) -> Iterator:
        for action in actions:
            begin = processes.clock.now()
            if action.message == "send":
                processes.post((rank, action), send)
            elif action.message == "recv":
                yield schedule.peer(rank, action)
            else:
                yield seconds(rank, action)
            if processes.clock.now() > begin:
                spans.append(Span(rank, action, begin, processes.clock.now()))
            done[rank] += 1

    for rank, actions in enumerate(schedule.ranks):
        processes.start(process(rank, actions))
    processes.run()
    return spans, done


def _per_stage(kind: str, given: Times, stages: int) -> list[float]:
    values = [float(x) for x in given] if isinstance(given, Sequence) else [float(given)] * stages
    if len(values) != stages or min(values) < 0:
        raise ValueError(
            f"{kind} must be a time of at least 0, or one per stage ({stages}), got {given}"
        )
    return values

"""A simulated clock: it jumps from event to event, so waiting takes no time.

    clock = SimulatedClock()
    clock.after(2.0, "an event")
    clock.next(), clock.now()                # ("an event", 2.0)

`Processes` run on it: generators that yield how many seconds they compute, or the key of a message
to wait for. Events at one time keep their order, so a simulation always takes the same course.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from functools import partial
from itertools import count
from typing import Any

from numba_kernels.team.collectives import Clock


class SimulatedClock(Clock):
    """Seconds since the beginning, 0, and the events to come."""

    def __init__(self) -> None:
        self.time = 0.0
        self.events: list[tuple[float, int, Any]] = []
        self._number = count()

    def now(self) -> float:
        return self.time

    def after(self, seconds: float, event: Any) -> None:
        """Let something happen this many seconds from now, after all that happens before."""
        heapq.heappush(self.events, (self.time + seconds, next(self._number), event))

    def due(self) -> bool:
        """Whether an event is to happen now."""
        return bool(self.events) and self.events[0][0] <= self.time

    def next(self) -> Any:
        """The next event; the clock jumps to its time. None if there is none."""
        if not self.events:
            return None
        at, _, event = heapq.heappop(self.events)
        self.time = max(self.time, at)
        return event


class Processes:
    """Processes on a clock, and the messages between them, each known by a key of its own.

    Attributes:
        waiting: Key -> the process that waits for that message.
    """

    def __init__(self, clock: SimulatedClock | None = None) -> None:
        self.clock = clock or SimulatedClock()
        self.waiting: dict[Hashable, Iterator] = {}
        self._there: set[Hashable] = set()

    def start(self, process: Iterator) -> None:
        self.clock.after(0.0, partial(self.resume, process))

    def post(self, key: Hashable, seconds: float = 0.0) -> None:
        """Send a message, which arrives this many seconds from now."""
        self.clock.after(seconds, partial(self._arrive, key))

    def run(self) -> None:
        """Run until nothing happens any more; who waits then, waits for ever."""
        while self.clock.events:
            self.clock.next()()

    def resume(self, process: Iterator) -> None:
        """Let a process go on until it has to wait."""
        for asked in process:
            if isinstance(asked, (int, float)):
                self.clock.after(asked, partial(self.resume, process))
                return
            if asked not in self._there:
                self.waiting[asked] = process
                return
            self._there.remove(asked)

    def _arrive(self, key: Hashable) -> None:
        if key in self.waiting:
            self.resume(self.waiting.pop(key))
        else:
            self._there.add(key)

"""Runs on every engine: what it waits in, and how long its cell computed, talked and waited.

For the latter, a thread looks every 20 ms at what the engine does, as long as somebody asks. So
collectives take no longer, and nothing at all happens while nobody watches the cell.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

EVERY = 0.02  # seconds between two looks
ASKED = 6.0  # seconds after a question for which the thread looks on
LONG = 10 * EVERY  # what takes longer between two looks kept Python's lock, so it was computing


def waits() -> dict:
    """The fields of Doing that tell what this process waits in, if it does."""
    from numba_kernels.team import activity

    wait = activity.wait()
    if wait is None:
        return {}
    making = wait.call.startswith("making ")  # a team: see failure.py and world.py
    return {
        "waits": "Team()" if making else wait.call.partition("(")[0],
        "waited": wait.seconds,
        "number": wait.number,
        "team": wait.ranks,
        "missing": wait.missing,
    }


class Shares:
    """Seconds of the running cell by kind. `look` tells the kind, `calls` changes with each call.

    `clock` and `sleep` are those of the thread, `start` starts it.
    """

    def __init__(
        self,
        look: Callable[[], str],
        calls: Callable[[], int],
        kinds: tuple[str, ...],
        clock=time.monotonic,
        sleep=time.sleep,
        start=lambda run: threading.Thread(target=run, name="shares", daemon=True).start(),
    ):
        self.look, self.calls, self.kinds = look, calls, kinds
        self.clock, self.sleep, self.start = clock, sleep, start
        self.cell = self.before = 0
        self.until, self.looks, self.running = 0.0, False, False
        self.seconds = dict.fromkeys(kinds, 0.0)

    def begin(self) -> None:
        """A cell begins."""
        self.cell, self.running = self.cell + 1, True
        self.before, self.seconds = self.calls(), dict.fromkeys(self.kinds, 0.0)

    def end(self) -> None:
        self.running = False

    def asked(self) -> dict:
        """The fields of Doing about this cell: seconds of each kind, and if it called a team."""
        self.until = self.clock() + ASKED
        if self.running and not self.looks:
            self.looks = True
            self.start(self.run)
        seconds = self.seconds
        used = self.calls() != self.before or any(seconds[kind] for kind in self.kinds[1:])
        return {"shares": [seconds[kind] for kind in self.kinds], "talks": used}

    def run(self) -> None:
        """Look until the cell ends, or nobody has asked for a while."""
        cell, last = self.cell, self.clock()
        while self.running and last < self.until:
            self.sleep(EVERY)
            kind, now = self.look(), self.clock()
            if cell == self.cell:
                passed = now - last
                held = passed - EVERY if passed > LONG else 0.0
                self.seconds[self.kinds[0]] += held
                self.seconds[kind] += passed - held
            cell, last = self.cell, now
        self.looks = False

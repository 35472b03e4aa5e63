"""Runs on every engine: what it waits in, and for how long it computed, talked and waited lately.

For the latter, a thread looks every 20 ms at what the engine does, as long as somebody asks. So
collectives take no longer, and nothing at all happens while nobody watches the cell.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

EVERY = 0.02  # seconds between two looks
ASKED = 6.0  # seconds after a question for which the thread looks on
LOOKS = 500  # as many are kept: 10 s
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
    """What the running cell did in the last seconds. `look` tells the kind of it at a moment.

    `calls` changes with each call of a team.
    """

    def __init__(self, look: Callable[[], str], calls: Callable[[], int], kinds: tuple[str, ...]):
        self.look, self.calls, self.kinds = look, calls, kinds
        self.before, self.until, self.looks, self.running = 0, 0.0, False, False
        self.seen: deque[tuple[str, float]] = deque()  # kinds, seconds since the look before

    def begin(self) -> None:
        """A cell begins."""
        self.running, self.before, self.seen = True, self.calls(), deque(maxlen=LOOKS)

    def end(self) -> None:
        self.running = False

    def asked(self) -> dict:
        """The fields of Doing about this cell: the share of each kind, and if it called a team."""
        self.until = time.monotonic() + ASKED
        if self.running and not self.looks:
            self.looks = True
            threading.Thread(target=self.run, name="shares", daemon=True).start()
        seconds = dict.fromkeys(self.kinds, 0.0)
        for kind, passed in list(self.seen):
            seconds[kind] += passed
        whole = sum(seconds.values())
        used = self.calls() != self.before or any(seconds[kind] for kind in self.kinds[1:])
        shares = [seconds[kind] / whole for kind in self.kinds] if whole else []
        return {"shares": shares, "talks": used}

    def run(self) -> None:
        """Look until the cell ends, or nobody has asked for a while."""
        seen, last = self.seen, time.monotonic()
        while self.running and last < self.until:
            time.sleep(EVERY)
            kind, now = self.look(), time.monotonic()
            passed = now - last
            if passed > LONG:
                seen.append((self.kinds[0], passed - EVERY))
                passed = EVERY
            seen.append((kind, passed))
            seen, last = self.seen, now  # of another cell, perhaps
        self.looks = False

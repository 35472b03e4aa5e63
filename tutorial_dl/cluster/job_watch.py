"""Notice that a cluster's batch job has ended, and why, while a client waits for its engines.

Nothing tells a client when a job is cancelled or reaches its time limit: the controller misses the
engines' heartbeats only after half a minute, because a busy engine may be late. So a thread looks
for signs of an end. Only when there is one it asks the batch system, which must not be asked often.

- Fewer engines than before have a connection to the controller, if that runs on this machine.
- The controller has unregistered an engine.
- An engine's process is gone (process_watch.py, if it runs on this machine).

A node that is cut off takes the batch system minutes to notice. Then the connections, which end
soon (controller.py) and stay lost, and the engines that give no answer are all there is, and enough
for an error.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path

from .batch_job import Job
from .process_watch import Deaths
from .rank_status import ranks

# Seconds after which a connection that was lost counts as lost for good, and an engine that has not
# answered meanwhile as one that has lost it.
CUT_OFF = 2.0
LOOK = 0.5  # seconds between two looks for a sign
ASK_EVERY = 2.5  # seconds between two questions to the batch system while there is a sign ...
LESS_OFTEN = 30.0  # ... and after PATIENCE, if the job runs in spite of it
PATIENCE = 20.0
AT_ONCE = 4.0  # seconds to wait for the batch system once an engine is known to be lost
COMPLETES = 8.0  # seconds that a job's end may take until its reason is known


class JobWatch:
    """Watches the job of a client's cluster in a thread, while the client is connected.

    Attributes:
        why: Why the job has ended, such as "job 31 was cancelled by root", or which engines of a
            job that runs are cut off; None otherwise.
    """

    def __init__(self, job: Job, client, connection: Path, deaths: Deaths, hosts: Sequence[str]):
        self.job, self.client, self.deaths, self.hosts = job, client, deaths, hosts
        self.why: str | None = None
        self._runs = False  # the job runs, but engines are lost
        self._ending = False  # the job has ended, and the reason follows
        self._decided, self._asked = threading.Event(), threading.Event()
        self._engines = len(client.uuids)
        self._port = port(connection)
        self._connections = connections(self._port)  # None: the controller is elsewhere
        self._cut: float | None = None  # since when connections have been lost
        self._questions: dict[int, futures.Future | None] = {}  # sent to the engines then, by rank
        threading.Thread(target=self._watch, name="job", daemon=True).start()

    def lost(self, engine_gone: bool) -> list[str]:
        """A line if the job has ended; `engine_gone`: find out now, because an engine has."""
        if engine_gone and self.why is None:
            self._asked.set()
            self._decided.wait(AT_ONCE)
            if self._ending:
                self._decided.wait(COMPLETES)
        # What ran in the job ended it, if nobody and nothing else did.
        by_itself = re.match(f"{self.job} ended(?! because)", self.why or "")
        if self.why is None or (by_itself and self.deaths.first):
            return []  # still running, or it is known which engine ended first
        new = "gives new engines" if self._runs else "submits a new job"
        return [f"{self.why}: c.restart() {new} (variables are lost)"]

    def _watch(self) -> None:
        since, ask_at = None, 0.0
        while self.client.connected and (self.why is None or self._runs):
            if asked := self._asked.wait(LOOK):  # a cell waits for the answer
                self._asked.clear()
                ask_at = 0.0
            missing = self._missing()
            if self._runs and missing == 0:
                # The engines that were cut off have connected again, so cells may run.
                self.why, self._runs = None, False
                self._decided.clear()
                if not self.deaths.first:
                    self.deaths.happened.clear()
            fewer = len(self.client.uuids) < self._engines
            if not (asked or missing or fewer or self.deaths.happened.is_set()):
                since = None
                continue
            now = time.monotonic()
            since = since or now
            if now >= ask_at or (self._is_cut_off() and not self._runs):
                self._find_out()
                ask_at = time.monotonic() + (ASK_EVERY if now - since < PATIENCE else LESS_OFTEN)

    def _find_out(self) -> None:
        """Ask what is so, and tell the cell that runs if it can't go on."""
        if self.job.state() is None:
            self._ending, end = True, time.monotonic() + COMPLETES
            while (why := self.job.why_ended()) is None and time.monotonic() < end:
                time.sleep(LOOK)
            self.why, self._runs = why or f"{self.job} ended", False
        elif self.why is None:
            self.why = self._cut_off()
        if self.why is not None:
            self._decided.set()
            self.deaths.happened.set()  # ends the cell that runs

    def _missing(self) -> int:
        """How many engines have lost their connection; -1 if the controller has ended."""
        if self._connections is None:
            return 0
        now = connections(self._port)
        missing = max(0, self._connections - now) if now is not None else -1
        if missing <= 0:
            self._cut = None
        elif self._cut is None:
            self._cut = time.monotonic()
            self._questions = {rank: self.client.ask(rank) for rank in self.client.uuids}
        return missing

    def _is_cut_off(self) -> bool:
        return self._cut is not None and time.monotonic() - self._cut > CUT_OFF

    def _cut_off(self) -> str | None:
        """Which engines have no connection any more, though the job runs; None if all have."""
        if self.deaths.first or not self._is_cut_off():
            return None
        asked = self._questions.items()
        silent = [rank for rank, question in asked if not (question and question.done())]
        missing = self._missing()
        if missing <= 0:
            return None
        self._runs = True
        if len(silent) == missing:
            hosts = ", ".join(sorted({self.hosts[rank] for rank in silent}))
            who = f"{ranks(silent)} on {hosts}"
        else:
            who = f"{missing} of {self._engines} engines"
        return f"{who} lost the connection to the controller, though {self.job} runs"


def port(connection: Path) -> int | None:
    """The controller's port for heartbeats, to which every engine is connected."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(json.loads(connection.read_text())["hb_ping"])
    return None


def connections(port: int | None) -> int | None:
    """How many connections a process of this machine has at `port`; None if none listens there."""
    states = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):  # psutil would look at all processes
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state = line.split(maxsplit=4)[:4]
                if int(local.rpartition(":")[2], 16) == port:
                    states.append(state)
    return states.count("01") if "0A" in states else None  # established, listening

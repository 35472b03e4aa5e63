"""Long waits: compare calls between ranks, check that processes are alive, and report stalls.

A rank may compute for an hour while others wait for it; that is not a failure, so a wait has no
time limit by default. But a user should learn which rank is late. A waiting rank tells others which
call it is waiting in, after

    0.25 s   its log2(p) partners. So two ranks that wait in different calls with the same number
             find out, even where neither a board nor a tag shows it.
    10 s     all ranks (up to 64). Then the first of the waiting ranks reports which ranks wait, in
             which call, and for which ranks. This repeats after 20, 40, 80 ... s.

If the process of a rank on this node has ended, a waiting rank raises PeerError within a second.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..allreduce import calls
from ..errors import PeerError, ranks_in_words
from ..shared import board
from .mailbox import WAITS, audience, partners

COMPARE = 0.25  # seconds of waiting before calls are compared
LOOK = 0.5  # seconds between checks of processes
GONE = (None, "Z", "X")  # states of a process that has ended
STOPPED = ("T", "t")  # by a signal, or a debugger
NO_CALL = (-1, 0, 0)  # takes the place of a call while ranks recover


def seconds_to_report() -> float:
    """Return the seconds of waiting before a stall is reported: NUMBA_KERNELS_STALL, or 10."""
    said = os.environ.get("NUMBA_KERNELS_STALL", "10")
    with suppress(ValueError):
        if float(said) > 0:
            return float(said)
    raise ValueError(f"NUMBA_KERNELS_STALL must be a number of seconds above 0, got {said!r}")


REPORT = seconds_to_report()
reports = True  # set to False where a notebook shows what ranks wait in
waiting: list[Watch] = []  # the waits of this process, an inner one after an outer one


class Watch:
    """Watches one wait of a team, in which `look` is called every few milliseconds.

    As a context manager it also makes the wait known to activity.py.
    """

    on_board = False  # whether the wait is for counts on the node's board
    absent: Sequence[int] | None = None  # ranks that it is known to wait for

    def __init__(self, team, among: dict[int, int] | None = None):
        self.team, self.began = team, time.monotonic()  # it may have no mailbox to write to yet
        # While a part of `team` becomes a team: {rank in `team`: rank there}, to heed no others.
        self.among = among
        self.compare_at, self.look_at, self.tell_at = COMPARE, LOOK, REPORT
        self.report_at = None
        self.late: list[int] = []

    def __enter__(self) -> Watch:
        waiting.append(self)
        return self

    def __exit__(self, *error) -> None:
        waiting.remove(self)

    def ranks(self) -> list[int]:
        """Return the ranks that meet in this wait, as MPI.COMM_WORLD numbers them."""
        places = self.team.world_ranks
        return list(places) if self.among is None else [places[rank] for rank in self.among]

    def awaited(self) -> Sequence[int] | None:
        """Return the ranks of the team that this one waits for; None if that is not known."""
        if not self.on_board:
            return self.absent
        counts = self.team.board[:, board.COUNT]
        mine = counts[self.team.place]
        late = [rank for rank, count in zip(self.team.node, counts, strict=True) if count < mine]
        return late or self.absent  # all have come: it waits for another node

    def look(self, waited: float) -> None:
        """Do what is due after `waited` seconds; it may raise MismatchError or PeerError."""
        team = self.team
        if team.size == 1:
            return
        mail = team.letters
        if mail is not None and waited > self.compare_at:
            if self.compare_at == COMPARE and self.among is None:
                mail.post(WAITS, "", team.waits_in, partners(team.rank, team.size))
            self.compare_at += 0.01
            self._compare(mail)
        if waited > self.look_at:
            self.look_at = waited + LOOK
            for rank, pid in team.processes.items():
                if self._heeds(rank) and state(pid) in GONE:
                    raise PeerError(self._named(rank), f"its process {pid} has ended")
        if mail is not None and waited > self.tell_at:
            mail.post(WAITS, "", team.waits_in, self._others())
            self.tell_at, self.report_at = 2 * self.tell_at, waited + COMPARE
        if self.report_at is not None and waited > self.report_at:
            self.report_at = None
            self._report(mail, waited)

    def end(self, waited: float) -> None:
        if self.late:
            names = ranks_in_words(self.late)
            _say(f"{names} came after {waited:.0f} s; {self.team.doing} goes on")

    def warn(self, text: str) -> None:
        _say(text)

    def _compare(self, mail) -> None:
        number, *mine = self.team.waits_in
        for letter in mail.waits.values():
            if letter.call[0] == number and calls.differ(mine, letter.call[1:]):
                raise self.team.mismatch(letter.rank, calls.describe(*letter.call[1:]))

    def _heeds(self, rank: int) -> bool:
        return self.among is None or rank in self.among

    def _named(self, rank: int) -> int:
        return rank if self.among is None else self.among[rank]

    def _others(self) -> list[int]:
        return [rank for rank in audience(self.team.rank, self.team.size) if self._heeds(rank)]

    def _waiting(self) -> list[int]:
        """Return the ranks that are known to wait in this call, this one included."""
        team, mail = self.team, self.team.letters
        here = {r for r, note in mail.waits.items() if note.call[0] == team.waits_in[0]}
        if team.waits_in == NO_CALL:
            here |= mail.recovering.keys() | mail.staying.keys()
        return sorted({team.rank, *filter(self._heeds, here)})

    def unheard(self) -> list[int]:
        """Return the ranks that have not said that they wait, after the first report is due."""
        if self.team.letters is None or self.tell_at == REPORT:
            return []
        return [rank for rank in self._others() if rank not in self._waiting()]

    def starts(self, rank: int) -> bool:
        """Return whether the process of a rank on this machine lives, and so may yet come."""
        pid = self.team.pid(rank)
        return pid is not None and state(pid) not in (*GONE, *STOPPED)

    def _report(self, mail, waited: float) -> None:
        team, waiting, late = self.team, self._waiting(), self.unheard()
        if team.rank != waiting[0] or not late:
            return
        self.late = late
        have = "has" if len(waiting) == 1 else "have"
        _say(
            f"{ranks_in_words(waiting)} {have} waited {waited:.0f} s in {team.doing} for "
            f"{ranks_in_words(late, self._where)}"
        )

    def _where(self, rank: int) -> str:
        """Return what is known about a rank that is late, for a report."""
        said = [self.team.roles[rank]] if rank in self.team.roles else []
        note = self.team.letters.waits.get(rank)
        if note is not None and note.call[0] + 1 == self.team.count:
            said.append(f"last seen waiting in {calls.describe(*note.call[1:])}")
        pid = self.team.pid(rank)
        if pid is not None:
            words = {"T": "stopped by a signal", "t": "in a debugger", "R": "computing"}
            said.append(f"process {pid} is {words.get(state(pid), 'asleep')}")
        return f" ({', '.join(said)})" if said else ""


class HubWatch(Watch):
    """Watches a wait for rank 0 only (star.py). If `idle`, only a stopped rank 0 is reported."""

    def __init__(self, team, idle: bool = False):
        super().__init__(team)
        self.idle, self.absent = idle, [0]

    def look(self, waited: float) -> None:
        team = self.team
        if waited <= self.look_at:
            return
        self.look_at = waited + LOOK
        pid = team.pid(0)
        now = None if pid is None else state(pid)
        if pid is not None and now in GONE:
            raise PeerError(0, f"its process {pid} has ended")
        if waited > self.tell_at and (not self.idle or now in STOPPED):
            self.tell_at, self.late = 2 * waited, [0]
            _say(
                f"rank {team.rank} has waited {waited:.0f} s in {team.doing} for "
                f"{ranks_in_words([0], self._where)}"
            )


def has_ended(pid: int | None) -> bool:
    """Return whether a process has ended; False for None, a process on another machine."""
    return pid is not None and state(pid) in GONE


def state(pid: int) -> str | None:
    """Return Linux's letter for a process's state (R, S, T, Z ...); None if it does not exist."""
    with suppress(OSError):
        # "pid (command) state ...", where the command may contain any character
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return None


def _say(text: str) -> None:
    if reports:
        print(f"stall: {text}", file=sys.stderr, flush=True)

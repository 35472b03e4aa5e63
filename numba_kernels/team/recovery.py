"""Make a team usable again after a failure, without restarting a process.

    rank 0   fails ......... recovers: "I have left generation 7" ---.      | new communicator,
    rank 1   PeerError ..... recovers: "I have left generation 7" ----+---->| board cleared,
    rank 2   PeerError ......................... recovers: "I ..." --'      | generation 8

1. Every rank announces that it has left all calls of this generation, and waits until all ranks
   have done so. From then on no rank reads the board or sends data.
2. Messages still in flight are received and discarded (messages.Flush).
3. The ranks clear their parts of the board and make a new communicator, because a collective of the
   MPI library on the old one may never end. As all ranks take part in making it, each one knows
   afterwards that all parts of the board are cleared.

A rank that is interrupted meanwhile can call `recover` again, which continues where it was. Windows
stay as they are: arrays of `team.empty` remain usable, with the values that the failed call left.
"""

from __future__ import annotations

import time

from ..allreduce import messages
from ..errors import DeadlineError, PeerError, TeamError
from ..jit import mpi_functions as mpi
from ..shared.node_array import AT
from .mailbox import AGAIN, LEFT, RECOVERS, cause_first
from .stall import NO_CALL, Watch, ranks_in_words


def recover(team, seconds: float | None) -> None:
    """See `Team.recover`."""
    mail = team._mailbox
    while True:
        mail.post(RECOVERS)  # again even if posted before: this rank may have been interrupted
        _poll(team, seconds, lambda: others(team) - mail.recovering.keys())
        if team._routes:
            team._flush = team._flush or messages.Flush(team.comm, team._abandoned)
            _poll(team, seconds, team._flush.missing)
            team._flush = None
        mail.next_generation()
        team._failure, team._renews, team.is_cause, team._count = None, False, False, 0
        if not mail.failures:
            break
        # A rank failed while this generation was set up, and is already in the next one.
        letter = min(mail.failures.values(), key=cause_first)
        team.abort(PeerError(letter.rank, letter.text))
    team._set_up(seconds)


def others(team) -> set[int]:
    """Return all ranks but this one."""
    return set(range(team.size)) - {team.rank}


def _poll(team, seconds: float | None, missing) -> None:
    """Wait until no rank is `missing()`; raise PeerError if a missing rank cannot come."""
    mail, started = team._mailbox, time.monotonic()
    team._doing, team._waits_in = "recover()", NO_CALL
    watch = Watch(team)
    try:
        while True:
            mail.collect()
            late = sorted(missing())
            waited = time.monotonic() - started
            if not late:
                break
            for rank in late:
                if rank in mail.ended:
                    raise PeerError(rank, LEFT)
                if mail.fails_again(rank):
                    raise PeerError(rank, mail.again.pop(rank).text)
            if seconds is not None and waited > seconds:
                raise DeadlineError(
                    f"{ranks_in_words(late)} did not call recover() within {seconds:g} s: "
                    "all ranks of a team must call it"
                )
            watch.look(waited)
            time.sleep(min(0.001, waited / 100))
    except BaseException as error:
        team._renews = False
        if not isinstance(error, TeamError):
            mail.post(AGAIN, f"{type(error).__name__}: {error}")
        raise
    watch.end(waited)


def connect(team) -> None:
    """Make the routes of `team` use its current communicator."""
    for link, *_ in team._routes:
        link.handles[messages.COMM] = mpi.handle(team.comm)
        link.words[[messages.AT, messages.POSTED]] = 0


def wipe(team) -> None:
    """Clear this rank's part of the board and the progress of its kernel."""
    if team.board is not None:
        team.board[team.place] = 0
        team._node[AT] = 0

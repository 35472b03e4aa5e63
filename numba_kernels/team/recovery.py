"""Make a team usable again after a failure, without restarting a process.

    rank 0   fails ......... recovers: "I have left generation 7" ---.      | new communicator,
    rank 1   PeerError ..... recovers: "I have left generation 7" ----+---->| board cleared,
    rank 2   PeerError ......................... recovers: "I ..." --'      | generation 8

1. Every rank announces that it has left all calls of this generation, and waits until all have done
   so. From then on no rank reads the board or sends data.
2. The ranks clear their parts of the board. Messages still in flight are received and discarded
   (messages.Flush). Then they make a new communicator (docs/internals.md says why). As all take
   part in making it, each one knows afterwards that all parts of the board are cleared.
3. If the world has failed on any rank, and all its ranks are in the team, it is recovered, too.

A rank that is interrupted meanwhile can call `recover` again, which continues where it was: each
rank discards the messages of communicator 0, makes 1, discards those of 1, makes 2 and so on, in
this order, however often it fails in between. A rank that fails after it has been through does not
disturb the others, which are through soon. Windows stay as they are: arrays of `team.empty` remain
usable, with the values that the failed call left.
"""

import time

from ..errors import DeadlineError, PeerError, TeamError, line_of
from .mailbox import AGAIN, LEFT, RECOVERS, cause_first
from .stall import NO_CALL, Watch


def recover(team, seconds: float | None) -> None:
    mail, others = team.letters, set(range(team.size)) - {team.rank}
    while True:
        mail.post(RECOVERS)  # again even if posted before: this rank may have been interrupted
        _poll(team, seconds, lambda: others - mail.recovering.keys())
        team.next_generation()
        if not mail.failures:
            break
        # A rank failed while this generation was set up, and is already in the next one.
        letter = min(mail.failures.values(), key=cause_first)
        team.abort(letter.error(), heard=True)
    team.set_up(seconds)


def _poll(team, seconds: float | None, missing) -> None:
    """Wait until no rank is `missing()`; raise PeerError if a missing rank cannot come."""
    mail, started = team.letters, time.monotonic()
    team.doing, team.waits_in = "recover()", NO_CALL
    try:
        with Watch(team) as watch:
            while True:
                mail.collect()
                if team.heeds is not None:
                    team.heeds.heed()
                late = sorted(missing())
                waited = time.monotonic() - started
                watch.absent = late
                if not late:
                    break
                for rank in late:
                    if rank in mail.ended:
                        raise PeerError(rank, LEFT)
                    if mail.fails_again(rank):
                        raise mail.again.pop(rank).error()
                if seconds is not None and waited > seconds:
                    raise DeadlineError(team.rank, team.doing, waited, seconds, late)
                watch.look(waited)
                time.sleep(min(0.001, waited / 100))
    except BaseException as error:
        text = line_of(error)
        if team.renews:  # the failure that is being recovered was in an earlier cell
            team.refuse_after(error, text)
        if not isinstance(error, TeamError):
            mail.post(AGAIN, text)
        raise
    watch.end(waited)

"""Go on with the ranks that are left after some have been lost: a new, smaller team.

    rank 0   PeerError ... "0, 2 and 3 stay" ---.                 | a team of
    rank 1   killed                             |   agreed, so .. | these three,
    rank 2   PeerError ........ "0, 2 and 3 stay" --+------------>| now 0, 1, 2
    rank 3   PeerError ... "0, 2 and 3 stay" ---'                 |

1. Every rank tells those that it believes to be left who they are, until all of them say the same.
   A rank is lost when its process has ended (seen on the same machine) or its program has said that
   it ends (LEFT). A rank that learns of a lost one, by itself or from a letter, says so anew. What
   is lost stays lost, so the ranks' answers only shrink, towards the same one.
2. These ranks make a communicator (MPI_Comm_create_group needs no other rank) and a team from it.
   If one more is lost meanwhile, they begin again with the next *attempt*. A rank that had the new
   team already when another one began again comes back to it: it can't have got further than the
   first call of the new team, and learns there of the lost rank, too.

Nobody recovers the old team. Its communicators stay until the program ends: to free them, or to
receive what is still in flight in them (recovery.py), takes all its ranks.
"""

import time
from contextlib import suppress

from ..errors import DeadlineError, PeerError, TeamError
from .mailbox import STAYS
from .stall import NO_CALL, Watch, has_ended
from .world import ranks_in_world, world_of

PAUSE = 0.002  # seconds between looks
_left_behind: list[tuple] = []  # what MPI may still write to


def regroup(team, seconds: float | None):
    """See `Team.regroup`."""
    while (members := _agree(team, seconds)) is not None:
        new = None
        try:
            new = team.subteam(members, team.letters.comm, team.attempt)
            new._agree()  # settles the world's letters of these ranks
            break
        except PeerError:
            if new is not None:
                new.letters = None  # it does not end, it is given up
            team.attempt += 1
    else:
        new, before = regroup(team.origin[0], seconds), team.mates
        new.mates = {before[rank]: own for rank, own in new.mates.items()}
        team.forget()
        return new
    new.origin, team.origin = (team, team.attempt, members), None
    _left_behind.append((team.comm, team.letters, team.routes, team.abandoned, team.lost))
    team.forget()
    return new


def _agree(team, seconds: float | None) -> list[int] | None:
    """Return the ranks that are left, the same on all; None if some of them have no such team."""
    mail, everybody, said = team.letters, range(team.size), None
    lost = set(mail.lost)
    team.doing, team.waits_in = "regroup()", NO_CALL
    started = time.monotonic()
    with Watch(team) as watch:
        while True:
            mail.collect()
            if _begins_again(team):
                return None
            lost |= {rank for rank in everybody if has_ended(team.pid(rank))} | mail.ended.keys()
            for letter in mail.staying.values():
                team.attempt = max(team.attempt, letter.call[0])
                lost |= set(everybody) - _ranks(letter.text)
            if team.rank in lost:
                raise TeamError(
                    f"the other ranks go on without rank {team.rank}, which came too late"
                )
            _never_write_to(team, lost)
            members = [rank for rank in everybody if rank not in lost]
            mine = (team.attempt, 0, 0), _mask(members)
            if said != mine:
                mail.post(STAYS, mine[1], mine[0])
                said = mine
            theirs = {rank: (letter.call, letter.text) for rank, letter in mail.staying.items()}
            late = [rank for rank in members if rank != team.rank and theirs.get(rank) != mine]
            watch.absent = late
            if not late:
                # The failures so far do not count while the new team is made.
                mail.settled |= {
                    rank: mail.heard[rank][0] for rank in members if rank in mail.heard
                }
                return members
            waited = time.monotonic() - started
            if seconds is not None and waited > seconds:
                raise DeadlineError(team.rank, team.doing, waited, seconds, late)
            with suppress(PeerError):  # a process that has ended only now
                watch.look(waited)
            time.sleep(PAUSE)


def _begins_again(team) -> bool:
    """Return whether a rank of `team` is in a later attempt to make it from the team before."""
    if team.origin is None:
        return False
    origin, attempt, members = team.origin
    origin.letters.collect()
    letters = origin.letters.staying
    return any(letters[rank].call[0] > attempt for rank in members if rank in letters)


def _never_write_to(team, lost: set[int]) -> None:
    """MPI would keep each letter to a rank that has ended, in memory of which it has little."""
    if lost - team.letters.lost:
        team.letters.lost |= lost
        team.processes = {r: pid for r, pid in team.processes.items() if r not in lost}
        world = world_of(team.comm)
        if world is not None:
            places = ranks_in_world(team.comm)
            world.letters.lost |= {places[rank] for rank in lost}


def _mask(ranks: list[int]) -> str:
    return hex(sum(1 << rank for rank in ranks))


def _ranks(mask: str) -> set[int]:
    bits = int(mask, 16)
    return {rank for rank in range(bits.bit_length()) if bits >> rank & 1}

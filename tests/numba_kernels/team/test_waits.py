"""Any thread can ask what its process waits in, and for which ranks."""

import threading
import time

import numpy as np
from places import places

PLACES = places("window", "messages")

CALLS = {
    "barrier()": lambda team: team.barrier(),
    "allreduce(float32[3], op='sum', algorithm='naive')": lambda team: team.allreduce(
        np.ones(3, "float32"), algorithm="naive"
    ),
    "split()": lambda team: team.split(0),
}


def until(condition, seconds=100):
    """What this process waits in, once it fulfils the condition (or time is up)."""
    from numba_kernels.team import activity

    end = time.monotonic() + seconds
    while not ((wait := activity.wait()) and condition(wait)) and time.monotonic() < end:
        time.sleep(0.001)
    return wait


def see(call, late, seen):
    """On a thread: see the wait in `call`, once only rank `late` can be missing; let it come."""
    from mpi4py import MPI

    from numba_kernels.team import activity

    noted = activity.waiting
    try:
        seen.append(until(lambda wait: wait.call == call and wait.missing in (None, [late])))
        seen.append(activity.kind())
        activity.waiting = []  # as in a wait that is too short to be noted
        seen.append(activity.kind())
    finally:
        activity.waiting = noted
        MPI.COMM_WORLD.send(None, dest=late)


def kind_here() -> str:
    """What another thread sees this process do, in code of a notebook's user."""
    from numba_kernels.team import activity

    seen = []
    look = threading.Thread(target=lambda: seen.append(activity.kind()))
    look.start()
    look.join()
    return seen[0]


def last_rank_is_late():
    """In a team of all ranks, and in one of some of them in another order."""
    from mpi4py import MPI

    from numba_kernels import Team
    from numba_kernels.team import activity

    world = MPI.COMM_WORLD
    whole = Team()
    # World ranks 3, 1, 0 are this part's ranks 0, 1, 2, so that numbers can't be confused.
    part = whole.split(int(world.rank == 2), key=-world.rank)
    teams = [(whole, [0, 1, 2, 3])] + ([(part, [3, 1, 0])] if world.rank != 2 else [])
    for team, members in teams:
        late = members[-1]
        for name, call in CALLS.items():
            number = team.count + 1
            if world.rank == late:
                for other in members[:-1]:
                    world.recv(source=other)  # it has seen what it waits in
                call(team)
                continue
            seen = []
            look = threading.Thread(target=see, args=(name, late, seen))
            look.start()
            call(team)
            look.join()
            wait, kind, brief = seen
            assert (wait.ranks, wait.number) == (members, number)
            # Only the node's board tells who is late; naive sends messages.
            on_board = len(team.node) == team.size and name == "barrier()"
            assert wait.missing == ([late] if on_board else None)
            assert (kind, brief) == ("waiting", "waiting" if on_board else "talking")
            assert activity.wait() is None and kind_here() == "computing"
        team.barrier()
    whole.barrier()


@PLACES
def test_a_wait_is_known(on_ranks, env):
    on_ranks(4, last_rank_is_late, env=env)


def one_recovers():
    from mpi4py import MPI

    from numba_kernels import Team
    from numba_kernels.team import activity

    world = MPI.COMM_WORLD
    team = Team()
    team.barrier()
    team.abort(ValueError("bad"))
    seen = []

    def see_recovery():
        seen.append(until(lambda wait: wait.missing == [2]))
        world.send(None, dest=2)

    if team.rank == 2:
        team.letters.settle(60)  # all have failed
        for other in range(2):
            while not world.iprobe(source=other):  # it has not yet seen what it waits in
                team.letters.collect()
                time.sleep(0.001)
            world.recv(source=other)
    else:
        look = threading.Thread(target=see_recovery)
        look.start()
    team.recover(120)
    if team.rank != 2:
        look.join()
        assert (seen[0].call, seen[0].missing) == ("recover()", [2])
    assert activity.wait() is None
    team.barrier()


def test_a_recovery_is_a_wait(on_ranks):
    on_ranks(3, one_recovers)

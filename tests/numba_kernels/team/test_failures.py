"""A rank fails, or calls something else: the others raise an error, and the team recovers.

Every fault is provoked on 2, 3 and 4 ranks, in the node's window and over messages, in all calls
one after the other on the same team. After each one the team recovers and has to work.
"""

import os
import signal
import sys
import threading
import time

import clock
import numpy as np
import pytest
from places import places, ranks_at

PLACES = places("window", "messages")
# `make soak` has all pairs of 2 to 4 ranks with both places.
RANKS = ranks_at("3-window", "2-messages", "4-messages")

CALLS = {
    "allreduce": lambda team: team.allreduce(np.ones(1000, "float32")),
    "naive": lambda team: team.allreduce(np.ones(300_000, "float32"), algorithm="naive"),
    "tree": lambda team: team.allreduce(np.ones(300_000, "float32"), algorithm="tree"),
    "ring": lambda team: team.allreduce(np.ones(300_000, "float32"), algorithm="ring"),
    "doubling": lambda team: team.allreduce(
        np.ones(300_000, "float32"), algorithm="recursive_doubling"
    ),
    "halving": lambda team: team.allreduce(np.ones(300_000, "float32"), algorithm="rabenseifner"),
    "in pieces": lambda team: team.allreduce(np.ones(300_000, "float32")),
    "two levels": lambda team: team.allreduce(np.ones(300_000, "float32"), algorithm="two_level"),
    "library": lambda team: team.allreduce(np.ones(300_000, "float32"), algorithm="mpi"),
    "scatter": lambda team: team.reduce_scatter(np.ones(300_000, "float32")),
    "alltoall": lambda team: team.alltoall(np.ones((team.size, 100_000), "float32")),
    "barrier": lambda team: team.barrier(),
    "broadcast": lambda team: team.broadcast(np.ones(10, "float32"), team.size - 1),
    "allgather": lambda team: team.allgather(np.ones(10, "float32")),
    "slices": lambda team: scattered(team, 100_000),
    "empty": lambda team: team.empty(10),
    "split": lambda team: team.split(0),
}


def scattered(team, n):
    x = np.repeat(np.arange(float(team.size)), n)
    return team.scatter(x if team.rank == 0 else None, np.empty(n), [n] * team.size)


def works(team, x):
    """Check that the team reduces correctly, in its window and outside, also over messages."""
    from mpi4py import MPI

    n = team.size
    x[:] = team.rank
    assert (team.allreduce(x) == n * (n - 1) / 2).all()
    for algorithm in ("auto", "ring", "mpi"):
        y = np.full(50_000, team.rank + 1.0)
        assert (team.allreduce(y, algorithm=algorithm) == n * (n + 1) / 2).all()
    assert (team.allgather(np.array([team.rank])).ravel() == np.arange(n)).all()
    # A rank that still waited would hear there of what fails next, though its data are on the way.
    MPI.COMM_WORLD.Barrier()


def rank_fails():
    from numba_kernels import PeerError, Team

    team = Team()
    x = team.empty(70_000)
    for call in CALLS.values():  # compiled before the clock runs
        call(team)
    for turn, (name, call) in enumerate(CALLS.items()):
        culprit = turn % team.size
        if team.rank == culprit:
            team.barrier()
            time.sleep(0.1)  # so that the others do wait
            failed = time.time()
            team.abort(ZeroDivisionError(f"in {name}"))
        else:
            with pytest.raises(PeerError) as caught:
                team.barrier()  # which the culprit may have left long before this rank does
                call(team)
                team.barrier()  # the root of a broadcast only sends, and waits here
            failed = time.time()
            assert caught.value.rank == culprit
            assert f"rank {culprit} failed: ZeroDivisionError: in {name}" in str(caught.value)
            with pytest.raises(PeerError):  # and so does every later call
                team.barrier()
        letters = team.settle()
        assert [letter.rank for letter in letters] == [
            r for r in range(team.size) if r != team.rank
        ]
        assert team.is_cause == (team.rank == culprit)
        team.recover(120)
        works(team, x)
        times = team.allgather(np.array([failed]))
        clock.note("all ranks know of a failure", np.ptp(times))
    assert team.generation == len(CALLS)


@pytest.mark.thorough(but=["3-window", "2-messages"])
@RANKS
def test_a_rank_fails(on_ranks, ranks, env):
    on_ranks(ranks, rank_fails, env=env)


def exchanges_fail():
    """A rank fails in a fused step, and in a step of several passes (with clipping)."""
    from numba_kernels import PeerError, Team
    from numba_kernels.optimizers import Adam
    from numba_kernels.step.step import Step

    team = Team()
    n = 200_000
    for clip in (None, 1.0):
        weights, gradient = team.empty(n), team.empty(n)
        step = Step(team, Adam(0.01), weights, gradient, clip_norm=clip)
        for culprit in range(team.size):
            if team.rank == culprit:
                gradient[:] = 1
                step(1.0, 1)
                team.abort(ZeroDivisionError("in a gradient"))
            else:  # its first step may not be over when the culprit's is
                with pytest.raises(PeerError, match=f"rank {culprit} failed: .*in a gradient"):
                    for _ in range(3):
                        gradient[:] = 1
                        step(1.0, 1)
            team.recover(120)
            step.resume()
            same = team.allgather(weights)
            assert (same == same[0]).all()
            assert (team.allgather(np.array([step.state.step])) == step.state.step).all()
        before = weights.copy()
        gradient[:] = 1
        step(1.0, 1)
        assert (weights < before).all()


@pytest.mark.thorough(but="3-window")
@RANKS
def test_a_rank_fails_in_a_step(on_ranks, ranks, env):
    on_ranks(ranks, exchanges_fail, env=env)


def mismatches():
    """Rank 1 makes another call than the others; every rank's error names both calls."""
    from numba_kernels import MismatchError, Team

    team = Team()
    n = 32_000
    a, b = team.empty(n), team.empty(n)

    def allreduce(n=1000, dtype="float32", op="sum", algorithm="auto"):
        return lambda: team.allreduce(np.ones(n, dtype), op, algorithm)

    x = np.ones(n, "float32")
    pairs = {
        "length": (allreduce(), allreduce(n=1001), "float32[1000]", "float32[1001]"),
        "long": (allreduce(n=10**6), allreduce(n=10**6 + 1), "[1000000]", "[1000001]"),
        "dtype": (allreduce(), allreduce(dtype="float64"), "float32[1000]", "float64[1000]"),
        # 12 bytes are no whole number of float64: a rank of MPICH that receives them as such ends.
        "part": (
            allreduce(3, "float64", algorithm="tree"), allreduce(3, algorithm="tree"),
            "float64[3]", "float32[3]",
        ),
        "op": (allreduce(), allreduce(op="max"), "op='sum'", "op='max'"),
        "root": (
            lambda: (team.broadcast(x, 0), team.barrier()),
            lambda: (team.broadcast(x, 1), team.barrier()),
            "", "",
        ),
        "barrier": (allreduce(), team.barrier, "allreduce(float32[1000]", "barrier()"),
        "gather": (team.barrier, lambda: team.allgather(x), "barrier()", "allgather(float32["),
        "scatter": (
            allreduce(n=n), lambda: team.reduce_scatter(x), "allreduce(", "reduce_scatter(",
        ),
        "empty": (lambda: team.empty(7), team.barrier, "empty(float32[7])", "barrier()"),
        "sizes": (lambda: team.empty(7), lambda: team.empty(8), "float32[7]", "float32[8]"),
        "split": (lambda: team.split(0), allreduce(), "split()", "allreduce(float32[1000]"),
        "algorithms": (
            lambda: (allreduce(algorithm="tree")(), team.barrier()),
            lambda: (allreduce(algorithm="ring")(), team.barrier()), "", "",
        ),
        # A call that only sends ends at once; the rank is found in its next one.
        "only sends": (
            lambda: (team.broadcast(x[:10], 0), team.barrier()),
            lambda: (allreduce(7, algorithm="tree")(), team.barrier()), "", "",
        ),
        "library": (
            lambda: (allreduce(algorithm="mpi")(), team.barrier()), team.barrier,
            "algorithm='mpi'", "barrier()",
        ),
    }  # fmt: skip
    if team.single_node:  # the place of arrays matters only there
        pairs |= {
            "window and copy": (lambda: team.allreduce(a), lambda: team.allreduce(x), "", ""),
            "two windows": (lambda: team.allreduce(a), lambda: team.allreduce(b), "", ""),
            "two places": (
                lambda: team.allreduce(a[: n // 2]), lambda: team.allreduce(a[n // 2 :]), "", "",
            ),
        }  # fmt: skip
    for name, (theirs, mine, others_say, mine_says) in pairs.items():
        with pytest.raises(MismatchError) as caught, clock.seconds("calls that differ are named"):
            (mine if team.rank == 1 else theirs)()
        said = str(caught.value)
        assert said.count("rank ") >= 2 and " called " in said, f"{name}: {said}"
        assert others_say in said and mine_says in said, f"{name}: {said}"
        team.recover(120)
        works(team, b)


@pytest.mark.thorough(but="3-window")
@RANKS
def test_calls_that_differ(on_ranks, ranks, env):
    on_ranks(ranks, mismatches, env=env)


def an_exception_ends_a_rank():
    """If a rank raises outside all calls of the team, no other rank keeps waiting."""
    from numba_kernels import Team

    team = Team()
    if team.rank == 1:
        raise ZeroDivisionError("outside the team")
    team.allreduce(np.ones(5, "float32"))


@pytest.mark.thorough(but="2-messages")
@RANKS
def test_an_exception_ends_a_rank(ranks, env):
    import on_ranks

    done = on_ranks.run(ranks, an_exception_ends_a_rank, env=env)
    assert done.returncode != 0
    said = done.stderr.count("rank 1 failed: ZeroDivisionError: outside the team")
    assert said == ranks - 1, done.stderr


def a_rank_ends():
    """A rank ends without an error while the others wait for it."""
    from numba_kernels import PeerError, Team

    team = Team()
    team.barrier()  # compiled before the clock runs
    team.broadcast(np.ones(10))  # rank 0 may leave this before the others
    if team.rank == 0:
        sys.exit(0)
    left = pytest.raises(PeerError, match="rank 0 failed: it left the team, or its")
    with left, clock.seconds("a rank that has left is noticed"):
        team.barrier()
    with pytest.raises(PeerError, match="rank 0 failed: it left the team, or its"):
        team.recover(120)
    print("noticed", flush=True)


@pytest.mark.thorough
@RANKS
def test_a_rank_ends(on_ranks, ranks, env):
    said = on_ranks(ranks, a_rank_ends, env=env, fresh=True)
    assert said.count("noticed") == ranks - 1


def interrupted():
    """SIGINT in a wait raises KeyboardInterrupt there, and PeerError on the other ranks."""
    from numba_kernels import PeerError, Team

    team = Team()
    x = team.empty(1000)
    works(team, x)
    last = team.size - 1  # never comes
    for _ in range(2):
        took = clock.seconds("Ctrl-C after 0.3 s, all ranks know")
        if team.rank == 0:
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt), took:  # a rank may import pytest only here
                timer.start()
                team.allreduce(x)
        elif team.rank != last:
            with pytest.raises(PeerError, match="rank 0 failed: KeyboardInterrupt"), took:
                team.allreduce(x)
        else:
            assert len(team.settle(120)) == last
        team.recover(120)
        works(team, x)


@RANKS
def test_interrupt(on_ranks, ranks, env):
    on_ranks(ranks, interrupted, env=env)


def too_late():
    from mpi4py import MPI

    from numba_kernels import DeadlineError, Team

    Team().barrier()  # compiled
    team = Team(deadline=0.3)
    if team.rank == 0:
        started = time.monotonic()
        late = pytest.raises(DeadlineError, match=r"rank 0 waited \d+\.\d s in barrier\(\)")
        with late, clock.seconds("a deadline of 0.3 s"):
            team.barrier()
        assert time.monotonic() - started > 0.25
        MPI.COMM_WORLD.send("now", 1)
    else:
        MPI.COMM_WORLD.recv(source=0)
        team.abort(RuntimeError("was late"))
    team.settle()


@PLACES
def test_deadline(on_ranks, env):
    on_ranks(2, too_late, env=env)


def numbers_of_ranks():
    """An error of a part names ranks as the part does, and what other teams hear as they do."""
    from numba_kernels import PeerError, Team
    from numba_kernels.team.failure import abort_all

    team = Team()
    part = team.split(team.rank % 2, key=-team.rank)  # rank 3 is rank 0 of its part
    if team.rank == 3:
        part.abort(ValueError("on rank 3"))
        team.settle(120)
    elif team.rank == 1:
        with pytest.raises(PeerError) as caught:
            part.barrier()
        error = caught.value
        assert (error.rank, error.cause, error.reason) == (0, 0, "ValueError: on rank 3")
        abort_all(error)
    else:
        with pytest.raises(PeerError) as caught:
            team.barrier()
        error = caught.value
        assert error.cause == 1
        assert "rank 1 failed: in another team, rank 0 failed: ValueError: on" in str(error)
    team.recover(120)

    from numba_kernels.errors import numbered

    error = PeerError(1, "it ended", 0)  # rank 1 failed because rank 0 had
    assert str(error) == "rank 1 failed: rank 0 failed: it ended"
    with pytest.raises(PeerError) as caught, numbered([4, 7]):
        raise error
    assert (caught.value.rank, caught.value.cause, caught.value.reason) == (7, 4, "it ended")
    assert str(caught.value) == "rank 7 failed: rank 4 failed: it ended"
    error = error.renumbered({1: 3})  # rank 0 is not in that team
    assert (error.rank, error.cause) == (3, 3)
    assert str(error) == "rank 3 failed: a rank outside the team failed: it ended"


def test_numbers_of_ranks(on_ranks):
    on_ranks(4, numbers_of_ranks)

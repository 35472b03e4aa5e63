"""Messages on their way while ranks compute: they arrive, and failures end the waits for them."""

import numpy as np
import pytest

PLACES = pytest.mark.parametrize("shared", ["1", "0"], ids=["window", "messages"])


def vectors_go_round(dtype):
    """Two exchanges at once, other calls in between, and short and long messages."""
    from numba_kernels import Team
    from numba_kernels.team.exchange import begin

    team = Team()
    right, left = (team.rank + 1) % team.size, (team.rank - 1) % team.size
    for n in (1, 1000, 300_000):
        ours = [np.full(n, 10 * team.rank + k, dtype) for k in range(2)]
        theirs = [np.zeros(n, dtype) for _ in range(2)]
        one = begin(team, ours[0], right, theirs[0], left, n)
        total = team.allreduce(np.ones(3, "float32"))
        other = begin(team, ours[1], left, theirs[1], right, n)
        one.progress()
        one.wait()
        other.wait()
        assert (total == team.size).all()
        assert (theirs[0] == np.asarray(10 * left, dtype)).all()
        assert (theirs[1] == np.asarray(10 * right + 1, dtype)).all()
    # Only from rank 0 to the last one; the others take part in the call.
    last, mine = team.size - 1, np.full(5, team.rank + 7.0)
    to = last if team.rank == 0 else -1
    begin(team, mine.copy(), to, mine, 0 if team.rank == last else -1).wait()
    assert (mine == (7 if team.rank in (0, last) else team.rank + 7)).all()
    team.barrier()


@PLACES
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_exchanges(on_ranks, ranks, shared):
    for dtype in ("float32", "int64") if ranks < 3 else ("float64", "float16"):
        on_ranks(ranks, vectors_go_round, dtype, env={"NUMBA_KERNELS_WINDOW": shared})


def failures_end_them():
    """A rank fails with exchanges on their way, or does not wait, or sends another length."""
    from numba_kernels import MismatchError, PeerError, Team
    from numba_kernels.errors import TeamError
    from numba_kernels.team.exchange import begin

    team = Team()
    right, left = (team.rank + 1) % team.size, (team.rank - 1) % team.size
    x, y, z = (np.zeros(300_000) for _ in range(3))
    for _ in range(2):
        one, other = begin(team, x, right, y, left), begin(team, x, right, z, left)
        if team.rank == 1:
            team.abort(ZeroDivisionError("of rank 1"))
        else:
            with pytest.raises(PeerError, match=r"rank 1 .*of rank 1"):
                one.wait()
                team.barrier()
        team.recover(120)
        with pytest.raises(TeamError, match="begin it again"):
            other.wait()
        with pytest.raises(MismatchError):
            if team.rank == 1:
                team.barrier()
            else:
                begin(team, x, right, y, left).wait()
                team.barrier()
        team.recover(120)
        with pytest.raises(MismatchError):
            short = x[: 200 + team.rank]
            begin(team, short, right, y[:100], left, short.size).wait()
            team.barrier()
        team.recover(120)
        x[:] = team.rank
        begin(team, x, right, y, left).wait()
        assert (y == left).all()
    assert len(team.routes) < 8  # links are used again


@PLACES
@pytest.mark.parametrize("ranks", [2, 3])
def test_failures(on_ranks, ranks, shared):
    on_ranks(ranks, failures_end_them, env={"NUMBA_KERNELS_WINDOW": shared})


def refused():
    from numba_kernels import Team
    from numba_kernels.team.exchange import begin

    team, x = Team(), np.zeros(4)
    for to, y, why in (
        (1 - team.rank, x, "receive from itself"),
        (2, x, "2 is not a rank of this team of 2"),
        (team.rank, x.astype("float32"), "outgoing is float64, but incoming is float32"),
    ):
        with pytest.raises(ValueError, match=why):
            begin(team, x, to, y, team.rank)
    team.barrier()


def test_wrong_arguments(on_ranks):
    on_ranks(2, refused)

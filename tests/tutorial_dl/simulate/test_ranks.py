"""Virtual ranks: the same calls and results as a Team of real ranks, and a clock that can be told.

Both are compared with numpy's sums of what all ranks brought.
"""

from __future__ import annotations

import numpy as np
import pytest

from numba_kernels.allreduce.machine import straight
from numba_kernels.errors import MismatchError, PeerError
from numba_kernels.team.collectives import Collectives
from tutorial_dl.simulate import Processes, SimulatedClock, on_virtual_ranks

REDUCE = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "product": np.prod}


def ten_calls(team):
    """Each call of the protocol, against numpy; small whole numbers, so that sums are exact."""
    rank, size = team.rank, team.size
    assert isinstance(team, Collectives)
    began = team.clock.now()
    for dtype in (np.float32, np.float64, np.float16, np.int64):
        brought = np.array([np.arange(70) % 5 + r + 1 for r in range(size)]).astype(dtype)
        for op, reduce in REDUCE.items():
            expected = reduce(brought, axis=0).astype(dtype)
            x = brought[rank].copy()
            near = {"rtol": 1e-3 if dtype == np.float16 else 1e-6}
            np.testing.assert_allclose(team.allreduce(x, op), expected, **near)
            np.testing.assert_allclose(x, expected, **near)
            own = team.reduce_scatter(brought[rank].copy(), op)
            np.testing.assert_allclose(own, expected[slice(*team.slice_of(70))], **near)
    assert team.slice_of(70, size - 1)[1] == 70 and team.slice_of(70, 0)[0] == 0
    np.testing.assert_array_equal(team.allgather(brought[rank]), brought)
    parts = team.allgather(np.full(rank + 1, rank, np.float32))
    assert [part.tolist() for part in parts] == [[float(r)] * (r + 1) for r in range(size)]
    blocks = team.alltoall(10.0 * rank + np.arange(2.0 * size).reshape(size, 2))
    expected = [[10 * r + 2 * rank, 10 * r + 2 * rank + 1] for r in range(size)]
    np.testing.assert_array_equal(blocks, expected)
    root = size - 1
    x = np.full(3, rank)
    assert (team.broadcast(x, root) == root).all() and (x == root).all()
    lengths = [r + 1 for r in range(size)]
    whole = np.arange(sum(lengths), dtype=np.float32) if rank == root else None
    mine = team.scatter(whole, np.empty(rank + 1, np.float32), lengths, root)
    np.testing.assert_array_equal(mine, np.arange(rank + 1) + sum(lengths[:rank]))
    team.barrier()
    halves = team.split(rank % 2, key=-rank)
    others = [r for r in range(size) if r % 2 == rank % 2]
    assert (halves.rank, halves.size) == (others[::-1].index(rank), len(others))
    assert halves.allreduce(np.full(2, float(rank)))[1] == sum(others)
    assert isinstance(halves, Collectives)
    common = team.empty(size, common=True)
    common[rank] = rank
    team.barrier()
    assert common.tolist() == [*range(size)] and team.empty(5, np.float64).dtype == np.float64
    assert team.clock.now() >= began


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_team_and_virtual_ranks_make_the_same_ten_calls(ranks, on_ranks):
    for ended in on_virtual_ranks(ten_calls, ranks):
        if ended.error is not None:
            raise ended.error
    on_ranks(ranks, on_a_team)


def on_a_team():
    from numba_kernels.team.team import Team

    with Team() as team:
        ten_calls(team)


def test_many_ranks_take_the_predicted_time():
    """8 bytes over 256 ranks: log2 256 exchanges, after the slowest rank has computed for 3 s."""

    def program(team):
        team.compute(3.0 if team.rank == 5 else 1.0)
        total = team.allreduce(np.ones(1))
        return total[0], team.clock.now()

    for ended in on_virtual_ranks(program, 256, straight(1e-3, 0.0, 0.0)):
        assert ended.value == (256.0, ended.seconds) and ended.error is None
        assert ended.seconds == pytest.approx(3.0 + 8e-3)


def test_a_message_takes_its_latency_and_its_bytes():
    def program(team):
        if team.rank == 0:
            team.compute(1.0)
            team.send(np.zeros(1000), 1)
            return team.clock.now()
        return team.receive(0).size, team.clock.now()

    first, second = on_virtual_ranks(program, 2, straight(0.5, 2**-10, 0.0))
    assert first.value == 1.0 and second.value == (1000, 1.0 + 0.5 + 7.8125)


def test_nothing_hangs():
    def each_waits(team):
        team.receive((team.rank + 1) % team.size)

    errors = [ended.error for ended in on_virtual_ranks(each_waits, 3)]
    assert [type(error) for error in errors] == [TimeoutError] * 3
    assert str(errors[1]) == "rank 1 waited 2 s to receive from rank 2"

    def one_fails(team):
        if team.rank == 1:
            raise KeyError(5)
        team.barrier()

    first, second, third = (ended.error for ended in on_virtual_ranks(one_fails, 3))
    assert isinstance(second, KeyError) and isinstance(first, PeerError)
    assert str(third) == "rank 1 failed: KeyError: 5"

    def different(team):
        team.barrier() if team.rank else team.allreduce(np.ones(2))

    for ended in on_virtual_ranks(different, 2):
        assert isinstance(ended.error, MismatchError)
        assert "allreduce(float64[2], op='sum')" in str(ended.error)


def test_events_keep_their_order():
    clock = SimulatedClock()
    for seconds, event in ((2.0, "b"), (1.0, "a"), (2.0, "c")):
        clock.after(seconds, event)
    assert not clock.due()
    assert [(clock.next(), clock.now()) for _ in range(4)] == [
        ("a", 1.0), ("b", 2.0), ("c", 2.0), (None, 2.0)
    ]  # fmt: skip


def test_processes_wait_for_time_and_for_messages():
    world, log = Processes(), []

    def worker():
        yield 2.0
        world.post("done", 0.5)
        yield 1.0
        log.append(("worker", world.clock.now()))

    def other():
        yield "done"
        log.append(("other", world.clock.now()))
        yield "never"

    world.start(other())
    world.start(worker())
    world.run()
    assert log == [("other", 2.5), ("worker", 3.0)] and list(world.waiting) == ["never"]

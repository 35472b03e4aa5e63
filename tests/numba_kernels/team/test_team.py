"""Teams: their collectives, and shared memory that is allocated and freed."""

import itertools
import os
import resource
import time
import weakref
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from places import places

PLACES = places("window", "messages")


def collectives():
    from numba_kernels import Team

    team = Team()
    p, r = team.size, team.rank
    for dtype in ("float32", "float64"):
        for n in (0, 1, 5, 1000):
            x = np.random.default_rng(n).normal(size=(p, n)).astype(dtype)
            rows = team.allgather(x[r])
            np.testing.assert_array_equal(rows, x)
            for root in range(p):
                y = x[r].copy()
                assert team.broadcast(y, root) is y
                np.testing.assert_array_equal(y, x[root])
            mine = team.reduce_scatter(x[r].copy())
            first, last = team.slice_of(n)
            np.testing.assert_allclose(mine, x.sum(axis=0)[first:last], atol=1e-5)
        edges = [team.slice_of(1000, i) for i in range(p)]
        assert edges[0][0] == 0 and edges[-1][1] == 1000
        assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
    for dtype in ("float32", "float64", "int32", "int64", "float16", ml_dtypes.bfloat16):
        for n in (0, 1, 7, 50_000, 300_001):  # some in one piece, some in several
            x = [np.arange(n * (i % 3) + i, dtype="float64").astype(dtype) for i in range(p)]
            rows = team.allgather(x[r])
            assert len(rows) == p
            assert all(np.array_equal(a, b) for a, b in zip(rows, x, strict=True))
            block = np.arange(n) % 100
            sent = np.stack([(block + i + 2 * r) for i in range(p)]).astype(dtype)
            came = team.alltoall(sent)
            right = np.stack([(block + r + 2 * i) for i in range(p)]).astype(dtype)
            assert came.dtype == sent.dtype and np.array_equal(came, right)
            y = (block + r).astype(dtype)
            assert np.array_equal(team.broadcast(y, p - 1), (block + p - 1).astype(dtype))
            slices = [(np.arange(n * (i % 3) + i) % 100).astype(dtype) for i in range(p)]
            for root in {0, p - 1}:
                whole, mine = np.concatenate(slices), np.zeros(slices[r].size, dtype)
                given = whole if r == root else None
                assert team.scatter(given, mine, [one.size for one in slices], root) is mine
                assert np.array_equal(mine, slices[r])
            y = np.full(n, r + 1, dtype)
            assert (team.reduce_scatter(y) == p * (p + 1) / 2).all()
    team.barrier()
    table = np.arange(12, dtype="float32").reshape(3, 4) * (r == 0)
    team.broadcast(table)  # any shape
    np.testing.assert_array_equal(table.ravel(), np.arange(12))


@pytest.mark.thorough(but=["3-window", "2-messages"])
@PLACES
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_collectives(on_ranks, ranks, env):
    on_ranks(ranks, collectives, env=env)


def barrier_orders():
    """No rank leaves a barrier before the last one has reached it."""
    from numba_kernels import Team

    team = Team()
    for late in range(team.size):
        if team.rank == late:
            time.sleep(0.1)
        came = time.time()
        team.barrier()
        left = time.time()
        times = team.allgather(np.array([came, left]))
        assert times[:, 1].min() >= times[:, 0].max()


@PLACES
def test_barrier(on_ranks, env):
    on_ranks(3, barrier_orders, env=env)


def splitting():
    from numba_kernels import Team

    team = Team()
    r, p = team.rank, team.size
    part = team.split(r % 2, key=-r)  # within a colour, backwards
    members = [q for q in reversed(range(p)) if q % 2 == r % 2]
    assert part.size == len(members) and part.rank == members.index(r)
    x = part.empty(50)
    x[:] = r
    part.allreduce(x)
    assert (x == sum(members)).all()
    part.close()
    with team.split(0) as all_of_us:
        all_of_us.barrier()
    with pytest.raises(RuntimeError, match="closed"):
        all_of_us.barrier()
    with pytest.raises(RuntimeError, match="closed"):
        part.barrier()
    team.barrier()


def test_split(on_ranks):
    on_ranks(4, splitting)


def long_waits():
    """After a long wait, a collective keeps no reference to its arguments."""
    from numba_kernels import Team

    team = Team()
    x = np.full(5000, float(team.rank), "f4")
    root = (team.size - 1, 0)
    for late in root:  # all other ranks wait, for much longer than one poll
        if team.rank == late:
            time.sleep(0.1)
        team.broadcast(x, root=late)
        assert (x == root[0]).all()
    kept = weakref.ref(x)
    del x
    assert kept() is None


@PLACES
def test_long_waits(on_ranks, env):
    on_ranks(3, long_waits, env=env)


def thousands():
    """Closed teams free their communicators; too many open teams raise a clear error.

    MPICH has few communicators; Open MPI has so many that the process runs out of files first.
    """
    from numba_kernels import Team

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    for _ in range(1500):
        Team().close()
    with pytest.raises(RuntimeError, match=r"has no further (communicator|file) .*; close\(\)"):
        teams = []
        for _ in range(40_000):
            teams.append(Team())


@pytest.mark.thorough
def test_thousands_of_teams(on_ranks):
    on_ranks(1, thousands, fresh=True)


def shared_memory_is():
    """Arrays of team.empty are aligned, zeroed, shared, and freed with their last reference."""
    from numba_kernels import Team

    def mapped():
        return open("/proc/self/maps").read().count("memfd:numba_kernels")

    def open_memfds():
        links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
        return sum("memfd" in os.readlink(link) for link in links if os.path.islink(link))

    team = Team()
    before, descriptors = mapped(), open_memfds()
    for _ in range(3):
        x = team.empty(1_000_000, "float64")
        assert x.ctypes.data % 64 == 0 and not x.any()
        rows = team.peers(x)
        assert len(rows) == team.size and rows[team.rank].ctypes.data == x.ctypes.data
        x[:] = team.rank
        team.barrier()
        for rank, row in enumerate(rows):
            assert row.shape == x.shape and (row == rank).all()
        assert mapped() == before + 1
        part = x[10:20]
        del x, rows, row
        assert mapped() == before + 1, "freed while a slice still looks at it"
        team.barrier()
        del part
        assert mapped() == before, "not given back"
    assert open_memfds() == descriptors


def test_windows(on_ranks):
    on_ranks(3, shared_memory_is)


def too_much():
    from numba_kernels import Team

    team = Team()
    with pytest.raises(MemoryError, match=r"no memory for a window of 2 x \d+"):
        team.empty(2**44)
    for n, dtype, error in ((-1, "float32", ValueError), (5, "int8", TypeError)):
        with pytest.raises(error):
            team.empty(n, dtype)
    x = team.empty(10)  # the team still works
    x[:] = 1
    assert (team.allreduce(x) == 2).all()


def test_more_memory_than_there_is(on_ranks):
    on_ranks(2, too_much)


def several_nodes(nodes):
    """If not all ranks share memory, everything works over messages and within nodes."""
    from numba_kernels import Team
    from numba_kernels.shared import window

    rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    token = window.node_token() + nodes[rank]
    with mock.patch.object(window, "node_token", lambda: token):
        check_several_nodes(Team(), rank, nodes)


def check_several_nodes(team, rank, nodes):
    from numba_kernels.optimizers import Adam
    from numba_kernels.step.step import Step

    assert team.node == tuple(r for r in range(team.size) if nodes[r] == nodes[rank])
    everyone = np.random.default_rng(0).normal(size=(team.size, 1000))
    x = team.empty(1000, "float64")
    peers = team.peers(x)
    assert peers is None if len(team.node) == 1 else len(peers) == len(team.node)
    x[:] = everyone[rank]
    team.barrier()
    team.allreduce(x)
    np.testing.assert_allclose(x, everyone.sum(axis=0), atol=1e-12)
    weights, gradient = np.ones(1000), team.empty(1000, "float64")
    step = Step(team, Adam(0.01), weights, gradient)
    gradient[:] = everyone[rank]
    step(1.0, 1 + rank)
    plain, samples = np.ones(1000), 1.0 + np.arange(team.size)
    mean = (samples[:, None] * everyone).sum(axis=0) / samples.sum()
    Adam(0.01).update(plain, mean, Adam(0.01).init(1000, "float64"))
    np.testing.assert_allclose(weights, plain, atol=1e-12)
    with pytest.raises(MemoryError):
        team.empty(2**44)
    part = team.split(nodes[rank])
    assert part.single_node and part.size == len(team.node)
    y = part.empty(10)
    y[:] = rank
    assert (part.allreduce(y) == sum(team.node)).all()


@pytest.mark.parametrize("nodes", [[0, 0, 1], [0, 1, 0], [0, 1, 2], [0, 1, 0, 1]], ids=str)
def test_several_nodes(on_ranks, nodes):
    on_ranks(len(nodes), several_nodes, nodes)


def windows_run_out():
    """At most 256 windows exist at once; if one rank keeps too many, every rank raises an error."""
    from numba_kernels import Team

    team = Team()
    kept = []
    with pytest.raises(MemoryError, match="at most 256 windows"):
        for _ in range(300):
            x = team.empty(1)
            if team.rank == 0:
                kept.append(x)
    assert len(kept) == (256 if team.rank == 0 else 0)
    kept.clear()
    team.empty(1)
    with pytest.raises(MemoryError):
        team.empty(2**58)


def test_windows_run_out(on_ranks):
    on_ranks(2, windows_run_out)


def not_our_memory():
    """Another file with the same pid and descriptor is not taken for the team's memory."""
    from numba_kernels.shared import window

    descriptor, name = window.create(4096)
    assert window.attach(os.getpid(), descriptor, name, 4096) is not None
    assert window.attach(os.getpid(), descriptor, name + 1, 4096) is None
    assert window.reserve(os.getpid(), descriptor, name, 0, 4096)
    with open(__file__) as other:
        assert window.attach(os.getpid(), other.fileno(), name, 4096) is None
        assert not window.reserve(os.getpid(), other.fileno(), name, 0, 4096)


def test_not_our_memory(on_ranks):
    on_ranks(1, not_our_memory)


def no_communicator():
    from numba_kernels import Team

    with pytest.raises(TypeError, match="must be an mpi4py communicator, not 4"):
        Team(4)


def test_a_team_is_made_of_a_communicator(on_ranks):
    on_ranks(1, no_communicator)


def no_such_node():
    from numba_kernels import Team

    with pytest.raises(ValueError, match=r"NUMBA_KERNELS_NODE must be a whole .*1, got '0'"):
        Team()


def test_ranks_a_node(on_ranks):
    on_ranks(2, no_such_node, env={"NUMBA_KERNELS_NODE": "0"})


def test_an_array_is_freed_while_another_is_looked_up():
    """The garbage collector may clear a line of the table while it is searched."""
    import mmap

    from numba_kernels.shared.window import Window

    window, memory = Window(0, 1), [mmap.mmap(-1, 4096) for _ in range(3)]
    arrays = [
        window.add(np.frombuffer(m, np.uint8), 4096, 4096, np.dtype("float32")) for m in memory
    ]

    class Collects(np.ndarray):
        """Frees the first array in the middle of the search for the last one."""

        @property
        def ctypes(self):
            arrays[0] = None
            return super().ctypes

    (found,) = window.peers(arrays[2].view(Collects))
    assert found.ctypes.data == arrays[2].ctypes.data
    assert arrays[0] is None and not window.table[0].any()
    assert window.peers(arrays[1]) is not None

"""Calls every bound C function of MPI in nopython code."""

import numpy as np
import pytest


def calls_in_compiled_code():
    from mpi4py import MPI

    from numba_kernels.jit import mpi_functions as mpi
    from numba_kernels.jit.compile import compiled

    @compiled(cache=False)
    def ring_of_one(x, y, handles, tags, status, flag):
        """Send x to this rank, receive it and test both requests."""
        request = handles.ctypes.data + 2 * handles.itemsize
        mpi.Isend(x.ctypes.data, x.size, handles[1], tags[0], 77, handles[0], request)
        receive = request + handles.itemsize
        mpi.Irecv(y.ctypes.data, y.size, handles[1], tags[0], 77, handles[0], receive)
        while flag[0] == 0:
            mpi.Test(receive, flag.ctypes.data, status.ctypes.data)
        flag[0] = 0
        while flag[0] == 0:
            mpi.Testall(1, request, flag.ctypes.data, status.ctypes.data)

    comm = MPI.COMM_WORLD
    for dtype in ("float32", "float64"):
        x, y = np.arange(9, dtype=dtype), np.zeros(9, dtype)
        handles = np.array([mpi.handle(comm), mpi.datatype(dtype), 0, 0], mpi.HANDLE)
        status, flag = np.zeros(2 * mpi.STATUS_BYTES // 4, np.int32), np.zeros(1, np.int32)
        tags = np.array([comm.rank], np.int32)
        ring_of_one(x, y, handles, tags, status, flag)
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("ranks", [1, 2])
def test_calls_in_compiled_code(on_ranks, ranks):
    on_ranks(ranks, calls_in_compiled_code)


def tag_is_where_we_look():
    from mpi4py import MPI

    from numba_kernels.jit import mpi_functions as mpi

    status = MPI.Status()
    status.Set_tag(4711)
    words = np.frombuffer(memoryview(MPI.memory.fromaddress(
        MPI._addressof(status), mpi.STATUS_BYTES)), np.int32)  # fmt: skip
    assert words[mpi.STATUS_TAG] == 4711


def test_tag_is_where_we_look(on_ranks):
    on_ranks(1, tag_is_where_we_look)


def kept_and_loaded(folder):
    """Another process loads the same kernel from disk."""
    from numba_kernels.jit.compile import cache_folder
    from numba_kernels.optimizers.sgd import plain

    x = np.ones(4, "float32")
    plain(x, x.copy(), np.float32(0.1), None)
    assert str(cache_folder()).startswith(folder)
    hits, misses = plain.stats.cache_hits, plain.stats.cache_misses
    print(sum(hits.values()), sum(misses.values()))


def test_kernels_are_kept_on_disk(on_ranks, tmp_path):
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    assert on_ranks(1, kept_and_loaded, str(tmp_path), env=env).split() == ["0", "1"]
    assert on_ranks(1, kept_and_loaded, str(tmp_path), env=env).split() == ["1", "0"]


@pytest.mark.thorough
def test_a_home_that_cannot_be_written(on_ranks, tmp_path):
    (tmp_path / "file").touch()  # no folder can be made below a file, not even by root
    env = {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    assert on_ranks(1, kept_and_loaded, str(tmp_path), env=env).split() == ["0", "1"]
    assert on_ranks(1, kept_and_loaded, str(tmp_path), env=env).split() == ["1", "0"]

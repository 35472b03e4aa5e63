"""Alternatives that a user might use instead; each is left out if it is not installed."""

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np

from .timing import threads_unpinned

SECONDS = 30  # time limit for gloo's ranks to find each other, and for each call


def importable(name: str):
    """Return the module called `name`, or None if it is missing or can't be loaded."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError):
        return None


def keras_on_tensorflow():
    """Return (keras, tensorflow), or None if either is missing."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # this compares CPU code only
    with quiet():
        modules = importable("keras"), importable("tensorflow")
    return None if None in modules else modules


@contextmanager
def quiet() -> Iterator[None]:
    """Discard output to stderr (TensorFlow's start-up messages), unless the body fails."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        except BaseException:
            aside.seek(0)
            os.write(stderr, aside.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)


@contextmanager
def gloo() -> Iterator[Callable[[np.ndarray], object] | None]:
    """Yield a function that sums an array in place with PyTorch's gloo, over MPI.COMM_WORLD.

    It uses the loopback interface. It yields None if torch can't be imported, or if gloo does not
    start on some rank; the reason is then printed to stderr.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    torch = importable("torch")
    distributed = importable("torch.distributed") if torch else None
    if distributed is None or not distributed.is_available():
        yield None
        return
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    failure = ""
    try:
        with threads_unpinned():
            _join(distributed, comm)
    except Exception as error:
        failure = f"no gloo on rank {comm.rank}: {first_line(error)}"
    failures = [text for text in comm.allgather(failure) if text]
    if failures and comm.rank == 0:
        print(failures[0], file=sys.stderr)
    try:
        yield None if failures else lambda x: distributed.all_reduce(torch.from_numpy(x))
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _join(distributed, comm) -> None:
    """Join the process group. Rank 0's store listens on a free port, which it broadcasts."""
    limit = timedelta(seconds=SECONDS)
    store, said = None, None
    if comm.rank == 0:
        try:
            store = distributed.TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
            said = store.port
        except Exception as error:
            said = first_line(error)
    said = comm.bcast(said)
    if not isinstance(said, int):
        raise RuntimeError(said)
    if store is None:
        store = distributed.TCPStore("127.0.0.1", said, None, False, limit)
    distributed.init_process_group(
        "gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=limit
    )

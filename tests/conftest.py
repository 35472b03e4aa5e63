"""Fixtures of all tests: ranks under mpiexec (`on_ranks`), and a check for what tests leave.

README.md in this folder explains how tests are run and where a new one belongs.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import uuid
from pathlib import Path
from unittest import mock

import pytest

# tests/ is no package, so that no test's name can clash with an installed one.
sys.path.insert(0, str(Path(__file__).parent / "support"))
import asleep

# Tests start two thousand processes. A rank would spend 40 ms on hooks of UCX (which MPICH uses)
# around the allocation of memory, which only InfiniBand needs. Whatever loads NumPy would spend
# 60 ms on the second thread of OpenBLAS, which waits busily for its first work.
os.environ |= {"UCX_MEM_EVENTS": "n", "OPENBLAS_THREAD_TIMEOUT": "4"}
# Ranks that wait sleep, as several workers share the cores. (tests/soak takes this back.)
os.environ |= asleep.ASLEEP
# Some tests start Open MPI's mpiexec as a user would, who is not root.
if os.geteuid() == 0:
    os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

# OpenBLAS reads this once, when it is loaded. Its waiting threads would take cores from the ranks.
with mock.patch.dict(os.environ, OPENBLAS_NUM_THREADS="1"):
    import numpy  # noqa: F401
    import scipy.linalg  # noqa: F401

import lazily
import leftovers
import preloaded
import thorough
from clusters import (  # noqa: F401  (fixtures)
    _kept_clusters,
    own_cluster,
    shared_cluster,
)
from modules import load_file
from on_ranks import on_ranks  # noqa: F401  (the fixture)
from private_files import private  # noqa: F401  (the fixture)
from worlds import WORLDS

from numba_kernels import launch
from numba_kernels.shared.segments import unlink_segments

# Processes that tests start find sitecustomize.py there, and pytest's own processes run it here.
STARTUP = [str(Path(__file__).parent / "support" / "startup")]
load_file(f"{STARTUP[0]}/sitecustomize.py")
STARTUP += filter(None, [os.environ.get("PYTHONPATH")])

# The groups of tests that take longest; most groups are files. They start first, so that no worker
# of pytest-xdist begins one of them when the others have nothing left to do.
LONGEST = """
keras here notebooks more_notebooks cli worker_faults cells compile cluster_list
batch_jobs train_faults parameter_server cluster lost_engines failures tune_command recovery elastic
resumed_runs bench optimizers gan allreduce tasks doctor master_checkpoints compression cell_faults
pipelined_training stalls
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Sort the longest groups first. One worker runs a whole group; by default a file is one."""
    thorough.unmark_cases(items)
    place = {name: turn for turn, name in enumerate(LONGEST.split())}
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem.removeprefix("test_")))
        elif group(item) == "keras" and not {"on_ranks", "worlds"} & {*item.fixturenames}:
            # These need Keras in pytest's own process, the others in that which forks ranks. The
            # name of a test ends with both groups: test_cnn_reads_digits@here_keras.
            item.add_marker(pytest.mark.xdist_group("here"), append=False)
    items.sort(key=lambda item: place.get(group(item), len(place)))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Note which file loads TensorFlow when it is collected: every worker would load it."""
    before = "tensorflow" in sys.modules
    report = yield
    if "tensorflow" in sys.modules and not before:
        lazily.LOADED.append(collector.nodeid)
    return report


def pytest_report_header() -> str:
    library = launch.mpi_library()
    return f"ranks: {library.name} {library.version} ({library.path})"


def pytest_collection_finish():
    """Leave all that importing and collecting made out of the garbage collections to come."""
    if "tensorflow" in sys.modules and not lazily.LOADED:  # no file did, so it was there before
        lazily.LOADED.append("conftest.py, or a module that it imports")
    gc.collect()
    gc.freeze()


def group(item) -> str:
    return item.get_closest_marker("xdist_group").args[0]


# What is left behind


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.stash[FILES] = leftovers.segments(), Path(tempfile.mkstemp(prefix="segments-")[1])


FILES = pytest.StashKey[tuple[set, Path]]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell each worker of pytest-xdist in which file to note what appeared during its tests."""
    node.workerinput["segments"] = str(node.config.stash[FILES][1])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """When all workers have ended, fail the run if files are left in shared memory."""
    if FILES not in session.config.stash:
        return
    before, journal = session.config.stash[FILES]
    ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    left = leftovers.left_in_shared_memory(before, patience=20.0) if ended else set()
    # A file that appeared during no test belongs to another program.
    seen = [line for line in journal.read_text().splitlines() if line.split()[0] in left]
    if seen:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if plugin := session.config.pluginmanager.get_plugin("last_words_of_the_run"):
            plugin.note(f"left behind in {leftovers.SHARED_MEMORY} when all tests had ended", seen)
    journal.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def mark() -> str:
    """A value that every process started by this session carries in its environment.

    Each worker of pytest-xdist has a session, and a mark, of its own.
    """
    return uuid.uuid4().hex


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works():
    """Handle Ctrl-C even if a shell that ran `make test &` has set it to be ignored."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _marked(mark):
    os.environ[leftovers.VARIABLE] = mark
    # With this variable Python writes a line in pieces, and pieces of several ranks mix.
    os.environ.pop("PYTHONUNBUFFERED", None)
    # Ranks may wait long for a core. Tests of stall reports set this variable themselves.
    os.environ.setdefault("NUMBA_KERNELS_STALL", "1000")
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(STARTUP)):
        yield
    problems = WORLDS.end()
    preloaded.end()
    del os.environ[leftovers.VARIABLE]
    assert not problems, "\n".join(problems)


@pytest.fixture(autouse=True)
def nothing_left(request, _marked, mark):
    """Fail a test that leaves a process or a file in shared memory, and end such processes.

    A new file may belong to another worker's test: the guard of a killed rank removes its files
    only after a while. So workers note which files appear, and the run fails if one stays.
    """
    os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)  # JAX sets it as it is imported
    journal = getattr(request.config, "workerinput", {}).get("segments")
    known = set(leftovers.candidates(mark))
    before = leftovers.segments()
    yield
    if "mpi4py.MPI" in sys.modules:  # in pytest's own process, which no mpiexec has started
        unlink_segments()
    left = leftovers.check(mark, known | WORLDS.pids(), None if journal else before)
    if journal and (new := leftovers.segments() - before):
        with open(journal, "a") as file:
            file.write("".join(f"{name} appeared during {request.node.nodeid}\n" for name in new))
    assert not left, "left behind:\n" + "\n".join(left)

"""Engines that end, by themselves or in a batch job; cells on them, and new ones in their place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from cell_messages import OFFER, failing

from tutorial_dl.cluster.cell_runner import Cells

# An engine's process ends ----------------------------------------------------------------------


@pytest.mark.thorough(but="os.kill(os.getpid(), 9)-was killed by signal 9 (SIGKILL)")
@pytest.mark.parametrize(
    "ends, how",
    [
        ("os.kill(os.getpid(), 9)", "was killed by signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), 11)", "was killed by signal 11 (SIGSEGV)"),
        ("os._exit(3)", "ended with exit status 3"),
        ("os._exit(0)", "ended with exit status 0"),
    ],
)
def test_a_lost_rank_is_named(own_cluster, ends, how):
    c = own_cluster
    lost = c.status()[1]
    expected = [
        f"rank 1 (pid {lost.pid} on {lost.host}) {how}",
        f"the MPI world of all 2 ranks ended with it: {OFFER}",
    ]
    code = f"import os\ntime.sleep(1)\nif rank == 1: {ends}\ncomm.Barrier()"
    assert failing(c, code, took="a lost rank is named") == expected
    assert failing(c, "print(1)", took="a lost rank is named by the next cell") == expected


@pytest.mark.thorough
def test_a_rank_lost_between_cells_is_named(own_cluster):
    victim = own_cluster.status()[1]
    os.kill(victim.pid, signal.SIGKILL)
    assert own_cluster.cells.deaths.happened.wait(300)
    summary = failing(own_cluster, "print(1)", took="a rank lost between cells is named")
    assert (
        summary[0] == f"rank 1 (pid {victim.pid} on {victim.host}) was killed by signal 9 (SIGKILL)"
    )


@pytest.mark.thorough
def test_a_dead_controller_is_no_end(own_cluster):
    """Engines end with their controller, so the cell ends; a restart works."""
    [controller] = psutil.Process(int(own_cluster._record.controller[0])).children()
    timer = threading.Timer(1.0, controller.kill)
    timer.start()
    summary = failing(own_cluster, "time.sleep(100)", took="a cell ends with its controller")
    assert summary[-1].endswith(OFFER)
    own_cluster.restart()
    own_cluster.run("pass")


# Restart ---------------------------------------------------------------------------------------


def test_changes_of_the_folder_are_repeated_as_often_as_they_were_called():
    cells = Cells(None)
    cells.done = ["import os\nos.chdir('a')", "import os\nos.chdir('..')", "os.chdir('a')"]
    assert cells.imports() == "import os\nos.chdir('a')\nos.chdir('..')\nos.chdir('a')"


@pytest.mark.thorough
def test_restart_runs_imports_again(own_cluster, tmp_path):
    c = own_cluster
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "of_the_user.py").write_text("x = 3")
    c.run(f"import os, sys\nos.chdir({str(tmp_path)!r})\nsys.path.insert(0, 'mine')")
    c.run("import of_the_user\nwhere = 'elsewhere'\nsys.path.append(where)")
    c.run("import json as j, os\nfrom math import pi\nif True: import uuid\ndef f(): import abc")
    c.run("%matplotlib inline\nimport bisect\ny = 1")
    failing(c, "import decimal\n1 / 0")
    c.restart(imports=True)
    c.run("assert j.dumps and os.path and pi > 3 and bisect.bisect and np.ones and MPI.COMM_WORLD")
    c.run("gone = {'uuid', 'abc', 'decimal', 'y', 'f', 'rank'} & set(globals()); assert not gone")
    assert c["of_the_user.x"] == [3] * len(c)
    assert c["os.getcwd()"] == [str(tmp_path)] * len(c) and not any(c["'elsewhere' in sys.path"])
    c.restart()
    c.run("assert 'j' not in globals()")


# SIGTERM in a batch job ---------------------------------------------------------------------------

SCRIPT = r"""
import atexit, ctypes, os, signal, sys, threading
from tutorial_dl.cluster.engine import Ending

how, folder = sys.argv[1:]
at_exit, text = open(folder + "/at_exit", "w"), open(folder + "/text", "w")
atexit.register(at_exit.write, "closed")
text.write("written")
ending = Ending()
libc = ctypes.PyDLL(None)  # keeps the GIL, as C code does that nothing can interrupt
if how == "busy":
    ending.busy()
if how == "stuck at exit":
    atexit.register(threading.Event().wait)
os.write(1, b"ready\n")
if how == "busy":
    libc.sleep(300)
while True:
    signal.pause()
"""


@pytest.mark.parametrize(
    "how, job, status, written",
    [
        ("idle", True, 128 + signal.SIGTERM, "written"),
        ("busy", True, -signal.SIGTERM, ""),
        ("stuck at exit", True, -signal.SIGALRM, None),  # as in MPI_Finalize
        ("idle", False, -signal.SIGTERM, ""),  # as it was before: Python's default
    ],
)
def test_sigterm(how, job, status, written, tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, how, str(tmp_path)],
        env=env | ({"SLURM_JOB_ID": "7"} if job else {}),
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(300) == status
    if written is not None:
        assert (tmp_path / "text").read_text() == written
        assert (tmp_path / "at_exit").read_text() == ("closed" if written else "")

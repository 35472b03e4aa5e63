"""SIGTERM ends an engine of a batch job at once, and what it had written is in its files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SCRIPT = r"""
import atexit, ctypes, os, signal, sys, threading
from tutorial_dl.cluster.engine_end import Ending

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

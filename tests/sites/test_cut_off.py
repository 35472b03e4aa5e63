"""A node that is cut off while its connections stay open, as when somebody pulls its cable.

The node is a network namespace with a cable (veth) to this machine. Programs that stand in for
Slurm's run the job there, so that nobody but us can notice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import batch_systems
import pytest
from site_profiles import submits

from numba_kernels import launch
from tutorial_dl import cluster
from tutorial_dl.cluster import job_watch
from tutorial_dl.cluster.cell_errors import CellError

SECONDS = 300
HERE, THERE = "10.77.7.1", "10.77.7.2"
UNTIL = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.01)"


class Node:
    """A network namespace of this name, with one cable."""

    def __init__(self, name: str):
        self.name = name

    def begin(self) -> None:
        for words in (
            f"netns add {self.name}",
            f"link add {self.name} type veth peer name cable netns {self.name}",
            f"addr add {HERE}/24 dev {self.name}",
            f"link set {self.name} up",
            f"-n {self.name} addr add {THERE}/24 dev cable",
            f"-n {self.name} link set lo up",
        ):
            subprocess.run(["ip", *words.split()], check=True)
        self.cable("up")

    def cable(self, state: str) -> float:
        """Set the cable "up" or "down"; returns when that was."""
        subprocess.run(["ip", "-n", self.name, "link", "set", "cable", state], check=True)
        return time.monotonic()

    def end(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], check=True)  # the cable goes with it


@pytest.fixture
def node():
    made = Node(f"node{os.getpid()}")
    try:
        made.begin()
        yield made
    finally:
        made.end()


@pytest.fixture
def on_node(node, private, tmp_path, monkeypatch):
    """A cluster whose two engines run in a job on the node."""
    batch_systems.install(tmp_path, launch.find_mpiexec())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    launcher = f'"ip netns exec {node.name} {launch.find_mpiexec()} -n {{n}}"'
    profile = submits("slurm", interface=f'"{HERE}"', launcher=launcher)
    with cluster.start(n=2, profile=profile, timeout=SECONDS) as c:
        yield c


def test_a_cut_is_noticed_and_cells_run_again_when_it_is_mended(on_node, node, tmp_path, bound):
    c, cut, go = on_node, [], tmp_path / "go"
    timer = threading.Timer(2.0, lambda: cut.append(node.cable("down")))
    timer.start()
    with pytest.raises(CellError) as error:
        c.run(UNTIL.format(str(go)), timeout=SECONDS)
    bound("from the cut of a node to the CellError", time.monotonic() - cut[0], 5.0)
    host = c.status()[0].host
    assert error.value.summary == [
        f"ranks 0, 1 on {host} lost the connection to the controller, though job 100 runs: "
        "c.restart() gives new engines (variables are lost)"
    ]
    with pytest.raises(CellError, match="lost the connection"):
        c.run("pass")
    go.touch()
    node.cable("up")
    deadline = time.monotonic() + 60
    while c.cells.job.why is not None:
        assert time.monotonic() < deadline, "the engines do not connect again"
        time.sleep(0.1)
    c.run("from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2")


def test_neither_a_short_cut_nor_a_stopped_engine_is_a_loss(on_node, node):
    c = on_node
    cell = c.cells.submit("import time; time.sleep(9)")
    node.cable("down")
    time.sleep(1.0)
    node.cable("up")
    os.kill(c.status()[1].pid, signal.SIGSTOP)
    time.sleep(4 + job_watch.CUT_OFF)  # its node's kernel goes on, and so does its connection
    assert c.cells.job.why is None
    os.kill(c.status()[1].pid, signal.SIGCONT)
    cell.wait()

"""Clusters: an engine's id is its rank, restart works, and no process outlives the kernel."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import either_mpi
import psutil
import pytest
import stranger
import zmq
from ended import assert_gone, gone, until

from numba_kernels import launch
from tutorial_dl import cluster
from tutorial_dl.cluster import processes

SECONDS = 300


pytestmark = pytest.mark.usefixtures("private")


def all_processes(c: cluster.Cluster) -> list[psutil.Process]:
    """The two guards of a cluster and everything below them."""
    guards = [psutil.Process(int(pid)) for pid, _ in (c._record.controller, c._record.engines)]
    return guards + [p for each in guards for p in each.children(recursive=True)]


def listening(processes: list[psutil.Process]) -> list[tuple[str, int]]:
    """Addresses and ports that these processes accept connections on."""
    return [
        connection.laddr
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def test_ids_are_ranks_and_ranks_communicate(tmp_path, capsys):
    (tmp_path / "beside_the_notebook.py").write_text("ANSWER = 42\n")
    with cluster.start(n=3, timeout=SECONDS) as c:
        assert f"3 engines = MPI ranks 0 to 2 ({either_mpi.mine()})" in capsys.readouterr().out
        view = c.client[:]
        view.execute(
            "import os, beside_the_notebook; from mpi4py import MPI; comm = MPI.COMM_WORLD\n"
            "total = comm.allreduce(10 ** comm.rank); rank = comm.rank\n"
            "answer = beside_the_notebook.ANSWER; threads = os.environ['OMP_NUM_THREADS']\n"
            "folder = os.getcwd(); pid = os.getpid()\n"
            "import sys; heavy = 'tensorflow' in sys.modules",
            block=True,
        )
        assert [c.client[i]["rank"] for i in range(3)] == [0, 1, 2]
        assert view["total"] == [111] * 3 and view["answer"] == [42] * 3
        assert view["threads"] == [str(launch.threads_per_rank(3))] * 3
        assert view["folder"] == [str(tmp_path)] * 3
        assert view["heavy"] == [False] * 3
        status = c.status()
        assert [(e.rank, e.pid, e.alive) for e in status] == [
            (rank, pid, True) for rank, pid in enumerate(view["pid"])
        ]
        processes = all_processes(c)
        assert {e.pid for e in status} <= {p.pid for p in processes}
        # No connection from other machines: everything listens on the loopback interface, but Open
        # MPI's mpiexec, which can't be told to (docs/clusters.md, "Who may connect").
        private = [process for process in processes if process.name() != "prterun"]
        assert len(listening(private)) > 16
        assert {ip for ip, _ in listening(private)} == {"127.0.0.1"}
        # No other user of this machine can connect without the keys, or read shared memory.
        assert {stranger.mechanism(port) for _, port in listening(private)} == {"CURVE"}
        # A rank that is killed can't remove a name; MPICH keeps it until MPI_Finalize.
        view.execute(
            "maps = open('/proc/self/maps').read().splitlines()\n"
            "held = [line for line in maps if '/mpich_shm_' in line or '/sm_segment.' in line]",
            block=True,
        )
        assert all(line.endswith("(deleted)") for held in view["held"] for line in held)
        segments = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
        assert not {int(line.split()[4]) for line in segments} & {p.pid for p in processes}
    assert not any(p.is_running() for p in processes)
    assert not any(e.alive for e in c.status())
    c.stop()  # a second time does nothing


def test_nobody_else_is_given_a_port_of_the_controller():
    """Else a cluster whose controller lost a port never answers."""
    with processes.reserved_ports() as ports, zmq.Context() as context:
        assert len(set(ports)) == processes.PORTS
        for port in ports:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
            with context.socket(zmq.ROUTER) as queue:
                queue.bind(f"tcp://127.0.0.1:{port}")
    with cluster.start(n=1, timeout=SECONDS) as c:
        (command,) = {
            tuple(process.cmdline())
            for process in all_processes(c)
            if process.cmdline()[2:4] == ["tutorial_dl.cluster", "controller"]
        }
        (words,) = [word for word in command if word.startswith("--ports=")]
        reserved = {int(port) for port in words.removeprefix("--ports=").split(",")}
        for who in ("client", "engine"):
            found = json.loads(c._record.connection_file(who).read_text())
            used = [port for port in found.values() if isinstance(port, int)]
            assert len(used) >= 6 and reserved.issuperset([*used, *flat(found["broadcast"])])


def flat(ports: int | list[int]) -> list[int]:
    return ports if isinstance(ports, list) else [ports]


def test_restarts_and_starts_replace_engines(capsys):
    """Engines of which one has died are replaced; a second start ends the first cluster."""
    first = cluster.start(n=2, timeout=SECONDS)
    first.run("x = 1")
    before = all_processes(first)
    os.kill(first.status()[1].pid, signal.SIGKILL)
    until(lambda: not first.status()[1].alive)
    first.restart()
    assert all(map(gone, before)) and all(e.alive for e in first.status())
    assert not {e.pid for e in first.status()} & {p.pid for p in before}
    first.run("from mpi4py import MPI; n = MPI.COMM_WORLD.allreduce(1)")
    assert first["n"] == [2, 2] and "x" not in first
    before = all_processes(first)
    second = cluster.start(n=1, timeout=SECONDS)
    assert "stopping the cluster of 2 engines that was running" in capsys.readouterr().out
    assert all(map(gone, before))
    assert first.name == second.name == "local" and cluster.list()[0].n == 1
    first.stop()  # does not affect the second
    assert [e.alive for e in second.status()] == [True]
    with pytest.raises(cluster.ClusterError, match="needs one started with keep=SECONDS"):
        second.leave()
    second.restart()
    assert second.run(os.getpid) == [second.status()[0].pid] and second.name == "local"
    second.stop()
    second.stop()
    said = re.sub(r"after \d+ s", "after N s", capsys.readouterr().out).splitlines()
    assert said[-4:] == [
        "local was stopped before",
        "1 new engine after N s; variables are gone",
        "stopped 1 engine of local",
        "local was stopped before",
    ]


def fake_mpiexec(path: Path, does: str) -> str:
    path.write_text(f"#!/bin/sh\n{either_mpi.says_version()}\n{does}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "does, says",
    [
        ("echo no slots left; exit 1", "the 2 engines ended at once"),
        ("echo waiting in the queue; exec sleep 300", "the 2 engines did not come up within 10 s"),
    ],
)
def test_engines_that_do_not_come_up(tmp_path, monkeypatch, does, says):
    monkeypatch.setenv("MPIEXEC", fake_mpiexec(tmp_path / "mpiexec", does))
    with pytest.raises(cluster.ClusterError, match=says) as error:
        cluster.start(n=2, timeout=10)
    assert str(error.value).splitlines()[-1].strip() == does.split(";")[0].removeprefix("echo ")


@pytest.mark.thorough
def test_separate_worlds_are_noticed(tmp_path, monkeypatch):
    # The mpiexec of another MPI would start two worlds of one rank each.
    does = 'shift; shift; "$@" & "$@" & wait'
    monkeypatch.setenv("MPIEXEC", fake_mpiexec(tmp_path / "mpiexec", does))
    with pytest.raises(cluster.ClusterError, match=r"is rank 0 of 1, expected rank . of 2"):
        cluster.start(n=2, timeout=SECONDS)


# The kernel ends -------------------------------------------------------------------------------

CLIENT = """
import json, time
import psutil
from tutorial_dl import cluster
c = cluster.start(n=2, timeout=300)
guards = [psutil.Process(int(pid)) for pid, _ in (c._record.controller, c._record.engines)]
print(json.dumps([p.pid for g in guards for p in [g, *g.children(recursive=True)]]), flush=True)
BUSY
"""


@contextlib.contextmanager
def client_with_a_cluster(busy: str = "time.sleep(300)"):
    """A process that has started a cluster, and the cluster's processes."""
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT.replace("BUSY", busy)], stdout=subprocess.PIPE, text=True
    )
    try:
        client.stdout.readline()
        yield client, [psutil.Process(pid) for pid in json.loads(client.stdout.readline())]
    finally:
        client.kill()
        client.communicate()


@pytest.mark.thorough
def test_the_cluster_ends_when_a_client_in_an_mpi_call_is_killed():
    # The engines are in a receive that only SIGKILL ends.
    busy = (
        "receive = 'from mpi4py import MPI; MPI.COMM_WORLD.recv(source=0)'\n"
        "c.client[:].execute(receive, block=False)\n"
        "time.sleep(1); print('waiting', flush=True); time.sleep(300)"
    )
    with client_with_a_cluster(busy) as (client, processes):
        assert len(processes) >= 7  # two guards, controller, mpiexec, two engines, two nannies
        assert client.stdout.readline() == "waiting\n"
        client.kill()
        assert_gone(processes)


@pytest.mark.thorough
def test_the_cluster_ends_with_a_client_that_forgets_it():
    with client_with_a_cluster("") as (client, processes):
        assert client.wait(SECONDS) == 0
        assert all(map(gone, processes))


@pytest.mark.thorough
def test_the_engines_end_when_the_controller_is_killed():
    with client_with_a_cluster() as (_, processes):
        [controller] = processes[0].children()
        controller.kill()
        assert_gone(processes)


class Asked:
    """An AsyncResult; its engines have answered if `got` is not None."""

    def __init__(self, got):
        self.got = got

    def wait(self, timeout):
        return self.got is not None

    def get(self):
        return self.got


def test_a_first_request_that_is_lost_is_sent_again():
    from tutorial_dl.cluster.engines import answers
    from tutorial_dl.cluster.registry import ClusterError

    results = iter([Asked(None), Asked(None), Asked([1, 2])])
    assert answers(lambda: next(results), seconds=600) == [1, 2]
    assert not list(results)
    with pytest.raises(ClusterError, match="gave no answer within 0 s"):
        answers(lambda: Asked(None), seconds=0)

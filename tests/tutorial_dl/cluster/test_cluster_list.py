"""Clusters are listed, joined, left and stopped by other processes, and end without a client."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import clock
import numpy as np
import psutil
import pytest
from commands_here import run_here
from ended import assert_gone, until
from ipyparallel.cluster import ClusterManager

from numba_kernels import launch
from tutorial_dl import cluster
from tutorial_dl.cluster import lease, processes, registry

SECONDS = 300


pytestmark = pytest.mark.usefixtures("private")


def processes_of(record: registry.Record, parts=("watcher", "controller", "engines")) -> list:
    """All processes of these parts of a cluster."""
    guards = [psutil.Process(int(getattr(record, part)[0])) for part in parts]
    return guards + [p for guard in guards for p in guard.children(recursive=True)]


OTHER = """
import os, signal, sys
from tutorial_dl import cluster
from tutorial_dl.cluster import view
{first}
print("READY", flush=True)
for line in sys.stdin:
    exec(line)
    print("DONE", flush=True)
"""


# What a view in that kernel shows; an engine may need a moment to answer.
STATES = "print(c.phase, [row.state for row in view.rows(c, seconds=100)])"


class Other:
    """Stands for another notebook's kernel: a process that runs lines."""

    def __init__(self, first: str):
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER.format(first=first)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.said = self._read("READY")

    def run(self, line: str) -> str:
        print(line, file=self.process.stdin, flush=True)
        return self._read("DONE")

    def _read(self, last: str) -> str:
        lines = []
        while (line := self.process.stdout.readline()).strip() != last:
            assert line, "the other kernel has ended"
            lines.append(line)
        return "".join(lines)

    def end(self) -> int:
        self.process.stdin.close()
        return self.process.wait(SECONDS)


@contextlib.contextmanager
def other(first: str):
    kernel = Other(first)
    try:
        yield kernel
    finally:
        kernel.process.kill()
        kernel.process.wait()
        kernel.process.stdout.close()


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tutorial_dl", "cluster", *words],
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip


# List, join, stop ------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_second_notebook_joins_restarts_and_stops():
    assert cluster.list() == []
    with other("c = cluster.start(n=2); c.client[:].execute('x = 5', block=True)") as first:
        [entry] = cluster.list()
        assert (entry.name, entry.n, entry.profile, entry.state) == ("local", 2, "local", "running")
        assert 0 <= entry.seconds < SECONDS and entry.host == os.uname().nodename
        c = cluster.join()
        assert c.client[:]["x"] == [5, 5] and (c.n, c.name) == (2, "local")
        assert [e.alive for e in c.status()] == [True, True]
        assert cluster.join("local") is c
        # After a restart, the first kernel finds the new engines by joining, and keeps its cluster.
        c.restart()
        c.client[:].execute("x = 6", block=True)
        assert first.run(STATES) == "replaced ['replaced', 'replaced']\n"
        joined = first.run("c = cluster.join(); print(c['x'])")
        assert joined == "joined local: 2 engines; %%px runs on all of them\n[6, 6]\n"
        assert first.run(STATES) == "running ['idle', 'idle']\n"
        # JupyterLab's panel of ipyparallel calls this: every "profile_" folder is a cluster there.
        panel = ClusterManager().load_clusters(init_default_clusters=True)
        assert panel.keys() <= {"default:"}
        found = processes_of(c._record, ("controller", "engines"))
        c.leave()
        assert c.phase == "left"
        assert all(p.is_running() for p in found) and cluster.list()[0].state == "running"
        assert first.run("c.client[:].execute('y = 1', block=True); print(c.client[:]['y'])")
        # Stopped by one who has joined, it ends for all.
        c = cluster.join()
        with clock.seconds("a cluster that was joined stops"):  # a guard is killed after 15 s
            c.stop()
        assert_gone(found)
        assert cluster.list() == [] and c.phase == "stopped"
        assert first.run("print([e.alive for e in c.status()])") == "[False, False]\n"
        assert first.run(STATES) == "stopped ['stopped', 'stopped']\n"
        said = first.run("c.stop(); c.restart(); print(len(c.client.ids))").splitlines()
        assert said[0] == "local was stopped before" and said[2] == "2"
        assert said[1].startswith("2 new engines after ")
        found = processes_of(registry.choose(), ("controller", "engines"))
        assert first.end() == 0  # it was started without keep, so it ends with its kernel
        assert_gone(found)
    assert cluster.list() == []


def held() -> np.ndarray:
    """How many threads and descriptors this process has."""
    return np.array([threading.active_count(), len(os.listdir("/proc/self/fd"))])


def test_leaving_gives_back_what_joining_took():
    with other("c = cluster.start(n=2)"):
        cluster.join().leave()  # libraries keep some things from their first use on
        before = held()
        for _ in range(3):
            cluster.join().leave()
        end = time.monotonic() + 60
        while (held() > before).any() and time.monotonic() < end:
            time.sleep(0.05)  # threads end on their own
        assert (held() <= before).all()


@pytest.mark.thorough
def test_names(monkeypatch):
    with pytest.raises(cluster.ClusterError, match=r"there is no cluster; cluster.start\(\)"):
        cluster.join()
    with other("cluster.start(n=1); engines = __import__('tutorial_dl.cluster.engines')") as first:
        second = cluster.start(n=1)
        assert second.name == "local-2"
        with pytest.raises(cluster.ClusterError, match=r"choose one of local, local-2$"):
            cluster.stop()
        with pytest.raises(cluster.ClusterError, match=r"no cluster 'lokal'; running: local, loc"):
            cluster.join("lokal")
        first.run("1")
        second.stop()
        with pytest.raises(cluster.ClusterError, match=r"there is already a cluster 'local'"):
            cluster.start(n=1, name="local")
        for bad in ("a/b", "", "-x", "x" * 41):
            with pytest.raises(ValueError, match=r"name must be 1 to 40 letters, digits, .*, got"):
                cluster.start(n=1, name=bad)
        assert cluster.stop("local") == "local"


def test_what_a_crash_left_is_removed(tmp_path):
    folder = tmp_path / "ipython" / "tutorial_dl_gone"
    folder.mkdir(parents=True)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    named = registry.process(ended.pid)
    ended.wait()
    registry.Record("gone", 2, "local.toml", str(folder), controller=named, places=[[]]).save()
    elsewhere = tmp_path / "ipython" / "tutorial_dl_far"
    elsewhere.mkdir()
    far = registry.Record("far", 2, "x/slurm.toml", str(elsewhere), host="far", controller=named)
    far.save()
    assert [(e.name, e.state) for e in cluster.list()] == [("far", "on far")]
    assert not folder.exists()
    with pytest.raises(cluster.ClusterError, match="'far' runs on far, and ends with its kernel"):
        cluster.stop("far")
    (elsewhere / "cluster.json").unlink()
    elsewhere.rmdir()


# Without a client ------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_kept_cluster_waits_for_the_next_kernel_and_ends_without_one():
    with other(
        "c = cluster.start(n=2, keep=12); c.client[:].execute('x = 5', block=True)"
    ) as first:
        record = registry.choose()
        found = processes_of(record)
        # Three guards, watcher, controller (2), mpiexec, engines (2 each); forks: fork_server.py
        assert len(found) == (11 if launch.is_open_mpi() else 14)
        first.process.kill()
        first.process.wait()
    time.sleep(3)  # it must survive half of its lease
    c = cluster.join()
    time.sleep(13)  # and, with a client, all of it
    assert c.client[:]["x"] == [5, 5]
    c.leave()
    left = time.monotonic()
    assert_gone(found)
    assert time.monotonic() - left > 8
    until(lambda: not record.path.exists())


@pytest.mark.thorough
def test_a_kept_cluster_survives_a_restart_and_ends_with_its_parts():
    c = cluster.start(n=2, keep=60, name="kept")
    watcher, folder = c._record.watcher, c._record.path
    c.restart()
    assert registry.alive(watcher) and c._record.watcher == watcher and c._record.path == folder
    found = processes_of(c._record)
    c.stop()
    assert_gone(found)
    assert not folder.exists()
    for part in ("watcher", "controller"):
        c.restart()
        ends = processes_of(c._record, ("controller", "engines"))
        [child] = psutil.Process(int(getattr(c._record, part)[0])).children()
        child.kill()
        assert_gone(ends)
        c.end()
        assert cluster.list() == []


def test_a_lease_is_held_by_those_who_live(tmp_path):
    (tmp_path / lease.FILE).touch()
    descriptor = os.open(tmp_path / lease.FILE, os.O_RDWR)
    try:
        assert not lease.has_clients(descriptor)
        one, two = lease.Lease(tmp_path), lease.Lease(tmp_path)
        one.release()
        assert lease.has_clients(descriptor)
        two.release()
        assert not lease.has_clients(descriptor)
        first = "from tutorial_dl.cluster import lease; from pathlib import Path\n"
        with other(first + f"held = lease.Lease(Path({str(tmp_path)!r}))") as kernel:
            # A process that a kernel starts does not hold the kernel's lease.
            kernel.run("import subprocess; p = subprocess.Popen(['sleep', '20']); print(p.pid)")
            child = psutil.Process(kernel.process.pid).children()[0]
            assert lease.has_clients(descriptor)
            kernel.process.kill()
            kernel.process.wait()
            assert child.is_running() and not lease.has_clients(descriptor)
            child.kill()
    finally:
        os.close(descriptor)


# From a terminal -------------------------------------------------------------------------------


def test_from_a_terminal():
    assert command("list").stdout == "no cluster is running\n"
    done = command("start", "-n", "2", "--name", "demo", "--keep", "30")
    assert done.returncode == 0, done.stderr
    assert "2 engines = MPI ranks 0 to 1" in done.stdout
    assert 'cluster.join("demo"); within 30 s' in done.stdout and "\r" not in done.stdout
    head, line = command("list").stdout.splitlines()
    assert head.split() == ["name", "engines", "profile", "host", "state", "age"]
    assert re.fullmatch(r"demo +2 +local +\S+ +running +\d+ s", line)
    [entry] = json.loads(command("list", "--json").stdout)
    assert entry["name"] == "demo" and entry["n"] == 2
    c = cluster.join("demo")
    c.run("from mpi4py import MPI; n = MPI.COMM_WORLD.allreduce(1)", timeout=600)
    assert c["n"] == [2, 2]
    found = processes_of(c._record)
    assert command("stop", "demo").stdout == "stopped demo\n"
    assert_gone(found)
    done = command("stop", "demo")
    assert done.returncode == 2
    assert done.stderr == "error: there is no cluster 'demo'; running: none\n"
    assert command("stop", "--all").returncode == 0
    c.leave()


@pytest.mark.parametrize(
    "words, says",
    [
        (["start", "-n", "0"], "number of ranks must be from 1 to 1024, got 0"),
        (["start", "--profile", "grid"], "there is no profile 'grid'"),
        (["start", "--keep", "0"], "keep must be a number of seconds above 0, got 0.0"),
        (
            ["start", "--name", "a b"],
            "name must be 1 to 40 letters, digits, dots, hyphens or underscores",
        ),
        (["start", "--timeout", "x"], "'--timeout'"),
        (["stop", "x", "--all"], "give either --all or a name, got --all and 'x'"),
        (["lst"], "No such command 'lst'"),
    ],
)
def test_bad_words_are_one_line(capfd, words, says):
    done = run_here(capfd, "cluster", *words)
    assert done.returncode == 2 and says in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout


def test_help_is_there_at_once_and_imports_nothing_heavy():
    for words in (["--help"], ["start", "--help"], ["profiles"]):
        assert command(*words).returncode == 0
    code = "import sys, tutorial_dl.cli; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"ipyparallel", "IPython", "zmq", "mpi4py.MPI", "tensorflow"} & set(loaded)


# Progress --------------------------------------------------------------------------------------


def test_progress_is_one_line_in_a_terminal_and_nothing_elsewhere(capsys, monkeypatch):
    silent = processes.Progress()
    silent.update("starting")
    silent.clear()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = processes.Progress()
    for text in ("starting the controller", "0 of 4 engines", "0 of 4 engines", "4 of 4 engines"):
        shown.update(text)
    shown.clear()
    out = capsys.readouterr().out
    assert "\n" not in out
    first, second, third, last = [part for part in out.split("\r")[1:] if part]
    assert first == "starting the controller, 0 s"
    assert second == "0 of 4 engines, 0 s".ljust(len(first)) and third.startswith("4 of 4 engines")
    assert not last.strip()  # wiped out


@pytest.mark.thorough
def test_restarts_whatever_the_engines_do(tmp_path):
    restarts(5, tmp_path)


IMPORTS = "import os; from pathlib import Path; from mpi4py import MPI"


def restarts(times, folder):
    """Restart engines that are idle, in an MPI call, computing, stopped by a signal, or killed."""
    busy = {1: "MPI.COMM_WORLD.recv(source=0)", 2: "while True: pass"}
    with cluster.start(n=2, timeout=SECONDS) as c:
        for number in range(times):
            view = c.client[:]
            if number % 5 in busy:
                begun = f"Path({str(folder)!r}, '{number}-' + str(os.getpid())).touch()"
                view.execute(f"{IMPORTS}\n{begun}\n{busy[number % 5]}", block=False)
                until(lambda number=number: len([*folder.glob(f"{number}-*")]) == 2)
            elif number % 5 == 3:
                os.kill(c.status()[1].pid, signal.SIGSTOP)
            elif number % 5 == 4:
                os.kill(c.status()[0].pid, signal.SIGKILL)
            with clock.seconds("a restart"):
                c.restart()
            c.client[:].execute("n = MPI.COMM_WORLD.allreduce(1)", block=True)
            assert c["n"] == [2, 2]

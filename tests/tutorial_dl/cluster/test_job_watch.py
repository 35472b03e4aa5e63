"""A client notices the end of its batch job by any one sign, and asks the system only then."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tutorial_dl.cluster import batch_job, job_watch
from tutorial_dl.cluster.batch_job import Job

SECONDS = 300


class Client:
    """Three engines; those in `silent` answer no question."""

    def __init__(self):
        self.connected, self.silent = True, set()
        self.uuids = {rank: str(rank) for rank in range(3)}

    def ask(self, rank: int, question: str) -> Future:
        answer: Future = Future()
        if rank not in self.silent:
            answer.set_result({})
        return answer


class Watched:
    """A JobWatch of job 7 with a real log and a real port, whose batch system answers `state`."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.state, self.then = folder, "RUNNING", ""
        self.answered = threading.Event()
        monkeypatch.setattr(batch_job, "_run", self._run)
        for name, seconds in {"LOOK": 0.05, "CUT_OFF": 0.2, "ASK_EVERY": 0.1}.items():
            monkeypatch.setattr(job_watch, name, seconds)
        self.client = Client()
        self.deaths = SimpleNamespace(happened=threading.Event(), first=[])
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.engines = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(3)]
        self.accepted = [self.server.accept()[0] for _ in range(3)]
        (folder / "connection").write_text(json.dumps({"hb_ping": self.port}))
        self.job = Job("slurm", "7", folder / "job.log")

    def start(self) -> job_watch.JobWatch:
        hosts = ["n1", "n2", "n2"]
        return job_watch.JobWatch(
            self.job, self.client, self.folder / "connection", self.deaths, hosts
        )

    def _run(self, command, **_):
        self.answered.set()
        out = f"{self.state} (None)\n" if command[0] == "squeue" else f"JobState={self.state}\n"
        if command[0] == "scontrol":
            self.state = self.then or self.state
        return SimpleNamespace(args=command, returncode=0, stdout=out, stderr="")

    def ends(self, watch: job_watch.JobWatch) -> str:
        """The line of the cell that runs, which ends by itself."""
        assert self.deaths.happened.wait(SECONDS)
        [line] = watch.lost(False)
        return line


@pytest.fixture
def watched(tmp_path, monkeypatch):
    made = Watched(tmp_path, monkeypatch)
    yield made
    made.client.connected = False
    for each in [made.server, *made.engines, *made.accepted]:
        each.close()
    for thread in threading.enumerate():
        if thread.name == "job":
            thread.join(SECONDS)
            assert not thread.is_alive(), "the watch outlives its client"


def test_nothing_is_asked_without_a_sign(watched):
    watch = watched.start()
    assert not watched.answered.wait(3 * job_watch.LOOK) and watch.lost(False) == []


def test_the_reason_of_an_end_is_waited_for(watched, monkeypatch):
    monkeypatch.setattr(job_watch, "AT_ONCE", SECONDS)
    watch = watched.start()
    watched.state, watched.then = "COMPLETING", "CANCELLED"
    assert watch.lost(True) == [
        "job 7 was cancelled: c.restart() submits a new job (variables are lost)"
    ]


def test_a_cell_that_finds_an_engine_gone_waits_for_the_answer(watched, monkeypatch):
    monkeypatch.setattr(job_watch, "AT_ONCE", SECONDS)
    watch = watched.start()
    watched.state = "TIMEOUT"
    [line] = watch.lost(True)
    assert line.startswith("job 7 reached its time limit: c.restart()")


def test_an_engine_that_died_is_better_known_than_its_job(watched, monkeypatch):
    """Process watch names the rank; that the job ended after it adds nothing."""
    monkeypatch.setattr(job_watch, "AT_ONCE", SECONDS)
    watch = watched.start()
    watched.state, watched.deaths.first = "FAILED", [2]
    assert watch.lost(True) == [] and watch.why == "job 7 ended"
    watched.deaths.first = []
    assert watch.lost(True)[0].startswith("job 7 ended: c.restart() submits a new job")


def test_connections_that_end_are_a_sign(watched):
    watch = watched.start()
    watched.state = "NODE_FAIL"
    watched.engines[2].close()
    watched.accepted[2].close()
    assert watched.ends(watch).startswith("job 7 ended because a node failed: ")


def test_a_node_that_is_cut_off_while_the_job_runs(watched):
    watch = watched.start()
    watched.client.silent = {1, 2}
    for each in (watched.engines[1:], watched.accepted[1:]):
        for one in each:
            one.close()
    assert watched.ends(watch) == (
        "ranks 1, 2 on n2 lost the connection to the controller, though job 7 runs: "
        "c.restart() gives new engines (variables are lost)"
    )
    watched.state = "NODE_FAIL"  # now the batch system knows, too
    deadline = time.monotonic() + SECONDS
    while watch.lost(False)[0].startswith("ranks 1, 2"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert watch.lost(False)[0].startswith("job 7 ended because a node failed: c.restart() submits")


def test_engines_that_connect_again(watched):
    watch = watched.start()
    watched.engines[2].close()
    watched.accepted[2].close()
    assert "1 of 3 engines lost the connection" in watched.ends(watch)  # all of them answer
    watched.engines.append(socket.create_connection(("127.0.0.1", watched.port)))
    watched.accepted.append(watched.server.accept()[0])
    deadline = time.monotonic() + SECONDS
    while watch.lost(False) or watched.deaths.happened.is_set():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    watched.state = "CANCELLED"
    del watched.client.uuids[1]
    assert watched.ends(watch).startswith("job 7 was cancelled: ")


def test_a_controller_that_ended_is_no_end_of_the_job(watched):
    """It ends at another notebook's restart; the engines' connections end with it."""
    watch = watched.start()
    for each in [watched.server, *watched.engines, *watched.accepted]:
        each.close()
    assert watched.answered.wait(SECONDS)
    assert not watched.deaths.happened.wait(job_watch.CUT_OFF + 3 * job_watch.LOOK)
    assert watch.lost(False) == []


def test_an_unregistered_engine_is_a_sign(watched):
    watched.state = "CANCELLED"
    watch = watched.start()
    del watched.client.uuids[1]
    assert watched.ends(watch).startswith("job 7 was cancelled: ")


def test_counting_connections():
    with contextlib.ExitStack() as sockets:
        server = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        assert job_watch.connections(port) == 0
        client = sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
        accepted = sockets.enter_context(server.accept()[0])
        assert job_watch.connections(port) == 1
        client.close()
        accepted.close()
        assert job_watch.connections(port) == 0
    assert job_watch.connections(port) is None
    assert job_watch.connections(None) is None

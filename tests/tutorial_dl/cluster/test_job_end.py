"""Why a batch job ended or waits in vain, and how a client notices its end: by any one sign."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tutorial_dl.cluster import batch_job, job_watch
from tutorial_dl.cluster.batch_job import Job

SECONDS = 300

# Slurm 22.05: `scontrol show job --oneliner`, shortened.
SCONTROL = (
    "JobId=7 JobName=tutorial-short UserId=student(61000) JobState={} Reason={} Dependency=(null) "
    "Requeue=0 Restarts=0 BatchFlag=1 ExitCode=0:15 RunTime=00:01:18 TimeLimit=00:01:00 "
    "NodeList=n[1-2] BatchHost=n1 NumNodes=2\n"
)
SLURM = {"sacct": "CANCELLED by 0\n", "sinfo": "n1 mixed\nn2 down*\n"}
# OpenPBS: `qstat -x -f`, with a comment that is folded.
QSTAT = """\
Job Id: 7.server
    Job_Name = tutorial-x
    job_state = {}
    Exit_status = {}
    Resource_List.walltime = 00:01:00
    comment = Job run at Tue Nov 24 at 12:00 on (n1:ncpus=2) and
\t{}
"""
# LSF 10.1: `bjobs -l`.
BJOBS = """\

Job <7>, Job Name <tutorial-x>, User <student>, Project <default>, Status <EXIT>

 RUNLIMIT
 1.0 min of host1
Tue Nov 24 12:19:20: Exited; TERM_{}
"""


def slurm(state: str, reason: str = "None", programs=SLURM) -> dict[str, str]:
    return {"scontrol": SCONTROL.format(state, reason), **programs}


FAILED = {"scontrol": "JobState=FAILED Reason=NonZeroExitCode ExitCode=139:0\n"}


@pytest.fixture
def says(monkeypatch):
    """says(program=text, ...): what programs of the batch system answer; others are not there."""

    def answers(**text: str) -> None:
        def run(command, stdin=subprocess.DEVNULL):
            if command[0] not in text:
                raise batch_job.JobError(f"{command[0]} is not installed on this machine")
            return subprocess.CompletedProcess(command, 0, text[command[0]], "")

        monkeypatch.setattr(batch_job, "_run", run)

    return answers


@pytest.mark.parametrize(
    "system, answers, log, words",
    [
        ("slurm", slurm("COMPLETING", "TimeLimit"), "", "reached its time limit of 00:01:00"),
        ("slurm", slurm("TIMEOUT", "TimeLimit"), "", "reached its time limit of 00:01:00"),
        ("slurm", slurm("CANCELLED"), "", "was cancelled by root"),
        ("slurm", slurm("COMPLETING", "NodeDown"), "", "ended because node n2 failed"),
        ("slurm", slurm("NODE_FAIL", "NodeDown"), "", "ended because node n2 failed"),
        ("slurm", slurm("PREEMPTED"), "", "was preempted by another job"),
        ("slurm", slurm("OUT_OF_MEMORY", "OutOfMemory"), "", "ran out of memory"),
        ("slurm", slurm("COMPLETING"), "", None),  # the reason follows
        # A Slurm that keeps no accounts
        ("slurm", slurm("CANCELLED", programs={}), "", "was cancelled"),
        ("slurm", slurm("NODE_FAIL", programs={}), "", "ended because a node failed"),
        # Nobody ended the job
        ("slurm", FAILED, "", "ended with exit status 139"),
        ("slurm", FAILED, "x\nsrun: error: n2: task 3: Killed\n", "ended: n2: task 3: Killed"),
        ("slurm", {}, "", "ended"),  # nothing is known of it any more
        ("slurm", {"scontrol": "JobState=TIMEOUT TimeLimit=UNLIMITED"}, "", "reached its time lim"),
        (
            "pbs",
            {"qstat": QSTAT.format("F", "-29", "exceeded resource walltime")},
            "",
            "reached its time limit of 00:01:00",
        ),
        ("pbs", {"qstat": QSTAT.format("F", "271", "terminated")}, "", "was cancelled"),
        ("pbs", {"qstat": QSTAT.format("F", "-27", "exceeded resource mem")}, "", "ran out of mem"),
        ("pbs", {"qstat": QSTAT.format("F", "3", "failed")}, "", "ended with exit status 3"),
        ("lsf", {"bjobs": BJOBS.format("RUNLIMIT: ...")}, "", "reached its time limit of 1.0 min"),
        ("lsf", {"bjobs": BJOBS.format("OWNER: killed by owner.")}, "", "was cancelled"),
        ("lsf", {"bjobs": BJOBS.format("ADMIN: ...")}, "", "was cancelled by an administrator"),
        ("lsf", {"bjobs": BJOBS.format("MEMLIMIT: ...")}, "", "ran out of memory"),
    ],
)
def test_why_a_job_ended(system, answers, log, words, says, tmp_path):
    says(**answers)
    (tmp_path / "job.log").write_text(log)
    job = Job(system, "7", tmp_path / "job.log")
    why = job.why_ended()
    assert why is None if words is None else why.startswith(f"job 7 {words}")


# Jobs that wait ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "system, said, never",
    [
        ("slurm", "PENDING (PartitionTimeLimit)", True),
        ("slurm", "PENDING (PartitionConfig)", True),
        ("slurm", "PENDING (QOSMaxWallDurationPerJobLimit)", True),
        ("slurm", "PENDING (AssocMaxCpuPerJobLimit)", True),
        ("slurm", "PENDING (BadConstraints)", True),
        ("slurm", "PENDING (AssocMaxJobsLimit)", False),  # until another job of ours ends
        ("slurm", "PENDING (QOSMaxJobsPerUserLimit)", False),
        ("slurm", "PENDING (Resources)", False),
        ("slurm", "PENDING (PartitionDown)", False),
        ("slurm", "RUNNING", False),
        ("pbs", "Q (Can Never Run: Insufficient amount of resource: ncpus)", True),
        ("pbs", "Q (Not Running: Insufficient amount of resource: ncpus)", False),
        ("lsf", "PEND", False),
    ],
)
def test_jobs_that_can_never_run(system, said, never, tmp_path):
    assert Job(system, "7", tmp_path / "job.log").can_never_run(said) == never


def test_states(says, tmp_path):
    def state(system: str) -> str | None:
        return Job(system, "7", tmp_path / "job.log").state()

    says(squeue="COMPLETING (TimeLimit)\n")  # its processes end, and no new ones may start
    assert state("slurm") is None
    says(squeue="PENDING (PartitionTimeLimit)\n")
    assert state("slurm") == "PENDING (PartitionTimeLimit)"
    text = "Job Id: 7.server\n    job_state = Q\n    comment = Can Never Run: Insufficient amount\n"
    says(qstat=text + "\t of resource: ncpus (R: 400 A: 8)\n    etime = Tue\n")
    assert state("pbs") == "Q (Can Never Run: Insufficient amount of resource: ncpus (R: 400 A: 8))"
    says(qstat=QSTAT.format("R", "0", "runs"))
    assert state("pbs") == "R"


# A client notices the end, and asks the system only then -----------------------------------------


class Client:
    """Three engines; those in `silent` answer no question."""

    def __init__(self):
        self.connected, self.silent = True, set()
        self.uuids = {rank: str(rank) for rank in range(3)}

    def ask(self, rank: int) -> Future:
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

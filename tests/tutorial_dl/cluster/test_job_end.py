"""Why a batch job ended, from recorded answers of Slurm, PBS and LSF."""

from __future__ import annotations

import subprocess

import pytest

from tutorial_dl.cluster import batch_job, job_end
from tutorial_dl.cluster.batch_job import Job

# Slurm 22.05: `scontrol show job --oneliner`, shortened.
SCONTROL = (
    "JobId=7 JobName=tutorial-short UserId=student(61000) JobState={} Reason={} Dependency=(null) "
    "Requeue=0 Restarts=0 BatchFlag=1 ExitCode=0:15 RunTime=00:01:18 TimeLimit=00:01:00 "
    "NodeList=n[1-2] BatchHost=n1 NumNodes=2\n"
)
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


def ended(tmp_path, system: str, log: str = "") -> str | None:
    (tmp_path / "job.log").write_text(log)
    job = Job(system, "7", tmp_path / "job.log")
    return job_end.why(job, job.report())


@pytest.mark.parametrize(
    "answer, words",
    [
        (("COMPLETING", "TimeLimit"), "reached its time limit of 00:01:00"),
        (("TIMEOUT", "TimeLimit"), "reached its time limit of 00:01:00"),
        (("CANCELLED", "None"), "was cancelled by root"),
        (("COMPLETING", "NodeDown"), "ended because node n2 failed"),
        (("NODE_FAIL", "NodeDown"), "ended because node n2 failed"),
        (("PREEMPTED", "None"), "was preempted by another job"),
        (("OUT_OF_MEMORY", "OutOfMemory"), "ran out of memory"),
        (("COMPLETING", "None"), None),  # the reason follows
    ],
)
def test_slurm(answer, words, says, tmp_path):
    says(
        scontrol=SCONTROL.format(*answer),
        sacct="CANCELLED by 0\n",
        sinfo="n1 mixed\nn2 down*\n",
    )
    assert ended(tmp_path, "slurm") == (words and f"job 7 {words}")


def test_slurm_that_keeps_no_accounts(says, tmp_path):
    says(scontrol=SCONTROL.format("CANCELLED", "None"))
    assert ended(tmp_path, "slurm") == "job 7 was cancelled"
    says(scontrol=SCONTROL.format("NODE_FAIL", "None"))
    assert ended(tmp_path, "slurm") == "job 7 ended because a node failed"


@pytest.mark.parametrize(
    "answer, words",
    [
        (("F", "-29", "exceeded resource walltime"), "reached its time limit of 00:01:00"),
        (("F", "271", "terminated"), "was cancelled"),
        (("F", "-27", "exceeded resource mem"), "ran out of memory"),
        (("F", "3", "failed"), "ended with exit status 3"),
    ],
)
def test_pbs(answer, words, says, tmp_path):
    says(qstat=QSTAT.format(*answer))
    assert ended(tmp_path, "pbs") == f"job 7 {words}"


@pytest.mark.parametrize(
    "reason, words",
    [
        ("RUNLIMIT: job killed after reaching LSF run time limit.", "reached its time limit of 1"),
        ("OWNER: job killed by owner.", "was cancelled"),
        ("ADMIN: job killed by root or LSF administrator.", "was cancelled by an administrator"),
        ("MEMLIMIT: job killed after reaching LSF memory usage limit.", "ran out of memory"),
    ],
)
def test_lsf(reason, words, says, tmp_path):
    says(bjobs=BJOBS.format(reason))
    assert ended(tmp_path, "lsf").startswith(f"job 7 {words}")


def test_a_job_that_nobody_ended(says, tmp_path):
    says(scontrol="JobState=FAILED Reason=NonZeroExitCode ExitCode=139:0\n")
    assert ended(tmp_path, "slurm") == "job 7 ended with exit status 139"
    assert ended(tmp_path, "slurm", "x\nsrun: error: n2: task 3: Killed\n") == (
        "job 7 ended: n2: task 3: Killed"
    )
    says()  # nothing is known of it any more
    assert ended(tmp_path, "slurm") == "job 7 ended"


@pytest.mark.parametrize(
    "answer, words",
    [
        ("TimeLimit=00:00:30", " of 0.5 min"),
        ("TimeLimit=1-02:30:00", " of 26 h 30 min"),
        ("TimeLimit=UNLIMITED", ""),
        ("Resource_List.walltime = 02:00:00", " of 2 h"),
        (" RUNLIMIT                \n 90.0 min of host1", " of 1 h 30 min"),
    ],
)
def test_limits(answer, words):
    assert job_end.limit(answer) == words


# Jobs that wait ----------------------------------------------------------------------------------

"""Why a batch job ended, and whether it waits in vain, from recorded answers of batch systems."""

from __future__ import annotations

import subprocess

import pytest

from tutorial_dl.cluster import batch_job
from tutorial_dl.cluster.batch_job import Job

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

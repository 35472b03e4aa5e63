"""Why a batch job ended, from recorded answers of Slurm, PBS and LSF and the ends of its log."""

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
STEPD = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-24T12:19:19{} ***\n"
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
    (tmp_path / "job.head").write_text(log)
    job = Job(system, "7", tmp_path / "job.log")
    return job_end.why(job, job_end.official(job), job.report())


@pytest.mark.parametrize(
    "log, answer, words",
    [
        (" DUE TO TIME LIMIT", ("COMPLETING", "None"), "reached its time limit of 1 min"),
        (None, ("TIMEOUT", "TimeLimit"), "reached its time limit of 1 min"),
        ("", ("COMPLETING", "None"), "was cancelled by root"),
        (None, ("CANCELLED", "None"), "was cancelled by root"),
        (
            " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS",
            ("COMPLETING", "NodeDown"),
            "ended because node n2 failed",
        ),
        (None, ("NODE_FAIL", "NodeDown"), "ended because node n2 failed"),
        (" DUE TO PREEMPTION", ("PREEMPTED", "None"), "was preempted by another job"),
        (None, ("OUT_OF_MEMORY", "OutOfMemory"), "ran out of memory"),
    ],
)
def test_slurm(log, answer, words, says, tmp_path):
    says(
        scontrol=SCONTROL.format(*answer),
        sacct="CANCELLED by 0\n",
        sinfo="n1 mixed\nn2 down*\n",
    )
    assert ended(tmp_path, "slurm", "" if log is None else STEPD.format(log)) == f"job 7 {words}"


def test_slurm_that_keeps_no_accounts_and_has_forgotten_the_job(says, tmp_path):
    says()  # no program answers
    log = STEPD.format(" DUE TO NODE FAILURE") + "srun: error: Node failure on n2\n"
    assert ended(tmp_path, "slurm", log) == "job 7 ended because node n2 failed"
    assert ended(tmp_path, "slurm", STEPD.format("")) == "job 7 was cancelled"
    assert ended(tmp_path, "slurm", STEPD.format(" DUE TO TIME LIMIT")) == (
        "job 7 reached its time limit"
    )


def test_a_users_output_is_not_taken_for_the_batch_systems(says, tmp_path):
    says(scontrol=SCONTROL.format("RUNNING", "None"))
    assert ended(tmp_path, "slurm", "I saw *** JOB 7 ON n1 CANCELLED AT noon ***\n") is None


@pytest.mark.parametrize(
    "log, answer, words",
    [
        ("=>> PBS: job killed: walltime 62 exceeded limit 60\n", None, "reached its time limit"),
        ("", ("F", "-29", "exceeded resource walltime"), "reached its time limit of 1 min"),
        ("", ("F", "271", "terminated"), "was cancelled"),
        ("", ("F", "-27", "exceeded resource mem"), "ran out of memory"),
        ("", ("R", "0", "runs"), None),
    ],
)
def test_pbs(log, answer, words, says, tmp_path):
    says(**({"qstat": QSTAT.format(*answer)} if answer else {}))
    assert ended(tmp_path, "pbs", log) == (words and f"job 7 {words}")


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


def test_a_job_that_nobody_ended(tmp_path):
    job = Job("slurm", "7", tmp_path / "job.log")
    own = "tutorial_dl job: the job's command ended with exit status 139\n"
    assert job_end.by_itself(job, own) == "job 7 ended with exit status 139"
    killed = "srun: error: n2: task 3: Killed\n" + own
    assert job_end.by_itself(job, killed) == "job 7 ended: n2: task 3: Killed"
    assert job_end.by_itself(job, "") == "job 7 ended"


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

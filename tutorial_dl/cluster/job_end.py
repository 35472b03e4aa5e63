"""Why a batch job ended, in words: "job 31 reached its time limit of 00:01:00".

The batch system is asked. The end of the log is looked at for what it does not tell: which rank of
a job that nobody ended was the first to end, and which node failed.
"""

from __future__ import annotations

import contextlib
import pwd
import re

from .batch_job import Job, JobError

LIMIT = r"reached its time limit{limit}"
MEMORY, CANCELLED = "ran out of memory", "was cancelled{by}"
NODE, PREEMPTED = "ended because {node} failed", "was preempted by another job"
REQUEUED = "was put back into the queue"

# By system: expressions for its answer, and what they mean; the first that matches counts.
ENDS = {
    "slurm": (
        (r"JobState=(?:TIMEOUT|DEADLINE)|Reason=TimeLimit", LIMIT),
        (r"JobState=(?:NODE_FAIL|BOOT_FAIL)|Reason=NodeDown", NODE),
        (r"JobState=PREEMPTED", PREEMPTED),
        (r"JobState=OUT_OF_MEMORY", MEMORY),
        (r"JobState=REQUEUED", REQUEUED),
        (r"JobState=CANCELLED", CANCELLED),
    ),
    "pbs": (
        (r"exceeded resource walltime|Exit_status = -29", LIMIT),
        (r"exceeded resource (?:v|p)?mem|Exit_status = -27", MEMORY),
        (r"node fail|Exit_status = -(?:10|11|12)\b", NODE),
        (r"and terminated|Exit_status = 271\b", CANCELLED),
    ),
    "lsf": (
        (r"TERM_RUNLIMIT|TERM_DEADLINE", LIMIT),
        (r"TERM_MEMLIMIT|TERM_SWAP", MEMORY),
        (r"TERM_ZOMBIE|TERM_UNKNOWN_HOST|job has been lost", NODE),
        (r"TERM_PREEMPT", PREEMPTED),
        (r"TERM_REQUEUE\w*", REQUEUED),
        (r"TERM_ADMIN", "was cancelled by an administrator"),
        (r"TERM_(?:OWNER|FORCE_OWNER|FORCE_ADMIN|EXTERNAL_SIGNAL)", CANCELLED),
    ),
}
ENDING = re.compile(r"JobState=COMPLETING")  # Slurm: the reason follows
# The time limit, as the system writes it: "[D-]HH:MM:SS", or LSF's "1.0 min"
TIME = re.compile(
    r"\bTimeLimit=(\d[\d:-]*)|Resource_List\.walltime = ([\d:]+)|RUNLIMIT\s+([\d.]+ min)"
)
STATUS = re.compile(r"\bExitCode=(\d+):|\bExit_status = (\d+)|[Ee]xit code (\d+)")
# What a launcher says of ranks that ended, such as "srun: error: n2: task 3: Killed".
OF_RANKS = re.compile(r"^(?:srun|slurmstepd\S*): error: (\S+: tasks? .*)$", re.MULTILINE)


def why(job: Job, answer: str) -> str | None:
    """Why `job`, which has ended, did, from its system's answer; None if the reason follows."""
    for pattern, phrase in ENDS[job.system]:
        if re.search(pattern, answer):
            filled = phrase.format(limit=limit(answer), by=by(job), node=node(job, answer))
            return f"{job} {filled}"
    return None if ENDING.search(answer) else by_itself(job, answer)


def nobody_ended(job: Job, words: str) -> bool:
    """Whether `why` has found nobody and nothing that ended the job, but what ran in it."""
    return words.startswith(f"{job} ended") and not words.startswith(f"{job} ended because")


def by_itself(job: Job, answer: str) -> str:
    """The end of a job that nobody ended: what the launcher, or else the job's program, said."""
    if found := OF_RANKS.search("\n".join(job.tail())):
        return f"{job} ended: {found[1]}"
    status = STATUS.search(answer)
    number = next(filter(None, status.groups()), "0") if status else "0"
    return f"{job} ended{f' with exit status {number}' if int(number) else ''}"


def limit(answer: str) -> str:
    """Such as " of 00:01:00"; "" if the answer has no time limit."""
    found = TIME.search(answer)
    return f" of {next(filter(None, found.groups()))}" if found else ""


def by(job: Job) -> str:
    """Such as " by root"; "" if the system does not tell. Slurm's accounting does."""
    if job.system != "slurm":
        return ""
    with contextlib.suppress(JobError, KeyError):
        said = job.ask(["sacct", "-X", "--noheader", "--parsable2", "--format=State", "-j"])
        if found := re.search(r"CANCELLED by (\d+)", said):
            return f" by {pwd.getpwuid(int(found[1])).pw_name}"
    return ""


def node(job: Job, answer: str) -> str:
    """The nodes of a job that are down, such as "node n2"; "a node" if that is unknown."""
    # Slurm's list of the job's nodes gets shorter while the job ends; srun's line names the node.
    names = re.findall(r"^srun: error: Node failure on (\S+)", "\n".join(job.tail()), re.M)
    of = re.search(r"\bNodeList=(\S+)", answer)
    if not names and job.system == "slurm" and of and of[1] != "(null)":
        with contextlib.suppress(JobError):
            # "down*": the star is for a node that does not respond
            said = job.ask(["sinfo", "--noheader", "--Node", "--format=%N %T", "--nodes"], of[1])
            names = [line.split()[0] for line in said.splitlines() if re.search(r" down|\*$", line)]
    names = sorted(set(names))
    return f"node{'s'[: len(names) > 1]} {', '.join(names)}" if names else "a node"

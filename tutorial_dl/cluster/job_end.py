"""Why a batch job ended, in words: "job 31 reached its time limit of 1 min".

Two sources tell: the end of the job's log, where the batch system writes at once, and what the
batch system answers, which needs no shared file system. The tables below are for the words of both.
"""

from __future__ import annotations

import contextlib
import pwd
import re

from .batch_job import Job, JobError

LIMIT = r"reached its time limit{limit}"
MEMORY, CANCELLED = "ran out of memory", "was cancelled{by}"
NODE, PREEMPTED = "ended because {node} failed", "was preempted by another job"

# By system: expressions for log and answer, and what they mean; the first that matches counts.
ENDS = {
    "slurm": (
        (r"DUE TO TIME LIMIT|JobState=(?:TIMEOUT|DEADLINE)|Reason=TimeLimit", LIMIT),
        (r"DUE TO NODE FAIL|JobState=(?:NODE_FAIL|BOOT_FAIL)|Reason=NodeDown", NODE),
        (r"DUE TO PREEMPTION|JobState=PREEMPTED", PREEMPTED),
        (r"JobState=OUT_OF_MEMORY|oom[-_]kill", MEMORY),
        (r"DUE TO JOB REQUEUE|JobState=REQUEUED", "was put back into the queue"),
        (r"\*\*\* JOB \d+ ON \S+ CANCELLED|JobState=CANCELLED", CANCELLED),
    ),
    "pbs": (
        (r"job killed: walltime|exceeded resource walltime|Exit_status = -29", LIMIT),
        (r"job killed: v?mem|exceeded resource (?:v|p)?mem|Exit_status = -27", MEMORY),
        (r"node fail|Exit_status = -(?:10|11|12)\b", NODE),
        (r"and terminated|PBS: job killed|Exit_status = 271\b", CANCELLED),
    ),
    "lsf": (
        (r"TERM_RUNLIMIT|TERM_DEADLINE", LIMIT),
        (r"TERM_MEMLIMIT|TERM_SWAP", MEMORY),
        (r"TERM_ZOMBIE|TERM_UNKNOWN_HOST|job has been lost", NODE),
        (r"TERM_PREEMPT", PREEMPTED),
        (r"TERM_REQUEUE\w*", "was put back into the queue"),
        (r"TERM_ADMIN", "was cancelled by an administrator"),
        (r"TERM_(?:OWNER|FORCE_OWNER|FORCE_ADMIN|EXTERNAL_SIGNAL)", CANCELLED),
    ),
}
# The time limit, "[[D-]HH:]MM:SS" or LSF's "1.0 min".
TIME = re.compile(
    r"\bTimeLimit=(\d[\d:-]*)|Resource_List\.walltime = ([\d:]+)|RUNLIMIT\s+([\d.]+) min"
)
# What a launcher says of ranks that ended, such as "srun: error: n2: task 3: Killed".
OF_RANKS = re.compile(r"^(?:srun|slurmstepd\S*): error: (\S+: tasks? .*)$", re.MULTILINE)
# Lines in a log that neither a user's program nor an engine writes.
OFFICIAL = re.compile(
    r"^(?:slurmstepd\S*: |srun: |=>> PBS: |TERM_[A-Z]+|tutorial_dl job: ).*$", re.MULTILINE
)
TAIL = 8192  # bytes of a log that are looked at
OWN = "the job's command ended with exit status "  # job_runner.py prints it


def official(job: Job) -> str:
    """The lines of the batch system and of job_runner.py at the ends of the job's logs."""
    text = ""
    for file in (job.log.with_suffix(".head"), job.log):
        with contextlib.suppress(OSError), open(file, "rb") as lines:
            lines.seek(max(0, file.stat().st_size - TAIL))
            text += lines.read().decode(errors="replace") + "\n"
    return "\n".join(OFFICIAL.findall(text))


def why(job: Job, log: str, answer: str) -> str | None:
    """Why `job` ended, from the end of its log and its system's answer; None if neither tells."""
    text = f"{log}\n{answer}"
    for pattern, phrase in ENDS[job.system]:
        if re.search(pattern, text):
            filled = phrase.format(limit=limit(answer), by=by(job), node=node(job, text))
            return f"{job} {filled}"
    return None


def by_itself(job: Job, log: str) -> str:
    """The end of a job that nobody ended: what the launcher, or else the job's program, said."""
    if found := OF_RANKS.search(log):
        return f"{job} ended: {found[1]}"
    status = re.findall(re.escape(OWN) + r"(\d+)", log)
    return f"{job} ended{f' with exit status {status[-1]}' if status else ''}"


def limit(answer: str) -> str:
    """Such as " of 1 min"; "" if the answer has no time limit."""
    found = TIME.search(answer)
    if found is None:
        return ""
    if found[3]:
        minutes = float(found[3])
    else:
        days, _, clock = (found[1] or found[2]).rpartition("-")
        parts = [int(part) for part in clock.split(":") if part]
        seconds = sum(part * 60**i for i, part in enumerate(reversed(parts)))
        minutes = seconds / 60 + 1440 * int(days or 0)
    hours, rest = divmod(minutes, 60)
    parts = [f"{hours:g} h"] if hours else []
    parts += [f"{rest:g} min"] if rest or not hours else []
    return f" of {' '.join(parts)}"


def by(job: Job) -> str:
    """Such as " by root"; "" if the system does not tell. Slurm's accounting does."""
    if job.system != "slurm":
        return ""
    with contextlib.suppress(JobError, KeyError):
        said = job.ask(["sacct", "-X", "--noheader", "--parsable2", "--format=State", "-j"])
        if found := re.search(r"CANCELLED by (\d+)", said):
            return f" by {pwd.getpwuid(int(found[1])).pw_name}"
    return ""


def node(job: Job, text: str) -> str:
    """The nodes of a job that are down, such as "node n2"; "a node" if that is unknown."""
    names = re.findall(r"[Nn]ode failure on (\S+)", text)
    of = re.search(r"\bNodeList=(\S+)", text)
    if not names and job.system == "slurm" and of and of[1] != "(null)":
        with contextlib.suppress(JobError):
            # "down*": the star is for a node that does not respond
            said = job.ask(["sinfo", "--noheader", "--Node", "--format=%N %T", "--nodes"], of[1])
            names = [line.split()[0] for line in said.splitlines() if re.search(r" down|\*$", line)]
    names = sorted(set(names))
    return f"node{'s'[: len(names) > 1]} {', '.join(names)}" if names else "a node"

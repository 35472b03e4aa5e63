"""One batch job that holds all engines of a cluster (Slurm, PBS, LSF): submit, watch, cancel.

When it has ended, its system is asked why. The end of the log is looked at for what that does not
tell: which rank of a job that nobody ended was the first to end, and which node failed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from numba_kernels import launch


class System(NamedTuple):
    submit: tuple[str, ...]  # followed by the script's name; LSF reads it from standard input
    job_id: str  # regular expression for the id in the output of `submit`
    state: tuple[str, ...]  # followed by the id
    unknown: str  # output of `state` for a job that has ended and been forgotten
    ended: str  # states of a job that will not run any more
    never: str  # states of a waiting job that no waiting can help
    report: tuple[str, ...]  # followed by the id: what is known of a job, also soon after its end
    cancel: tuple[str, ...]  # followed by the id
    number: str  # the environment variable that has the id, in a job
    again: tuple[str, ...]  # puts a running job back, followed by its id; (): only managers may
    ends: tuple[tuple[str, str], ...]  # expressions for `report`, and what the first match means


LIMIT = "reached its time limit{limit}"
MEMORY, CANCELLED = "ran out of memory", "was cancelled{by}"
NODE, PREEMPTED = "ended because {node} failed", "was preempted by another job"
REQUEUED = "was put back into the queue"

SYSTEMS = {
    "slurm": System(
        ("sbatch", "--parsable"),
        r"^(\d+)(?:;\S+)?\s*$",  # "id;cluster" with several clusters
        ("squeue", "--noheader", "--format=%T (%r)", "--jobs"),
        r"Invalid job id",
        r"^(COMPLET|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|BOOT_FAIL|DEADLINE|PREEMPTED)",
        # Slurm's manual, "Job reasons": those that neither other jobs nor time change.
        r"^PENDING \((Partition(Config|TimeLimit|NodeLimit)|BadConstraints|Invalid(Account|QOS)"
        r"|DependencyNeverSatisfied|AccountNotAllowed|QOSNotAllowed|QOSMin\w+"
        r"|(Assoc|QOS)Max\w+PerJob(Limit)?)\)",
        ("scontrol", "show", "job", "--oneliner"),
        ("scancel",),
        "SLURM_JOB_ID",
        ("scontrol", "requeue"),
        (
            (r"JobState=(?:TIMEOUT|DEADLINE)|Reason=TimeLimit", LIMIT),
            (r"JobState=(?:NODE_FAIL|BOOT_FAIL)|Reason=NodeDown", NODE),
            (r"JobState=PREEMPTED", PREEMPTED),
            (r"JobState=OUT_OF_MEMORY", MEMORY),
            (r"JobState=REQUEUED", REQUEUED),
            (r"JobState=CANCELLED", CANCELLED),
        ),
    ),
    "pbs": System(
        ("qsub",),
        r"^(\d+(?:\.\S+)?)\s*$",  # "123.server"
        ("qstat", "-f"),
        r"[Uu]nknown [Jj]ob|has finished",
        r"^[CFE]\b",
        r"^Q \(Can Never Run",
        ("qstat", "-x", "-f"),
        ("qdel",),
        "PBS_JOBID",
        (),
        (
            (r"exceeded resource walltime|Exit_status = -29", LIMIT),
            (r"exceeded resource (?:v|p)?mem|Exit_status = -27", MEMORY),
            (r"node fail|Exit_status = -(?:10|11|12)\b", NODE),
            (r"and terminated|Exit_status = 271\b", CANCELLED),
        ),
    ),
    "lsf": System(
        ("bsub",),
        r"Job <(\d+)>",
        ("bjobs", "-noheader", "-o", "stat"),
        r"is not found",
        r"^(DONE|EXIT)",
        r"(?!)",  # bsub refuses such jobs
        ("bjobs", "-l"),
        ("bkill",),
        "LSB_JOBID",
        ("brequeue",),
        (
            (r"TERM_RUNLIMIT|TERM_DEADLINE", LIMIT),
            (r"TERM_MEMLIMIT|TERM_SWAP", MEMORY),
            (r"TERM_ZOMBIE|TERM_UNKNOWN_HOST|job has been lost", NODE),
            (r"TERM_PREEMPT", PREEMPTED),
            (r"TERM_REQUEUE\w*", REQUEUED),
            (r"TERM_ADMIN", "was cancelled by an administrator"),
            (r"TERM_(?:OWNER|FORCE_OWNER|FORCE_ADMIN|EXTERNAL_SIGNAL)", CANCELLED),
        ),
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
OF_A_JOB = re.compile(r"(SLURM|PBS|LSB)_.*")  # environment variables


FILE = "TUTORIAL_DL_JOB_FILE"  # environment variable: the script of the job that this runs in


class JobError(RuntimeError):
    """The batch system refused a command; the message is its answer."""


def environment() -> dict[str, str]:
    """Our environment without the variables of an outer job or mpiexec: the new job is another."""
    of_the_site = ("SLURM_CONF", "PBS_CONF_FILE", "PBS_DEFAULT")
    outer = launch.environment_without_ranks()
    env = {name: value for name, value in outer.items() if not OF_A_JOB.fullmatch(name)}
    env.update({name: os.environ[name] for name in of_the_site if name in os.environ})
    return {**env, "LSB_STDOUT_DIRECT": "Y"}  # LSF: write the output while the job runs


class Job:
    """A submitted job, by its id; it may have been submitted by another process."""

    def __init__(self, system: str, number: str, log: str | Path):
        self.system, self.number, self.log = system, number, Path(log)

    @classmethod
    def submit(cls, system: str, file: Path, log: Path) -> Job:
        """Submit the script in `file`; raises JobError if it is refused."""
        of = SYSTEMS[system]
        command = [*of.submit, *([] if system == "lsf" else [str(file)])]
        with open(file) as lines:
            done = _run(command, stdin=lines if system == "lsf" else subprocess.DEVNULL)
        found = re.search(of.job_id, done.stdout, re.MULTILINE)
        if done.returncode != 0 or found is None:
            said = " ".join((done.stderr + done.stdout).split()) or f"status {done.returncode}"
            raise JobError(f"{of.submit[0]} refused the job: {said}")
        return cls(system, found[1], log)

    @classmethod
    def put_back(cls) -> str:
        """Let the job that this process runs in run once more, and say so in a line.

        Raises:
            JobError: If this is no job, or its system refuses it.
        """
        for name, of in SYSTEMS.items():
            if (number := os.environ.get(of.number)) and of.again:
                done = _run([*of.again, number])
                if done.returncode:
                    raise JobError(f"{' '.join(of.again)}: {' '.join(done.stderr.split())}")
                return f"job {number} is put back into the queue"
            if number:
                file = os.environ.get(FILE)
                if file is None:
                    raise JobError(
                        f"{name.upper()} lets only managers put job {number} back: submit its file "
                        "again, or let `python -m tutorial_dl job train ... --submit` do so"
                    )
                return f"{cls.submit(name, Path(file), Path(file))} goes on in place of {number}"
        raise JobError("this is no job of Slurm, PBS or LSF, so it can't be put back into a queue")

    def __str__(self) -> str:
        return f"job {self.number}"

    @property
    def cancel_command(self) -> list[str]:
        return [*SYSTEMS[self.system].cancel, self.number]

    def state(self) -> str | None:
        """Such as "PENDING (Priority)"; None if it has ended; "unknown" if the server is busy."""
        of = SYSTEMS[self.system]
        try:
            done = _run([*of.state, self.number])
        except JobError:
            return "unknown"
        said = done.stdout.strip()
        if self.system == "pbs":
            comment = re.search(r"comment = (.*(?:\n\t.*)*)", said)  # long ones are folded
            found = re.search(r"job_state = (\S+)", said)
            said = found[1] if found else ""
            if said == "Q" and comment:
                said += f" ({comment[1].replace(chr(10) + chr(9), '')})"
        if re.search(of.unknown, done.stdout + done.stderr):
            return None
        if done.returncode != 0:
            return "unknown"
        if self.system == "slurm" and not said:
            return None  # a job that ended a moment ago
        said = said.removesuffix(" (None)")  # no reason why it does not run yet
        return None if re.search(of.ended, said) else said or "unknown"

    def can_never_run(self, state: str) -> bool:
        """Whether a job in this state waits for something that will not come."""
        return re.search(SYSTEMS[self.system].never, state) is not None

    def why_ended(self) -> str | None:
        """Why the job, which has ended, did: "job 31 was cancelled"; None if the reason follows."""
        answer = ""
        with contextlib.suppress(JobError):
            answer = self._ask(SYSTEMS[self.system].report)
        for pattern, phrase in SYSTEMS[self.system].ends:
            if re.search(pattern, answer):
                found = TIME.search(answer)
                limit = f" of {next(filter(None, found.groups()))}" if found else ""
                by = self._cancelled_by() if "{by}" in phrase else ""
                node = self._failed_nodes(answer) if "{node}" in phrase else ""
                return f"{self} {phrase.format(limit=limit, by=by, node=node)}"
        if ENDING.search(answer):
            return None
        if found := OF_RANKS.search("\n".join(self.tail())):
            return f"{self} ended: {found[1]}"
        status = STATUS.search(answer)
        number = next(filter(None, status.groups()), "0") if status else "0"
        return f"{self} ended{f' with exit status {number}' if int(number) else ''}"

    def _cancelled_by(self) -> str:
        """Such as " by root"; "" if the system does not tell. Slurm's accounting does."""
        if self.system != "slurm":
            return ""
        with contextlib.suppress(JobError, KeyError):
            said = self._ask(["sacct", "-X", "--noheader", "--parsable2", "--format=State", "-j"])
            if found := re.search(r"CANCELLED by (\d+)", said):
                return f" by {pwd.getpwuid(int(found[1])).pw_name}"
        return ""

    def _failed_nodes(self, answer: str) -> str:
        """The job's nodes that are down, such as "node n2"; "a node" if that is unknown."""
        # Slurm's list of the job's nodes gets shorter while the job ends; srun's line names one.
        names = re.findall(r"^srun: error: Node failure on (\S+)", "\n".join(self.tail()), re.M)
        of = re.search(r"\bNodeList=(\S+)", answer)
        if not names and self.system == "slurm" and of and of[1] != "(null)":
            with contextlib.suppress(JobError):
                # "down*": the star is for a node that does not respond
                ask = ["sinfo", "--noheader", "--Node", "--format=%N %T", "--nodes"]
                said = self._ask(ask, of[1]).splitlines()
                names = [line.split()[0] for line in said if re.search(r" down|\*$", line)]
        names = sorted(set(names))
        return f"node{'s'[: len(names) > 1]} {', '.join(names)}" if names else "a node"

    def _ask(self, command: Sequence[str], about: str | None = None) -> str:
        """The output of a command followed by the job's id, or by `about`; else JobError."""
        done = _run([*command, about or self.number])
        if done.returncode != 0:
            raise JobError(f"{command[0]}: {' '.join(done.stderr.split())}")
        return done.stdout

    def cancel(self) -> None:
        """Cancel the job, queued or running; does nothing if it has ended."""
        with contextlib.suppress(JobError):  # the job ends by itself without a controller
            _run(self.cancel_command)

    def tail(self) -> list[str]:
        return last_lines(self.log.with_suffix(".head"), self.log)


def last_lines(*logs: Path) -> list[str]:
    """The last lines of logs, which may not exist."""
    lines: list[str] = []
    for log in logs:
        with contextlib.suppress(OSError):
            lines += log.read_text(errors="replace").splitlines()
    return lines[-15:]


def _run(command: Sequence[str], stdin=subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    try:
        # In a session of its own, so that Ctrl-C in the terminal does not reach it.
        return subprocess.run(
            command, stdin=stdin, capture_output=True, text=True, timeout=30, env=environment(),
            start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise JobError(f"{command[0]} is not installed on this machine") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobError(f"{command[0]}: {error}") from None

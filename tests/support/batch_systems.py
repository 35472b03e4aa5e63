"""Slurm, PBS and LSF for tests: programs with their names that run the submitted script here.

`install(folder)` writes sbatch, squeue, scontrol, scancel, srun; qsub, qstat, qdel; bsub, bjobs,
bkill, brequeue. They answer with the words of the real programs, also after a job was cancelled. A
job is a folder JOBS/<id> with the script, the pid of its session and, at the end, its status. As on
a real system, a job is a process of its own, in a session of its own, that only the batch system
ends. srun calls mpiexec. A file JOBS/hold keeps new jobs waiting in the queue.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = '''#!{python} -IS
"""One of the programs, by the name it is called by."""
import os, re, signal, subprocess, sys, time
from pathlib import Path

JOBS = Path({jobs!r})
me, words = Path(sys.argv[0]).name, sys.argv[1:]
NUMBERS = dict(sbatch="SLURM_JOB_ID", scontrol="SLURM_JOB_ID", qsub="PBS_JOBID")
NUMBERS |= dict(bsub="LSB_JOBID", brequeue="LSB_JOBID")

with open(JOBS / "calls", "a") as calls:
    print(me, *words, file=calls)


def submit(text):
    if os.path.exists(JOBS / "refuse"):
        sys.exit("refused: " + (JOBS / "refuse").read_text())
    number = 100 + len(list(JOBS.glob("*/script")))
    job = JOBS / str(number)
    job.mkdir()
    (job / "script").write_text(text)
    (job / "script").chmod(0o700)
    (job / "environment").write_text("\\n".join(os.environ))
    start(job)
    return number


def start(job, before=0):
    """Run the job's script, once the session of its process `before` has been ended."""
    waiter = (
        "import os, signal, subprocess, sys, time\\n"
        "job, hold, before = sys.argv[1:]\\n"
        "for one in (signal.SIGTERM, signal.SIGKILL) if before != '0' else ():\\n"
        "    try: os.killpg(int(before), one)\\n"
        "    except ProcessLookupError: break\\n"
        "    time.sleep(5)\\n"
        "while os.path.exists(hold): time.sleep(0.05)\\n"
        "open(job + '/running', 'w').close()\\n"
        "status = subprocess.call([job + '/script'], stdin=subprocess.DEVNULL)\\n"
        "open(job + '/status', 'w').write(str(status))\\n"
    )
    text = (job / "script").read_text()
    head = re.search(r"(?m)^#\\w+ (?:-o |--output=)(\\S+)", text)[1]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", waiter, str(job), str(JOBS / "hold"), str(before)],
        start_new_session=True, stdin=subprocess.DEVNULL, cwd="/",
        env=os.environ | {{NUMBERS[me]: job.name}},
        stdout=open(head, "a"), stderr=subprocess.STDOUT,
    )
    (job / "pid").write_text(str(process.pid))


def again(number):
    start(JOBS / number, (JOBS / number / "pid").read_text())


def state(number, waiting, running):
    job = JOBS / number.split(".")[0]
    if not job.exists() or (job / "cancelled").exists() or (job / "status").exists():
        return None
    return running if (job / "running").exists() else waiting


def ended(cancelled, otherwise):
    return cancelled if (JOBS / words[-1].split(".")[0] / "cancelled").exists() else otherwise


def cancel(number):
    job = JOBS / number.split(".")[0]
    (job / "cancelled").touch()
    pid = int((job / "pid").read_text())
    for one in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, one)
        except ProcessLookupError:
            return
        time.sleep(2 if one == signal.SIGTERM else 0)


if me == "sbatch":
    print(submit(Path(words[-1]).read_text()))
elif me == "qsub":
    print(str(submit(Path(words[-1]).read_text())) + ".server")
elif me == "bsub":
    print("Job <%d> is submitted to default queue <normal>." % submit(sys.stdin.read()))
elif me == "squeue":
    now = state(words[-1], "PENDING (Priority)", "RUNNING (None)")
    if now is None:
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    print(now)
elif me == "brequeue" or words[0] == "requeue":
    again(words[-1])
elif me == "scontrol":
    now = state(words[-1], "PENDING", "RUNNING") or ended("CANCELLED", "FAILED")
    print("JobId=" + words[-1] + " JobState=" + now + " Reason=None TimeLimit=01:00:00 NodeList=n1")
elif me == "qstat":
    now = state(words[-1], "Q", "R")
    if now is None and "-x" in words:
        how = ended("terminated", "failed"), ended("271", "3")
        now = "F\\n    comment = Job run at noon on (n1) and %s\\n    Exit_status = %s" % how
    if now is None:
        sys.exit("qstat: Unknown Job Id " + words[-1])
    print("Job Id: " + words[-1] + "\\n    Job_Name = x\\n    job_state = " + now)
elif me == "bjobs":
    now = state(words[-1], "PEND", "RUN")
    if now is None and "-l" in words:
        now = ended("noon: Exited; TERM_OWNER: job killed by owner.", "noon: Exited with code 3.")
    if now is None:
        sys.exit("Job <" + words[-1] + "> is not found")
    print(now)
elif me in ("scancel", "qdel", "bkill"):
    cancel(words[-1])
elif me == "srun":
    ranks = next(word.partition("=")[2] for word in words if word.startswith("--ntasks="))
    command = [word for word in words if not word.startswith("--")]
    first = words.index(command[0])
    os.execvp({mpiexec!r}, [{mpiexec!r}, "-n", ranks, *words[first:]])
'''
NAMES = ["sbatch", "squeue", "scontrol", "scancel", "srun"]
NAMES += ["qsub", "qstat", "qdel", "bsub", "bjobs", "bkill", "brequeue"]


def install(folder: Path, mpiexec: str) -> Path:
    """Write the programs into `folder`/bin, and return the folder of jobs."""
    jobs, programs = folder / "jobs", folder / "bin"
    jobs.mkdir()
    programs.mkdir()
    text = PROGRAM.format(python=sys.executable, jobs=str(jobs), mpiexec=mpiexec)
    for name in NAMES:
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return jobs

"""Scripts of batch jobs: that of a cluster's engines, which is submitted, and of a training.

The script starts the site's launcher once, so all engines are ranks of one MPI world.
"""

import contextlib
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from numba_kernels import launch
from numba_kernels.launch import open_mpi, privacy

from . import mpi_launcher
from .batch_job import Job, JobError
from .profile import Profile
from .registry import ClusterError, Record

IN_JOB = Path(__file__).with_name("job_runner.py")


def engines(record: Record, of: Profile, engine: Sequence[str]) -> Job:
    """The job of the engines of `record`, each of which is started by the command `engine`.

    After a restart the existing job continues: job_runner.py starts new engines in it. Raises
    ClusterError if the job is refused.
    """
    job = record.batch_job()
    if job is not None and job.state() is not None:
        return job
    file, log = record.path / "job.sh", record.path / "job.log"
    name, connection = f"tutorial-{record.name}", record.connection_file("engine")
    text = engines_script(of, name, record.n, engine, connection, log)
    # The job would create its logs with the permissions of its umask.
    head = log.with_suffix(".head")
    for path, content, mode in ((file, text, 0o700), (log, "", 0o600), (head, "", 0o600)):
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as out:
            out.write(content)
    with interrupted_later():  # a job whose number is unknown can't be cancelled
        try:
            job = Job.submit(of.system, file, log)
        except JobError as error:
            raise ClusterError(str(error)) from None
        record.job = {"system": job.system, "number": job.number, "log": str(log)}
        record.job["cancel"] = job.cancel_command
        record.save()
    return job


# Whether the system may start a job once more, and, if so, how it warns the job of its time limit
ONCE = {"slurm": ["--no-requeue"], "pbs": ["-r n"], "lsf": ["-rn"]}
AGAIN = {
    "slurm": ["--requeue", "--open-mode=append", "--signal=B:USR1@120"],
    "pbs": ["-r y"],  # it sends SIGTERM some seconds before the end (kill_delay)
    "lsf": ["-r", "-wa USR1", "-wt 2"],  # (MPICH's mpiexec passes USR1 on, and dies of USR2)
}


def directives(
    profile: Profile, name: str, n: int, output: Path | str, once: bool = True
) -> list[str]:
    """The lines at the top of the script that the batch system reads."""
    shape = profile.shape(n)
    if profile.system == "slurm":
        head = [f"--job-name={name}", f"--output={output}", f"--nodes={shape['nodes']}"]
        head += [f"--ntasks={n}", f"--ntasks-per-node={shape['ranks_per_node']}"]
        head += [f"--cpus-per-task={shape['cores_per_rank']}"]
        prefix, optional = "#SBATCH", ("--partition=", "--account=", "--time=")
    elif profile.system == "pbs":
        # -V: pass on the environment of the submitting process, as Slurm and LSF do by default.
        head = [f"-N {name[:15]}", "-V", "-j oe", f"-o {output}"]
        head += [f"-l {profile.fill(profile.resources, n)}"]
        prefix, optional = "#PBS", ("-q ", "-A ", "-l walltime=")
    else:
        head = [f"-J {name}", f"-o {output}", f"-n {n}"]
        head += [f'-R "span[ptile={shape["ranks_per_node"]}]"']
        if shape["cores_per_rank"] > 1:
            head += [f'-R "affinity[core({shape["cores_per_rank"]})]"']
        prefix, optional = "#BSUB", ("-q ", "-P ", "-W ")  # -W takes no seconds
    head += (ONCE if once else AGAIN)[profile.system]
    time = profile.time.rpartition(":")[0] if profile.system == "lsf" else profile.time
    values = zip(optional, (profile.queue, profile.account, time), strict=True)
    head += [option + value for option, value in values if value]
    return [f"{prefix} {line}" for line in [*head, *profile.directives]]


def engines_script(
    profile: Profile, name: str, n: int, engine: Sequence[str], connection: Path, log: Path
) -> str:
    """The batch script of a job in which `profile`'s launcher starts `n` engines once."""
    # If a node fails, a job that starts again would find neither controller nor variables.
    head = directives(profile, name, n, log.with_suffix(".head"))
    # Write output at once; some systems copy it only at the end. Output up to here is in .head.
    head.append(f"exec >> {shlex.quote(str(log))} 2>&1")
    job = [sys.executable, "-I", "-S", str(IN_JOB), "--guard", str(launch.GUARD)]
    return script(profile, n, head, [*job, "--connection", str(connection), "--"], engine)


def script(
    profile: Profile, n: int, head: Sequence[str], before: Sequence[str], command: Sequence[str]
) -> str:
    """The script of a job in which `profile`'s launcher starts `command` as `n` ranks.

    `head`: its first lines, after the shell's; `before`: the words of a command that runs the
    launcher.
    """
    threads = [f"export {v}={profile.cores_per_rank}" for v in launch.THREAD_VARIABLES]
    of_mpi = privacy.ANYWHERE | open_mpi.settings({})  # which MPI it is, only the job knows
    threads += [f"export {name}=${{{name}-{value}}}" for name, value in of_mpi.items()]
    if profile.system == "slurm":  # since 22.05, srun does not inherit this from the job
        threads += [f"export SRUN_CPUS_PER_TASK={profile.cores_per_rank}"]
    launcher, job = profile.fill(profile.launcher, n), [*before]
    if mpi_launcher.PLACE in launcher:
        job += [sys.executable, "-P", str(Path(mpi_launcher.__file__))]
    lines = [
        "#!/bin/bash",
        *head,
        f"cd {shlex.quote(os.getcwd())}",
        *(f"module load {module}" for module in profile.modules),
        *profile.setup,
        *threads,
        # exec replaces the shell, so that signals for the job reach it.
        f"exec {' '.join(filter(None, (shlex.join(job), launcher, shlex.join(command))))}",
    ]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def interrupted_later() -> Iterator[None]:
    """Delay Ctrl-C within the block to its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C goes to the main thread
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt

"""`job train`: files of batch jobs, and trainings that take several jobs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import batch_systems
import psutil
import pytest
from ended import until
from site_profiles import submits
from slow_training import MODEL, arrays, assert_same_bits, steps_in

from numba_kernels import launch

OPTIONS = ("--model", "slow.py:build", "--optimizer", "adam", "--epochs", "6", "--quiet")


def command(*words: str, status: int = 0) -> str:
    """What `python -m tutorial_dl` prints: on standard output, or the error."""
    done = subprocess.run(
        [sys.executable, "-m", "tutorial_dl", *words], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """The folder of jobs of batch systems that run them on this machine, one after the other."""
    monkeypatch.chdir(tmp_path)
    Path("slow.py").write_text(MODEL)
    folder = batch_systems.install(tmp_path, launch.find_mpiexec())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    yield folder
    for file in folder.glob("*/pid"):
        if psutil.pid_exists(int(file.read_text())):
            os.killpg(int(file.read_text()), signal.SIGKILL)


def warn(job: Path, number: signal.Signals) -> None:
    """What the system sends to the shell of a job, which its launcher has replaced."""
    [shell] = psutil.Process(int((job / "pid").read_text())).children()
    shell.send_signal(number)


@pytest.mark.thorough(but="slurm")
@pytest.mark.parametrize(
    ("system", "number"),
    [("slurm", signal.SIGUSR1), ("pbs", signal.SIGTERM), ("lsf", signal.SIGUSR1)],
    ids=["slurm", "pbs", "lsf"],
)
def test_a_training_that_takes_three_jobs(system, number, jobs):
    """It ends with the bits of one that ran through; each job writes into the same log."""
    of = ("--profile", str(submits(system)), "--submit")
    printed = command("job", "train", *OPTIONS, "-n", "2", "--checkpoint", "run",
                      "--checkpoint-every", "5", "--json", "result.json", *of)  # fmt: skip
    assert printed.split(".")[0].strip() == "100"
    log, job, seen = Path("run.log"), jobs / "100", []
    for turn in range(2):
        until(lambda seen=seen: steps_in("run")[-1:] > seen[-1:])
        warn(job, number)
        words = "goes on in place" if system == "pbs" else "is put back into the queue"
        until(lambda turn=turn, words=words: log.read_text().count(words) > turn)
        seen = steps_in("run")
        assert f"after step {seen[-1]};" in log.read_text()
        if system == "pbs":  # where a new job has taken the old one's place
            job = jobs / str(101 + turn)
    until(lambda: Path("result.json").exists() and (job / "status").exists())
    assert (job / "status").read_text() == "0", log.read_text()
    command("train", *OPTIONS, "-n", "2", "--checkpoint", "whole")
    assert_same_bits(arrays("run"), arrays("whole"))
    assert len(json.loads(Path("result.json").read_text())["history"]) == 6


@pytest.mark.thorough
def test_a_chain_of_jobs(jobs):
    """For sites where no job is put back: each waits for the one before it."""
    (jobs / "hold").touch()
    words = ("--checkpoint", "run", "--profile", str(submits("slurm")), "--submit", "--chain", "3")
    assert command("job", "train", *OPTIONS, *words).split() == ["100", "101", "102"]
    texts = [(jobs / str(number) / "script").read_text() for number in (100, 101, 102)]
    waits = [line for text in texts for line in text.splitlines() if "dependency" in line]
    assert waits == ["#SBATCH --dependency=afterany:100", "#SBATCH --dependency=afterany:101"]
    assert all("--resume" in text and "train --model" in text for text in texts)
    assert not any("train" in line and "--requeue" in line for line in texts[0].splitlines())


def test_the_file_line_by_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    profile = str(submits("slurm", account='"course"', directives='["--gpus-per-task=1"]'))
    text = command("job", "train", "--model", "cnn", "--quiet",
                   "-n", "4", "--checkpoint", "a folder", "--profile", profile)  # fmt: skip
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash" and "#SBATCH --ntasks=4" in lines
    for line in ("--requeue", "--open-mode=append", "--signal=B:USR1@120", "--account=course",
                 "--gpus-per-task=1", f"--output={tmp_path}/a folder.log"):  # fmt: skip
        assert f"#SBATCH {line}" in lines
    assert lines[-1] == (
        f"exec srun --mpi=pmix --ntasks=4 {sys.executable} -m tutorial_dl train --model cnn "
        "--checkpoint 'a folder' --resume --requeue --quiet"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--checkpoint", "run", "--profile", "local"), 'kind = "local" has no job of its own'),
        (("--profile", "slurm"), "a job needs --checkpoint FOLDER"),
        (("--checkpoint", "run", "--chain", "2"), "--chain has no effect without --submit"),
        (("--checkpoint", "run", "--submit"), "sbatch is not installed on this machine"),
        (("--checkpoint", "run", "--profile", "nowhere"), "there is no profile 'nowhere'"),
        (("--checkpoint", "run", "--optimizer", "adamm"), "is not one of 'sgd'"),
    ],
)
def test_what_is_wrong_is_one_line(words, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    error = command("job", "train", *words, status=2)
    assert line in error and error.count("\n") == 1, error


def test_without_a_job_there_is_nothing_to_put_back(monkeypatch):
    from tutorial_dl.cluster.batch_job import Job, JobError

    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(JobError, match="this is no job of Slurm, PBS or LSF"):
        Job.put_back()
    monkeypatch.setenv("PBS_JOBID", "7.server")
    with pytest.raises(JobError, match=r"PBS lets only managers put job 7\.server back"):
        Job.put_back()

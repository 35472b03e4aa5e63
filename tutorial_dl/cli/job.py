"""`python -m tutorial_dl job train`: a batch job that trains, and is put back until it is done.

The job's file comes from a profile, as the jobs of notebooks' clusters do. In the job, `train`
writes a checkpoint when the system warns of the time limit, and lets the job run again (--requeue);
or a chain of jobs goes on one after the other, where a site forbids that.
"""

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from ..cluster import submit
from ..cluster.batch_job import FILE, Job, JobError
from ..cluster.profile import load
from ..config import OPTIONS, RunConfig
from . import train

AFTER = {  # options that let a job wait for the end of another one
    "slurm": "--dependency=afterany:{}",
    "pbs": "-W depend=afterany:{}",
    "lsf": '-w "ended({})"',
}
# When the job ends, which training shows; Slurm itself says it since version 23.
ENDS = (
    "export SLURM_JOB_END_TIME=${SLURM_JOB_END_TIME-"
    '$(date +%s -d "$(squeue -h -o %e -j $SLURM_JOB_ID)" 2> /dev/null)}'
)


def words_of(config: RunConfig) -> list[str]:
    """The options of `train` that ask for `config`, without the number of ranks."""
    words = []
    for name, value in config.changed().items():
        option = OPTIONS[name]
        if isinstance(value, bool):
            words.append(option.flag if value else option.off or f"--no-{option.flag[2:]}")
        elif name != "ranks":
            words += [option.flag, str(value)]
    return words


def write(config: RunConfig, profile: str, hand_over: bool, chain: int) -> None:
    """Print the file of the job; or submit `chain` jobs, and print their numbers.

    Raises:
        ValueError: If the profile has no job of its own, or there is no folder for checkpoints.
    """
    of, folder = load(profile), config.checkpoint.checkpoint
    if of.kind != "submit":
        raise ValueError(
            f'{of.file}: kind = "{of.kind}" has no job of its own; use one of kind = "submit"'
        )
    if folder is None:
        raise ValueError("a job needs --checkpoint FOLDER, from which the next one goes on")
    if chain > 1 and not hand_over:
        raise ValueError("--chain has no effect without --submit")
    config = replace(config, checkpoint=replace(config.checkpoint, resume=True, requeue=chain == 1))
    n, before = train.check(config) or 1, None
    for number in range(1, chain + 1):
        log, file = Path(f"{folder}.log").absolute(), Path(f"{folder}.{number}.sh").absolute()
        head = submit.directives(of, f"train-{Path(folder).name}", n, log, once=False)
        if before is not None:
            head.append(f"{head[-1].split()[0]} {AFTER[of.system].format(before.number)}")
        if of.system == "slurm":
            head.append(ENDS)
        if hand_over:
            head.append(f"export {FILE}={shlex.quote(str(file))}")
        command = [sys.executable, "-m", "tutorial_dl", "train", *words_of(config)]
        text = submit.script(of, n, head, (), command)
        if not hand_over:
            print(text, end="")
            return
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "w") as out:
            out.write(text)
        try:
            before = Job.submit(of.system, file, log)
        except JobError as error:
            raise ValueError(str(error)) from None
        print(before.number)

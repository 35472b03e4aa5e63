"""`python -m tutorial_dl train`: checks before ranks are started, and the work of one rank.

A rank trains; if a run fails, one rank reports it, once.
"""

import os
import signal
import sys
import traceback
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from numba_kernels import environment, launch

from .. import data as datasets
from .. import models
from ..config import CheckpointConfig, OutputConfig, RunConfig
from ..extras import missing
from ..options import monitor_of, target_of
from ..replica.base import check_ending
from ..runtime.errors import telling_line
from ..tensorflow_chatter import chatter_hidden
from ..training.columns import columns
from ..training.ranks import ranks_of
from ..user_function import is_ours, place_of, shadow
from ..words import counted
from .files import check_writable
from .train_result import summary, write, write_config, write_timeline


def check(config: RunConfig) -> int | None:
    """Check everything that can be checked before ranks are started.

    Returns:
        The number of ranks asked for, or the number that the layout needs; None for the default.
    """
    ranks, output = config.layout.ranks, config.output
    launch.check_ranks(1 if ranks is None else ranks)
    config.check()
    if config.strategy.strategy == "serial" and (ranks or 1) > 1:
        raise ValueError(f"strategy 'serial' uses 1 rank, not {ranks}; leave out -n {ranks}")
    models.check(config.data.model)
    datasets.check(config.data.data, **config.data.files)
    log = output.log
    if log is not None and not Path(log).suffix:
        log = None  # a folder is made
    check_writable(output.json, output.timeline, output.save, output.save_best, log)
    if config.checkpoint.checkpoint is not None:
        check_folder(Path(config.checkpoint.checkpoint))
    return ranks if launch.under_mpi() else ranks_of(config)


def preload(model: str) -> str | None:
    """The module that imports what ranks need for this model, if it is one of Keras."""
    return "tutorial_dl.cli.keras_ranks" if model in models.KERAS else None


def check_folder(folder: Path) -> None:
    """Raise OSError if checkpoints cannot be written to `folder`."""
    if not folder.exists():
        check_writable(folder)
    elif not folder.is_dir():
        raise OSError(f"cannot write checkpoints: {folder} is not a folder")
    elif not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"cannot write to {folder}: permission denied")


def needed(ranks: int) -> int | None:
    """How many ranks must be left, or none can go on: then the others say which rank was lost.

    None: mpiexec ends all ranks when one is lost. (Supervisors need a folder that all ranks see.)
    """
    here = launch.privacy.stays_here(launch.environment_without_ranks())
    return ranks if ranks > 1 and here else None


def ending(status: int) -> str:
    """How a rank that did not end by itself was ended, according to its exit status."""
    number = status - 128 if status > 128 else status
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"status {status}"
    return f"signal {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def crowd(ranks: int) -> str | None:
    """What to tell a user whose run has far more ranks than this machine has cores.

    In a batch job, mpiexec may start ranks on other machines, too; then there is nothing to tell.
    """
    cores = environment.usable_cores()
    most = environment.MOST_PER_CORE
    here = launch.privacy.stays_here(launch.environment_without_ranks())
    if ranks <= most * cores or not here:
        return None
    return (
        f"note: {ranks} ranks share {counted(cores, 'core')} of this machine, so they start and "
        f"train slowly; use at most {most * cores} ({most} per core)"
    )


def work(**options) -> int:
    """The work of a rank that was started with these options; returns the exit status."""
    return run_rank(RunConfig.of(**options))


def run_rank(config: RunConfig) -> int:
    """Train as one rank of a run, and return the exit status.

    It is 0, 1 if training failed, 2 for bad input, 130 after Ctrl-C, or 75 (EX_TEMPFAIL) if a
    batch system's warning came and a checkpoint is written.
    """
    import numpy as np
    from mpi4py import MPI

    from numba_kernels.team.team import Team, abort_all

    from ..checkpoint.contents import tell_resumed
    from ..runtime.errors import Terminated
    from ..training.progress import tell_of_compiling

    def ended(status: int, lost: bool = False) -> int:
        # Lost ranks would never reach a barrier or MPI_Finalize: not even one that was lost after
        # the last barrier, for example as Python ended. Otherwise atexit functions are called.
        if config.with_master or config.pipeline.pipeline is not None or lost:
            leave(status)
        return status

    np.seterr(all="ignore")  # one line reports a loss that is not finite
    if launch.rank() == 0 and not config.output.quiet:
        tell_of_compiling()
    team = Team()
    launch.can_be_lost()
    # Every rank may print again: from here on, ranks agree on which one does.
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    setting_up = True
    try:
        trainer = trainer_of(config, team)
        try_out(trainer, config)
        team.barrier()  # set-up fails on all ranks or on none
        setting_up = False
        epochs = config.schedule.epochs
        if config.checkpoint.resume:
            tell_resumed(trainer, trainer.resume(), epochs)
        if config.checkpoint.checkpoint is not None and team.rank == 0:
            write_config(config, team.size)
        trainer.fit_to(epochs)
        if config.output.save is not None:
            trainer.save_model(config.output.save)
        result = summary(config, trainer)
        if team.rank == 0:
            write(result, config.output.json)
            if trainer.timeline is not None:
                write_timeline(trainer.timeline, Path(config.output.timeline))
        if not config.with_master:
            team.barrier()
        return ended(0)
    except KeyboardInterrupt as error:
        abort_all(error)
        return ended(130)  # the user knows what happened
    except Terminated as end:
        if team.rank == 0:
            print(end, file=sys.stderr, flush=True)
        if config.checkpoint.requeue:
            # The system ends the job at once, and MPI's files in /dev/shm would stay. (Below a
            # guard, that removes them, and this would wait for a rank that was lost.)
            if "NUMBA_KERNELS_KEPT" not in os.environ:
                MPI.Finalize()
            if team.rank == 0:
                put_back()
        return ended(end.code)
    except (Exception, SystemExit) as error:
        causes = report(team, error, setting_up, config.with_master)
        return ended(2 if setting_up and causes else 1, lost=not causes)


def put_back() -> None:
    """Put the job that this is back into its queue, and say what came of it."""
    from ..cluster.batch_job import Job, JobError

    try:
        print(Job.put_back(), file=sys.stderr, flush=True)
    except JobError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)


def trainer_of(config: RunConfig, team):
    """The Trainer that a configuration describes, after the rehearsal that it may ask for."""
    from ..interop.layers import synchronised
    from ..training.setup import prepare

    if config.output.rehearse:
        once = replace(config.schedule, epochs=1, target=None, patience=None)
        alone = replace(
            config, schedule=once, output=OutputConfig(quiet=True), checkpoint=CheckpointConfig()
        )
        prepare(alone, team, synchronised).fit(1)
    return prepare(config, team, synchronised)


def leave(status: int) -> None:
    """End this process at once if it has a supervisor process; return otherwise.

    MPI_Finalize would wait for all ranks, lost ones included. Without the supervisor
    (numba_kernels/launch/rank_supervisor.py) mpiexec would take such an end for a failure.
    """
    if os.environ.get("NUMBA_KERNELS_KEPT"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def try_out(trainer, config: RunConfig) -> None:
    """Check that ranks agree, and that the model can be used on the data. Collective."""
    replica, data = trainer.replica, config.data
    if trainer.saving is not None and not config.checkpoint.resume:
        trainer.saving.check_folder()
    for file in (config.output.save, config.output.save_best):
        if file is not None:
            check_ending(replica, file)
    trainer.check_agreement()
    for player in trainer.run.players:
        player.strategy.check_optimizer(player.optimizer)
    try:
        # The exception repeats what TensorFlow logs about it.
        with chatter_hidden() if "tensorflow" in sys.modules else nullcontext():
            known = columns(trainer)
    except Exception as error:
        raise ValueError(
            f"model {data.model!r} can't be used on data {data.data!r}: {first_line(error)}"
        ) from error
    for what, form in (("target", target_of), ("monitor", monitor_of)):
        asked = getattr(config.schedule, what)
        if asked is not None and (metric := form(asked)[0]) not in known:
            raise ValueError(f"{what} {asked!r}: there is no {metric!r}; one of {known}")
    for one in trainer.callbacks:
        if getattr(one, "metric", known[0]) not in known:
            raise ValueError(
                f"--patience and --save-best go by {one.metric!r}, which needs validation data; or "
                f"give --monitor, one of {known}"
            )


def report(team, error: BaseException, setting_up: bool, with_master: bool = False) -> set[int]:
    """After a failure on all ranks, have one of them tell the cause. Collective.

    Returns the ranks that failed by themselves; where a rank was killed, there are none.
    """
    from numba_kernels.errors import MismatchError
    from numba_kernels.team.mailbox import FOLLOWED
    from numba_kernels.team.team import abort_all

    abort_all(error)
    letters = team.settle()
    causes = {letter.rank for letter in letters if letter.kind != FOLLOWED}
    if team.is_cause or isinstance(error, MismatchError):
        causes.add(team.rank)
    others = {team.rank, *(letter.rank for letter in letters)} - causes
    # If the master was killed, the process that started it reports that.
    told = with_master and not causes and 0 not in others and "NUMBA_KERNELS_KEPT" in os.environ
    tells = team.rank == min(causes) if causes else not told and launch.is_first_to_tell()
    if tells:
        killed = [] if causes else map(launch.status_of, range(team.size))
        how = next((f", by {ending(one)}" for one in killed if one and one > 128), "")
        role = team.roles.get(team.rank) if causes else None
        print_error(error, setting_up, f"rank {team.rank} ({role}) failed: " if role else "", how)
    return causes


def print_error(error: BaseException, setting_up: bool, whose: str = "", how: str = "") -> None:
    """Print one line for an error that the user can fix, a traceback for one in the program.

    Args:
        whose: The rank and its stage, if it has one: then it is one line, too.
        how: How a rank was ended.
    """
    from numba_kernels.errors import TeamError

    from ..checkpoint.format import CheckpointError
    from ..replica.consistency import DriftError
    from ..runtime.errors import TrainingError

    # (An OSError names a file that can't be written or read, such as one on a full disk.)
    known = TrainingError | DriftError | TeamError | CheckpointError | datasets.DataError | OSError
    graph = type(error).__module__.partition(".")[0] == "tensorflow"
    plain = setting_up or isinstance(error, known)
    shown = plain or whose or graph
    if not shown or os.environ.get("NUMBA_KERNELS_TRACEBACK") == "1":
        traceback.print_exception(error)
    if shown:
        line = f"{'' if plain else whose}{first_line(error)}{how}"
        print(f"error: {line}", file=sys.stderr, flush=True)


def first_line(error: BaseException) -> str:
    """An error in one line, with file and line number if it was raised outside this package."""
    return _first_line(error) + shadow(error)


def _first_line(error: BaseException) -> str:
    if (words := missing(error)) is not None:
        return words
    text = telling_line(error)
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    ours = type(error).__module__.partition(".")[0] in ("tutorial_dl", "numba_kernels")
    if ours or (isinstance(error, ValueError | TypeError) and is_ours(error)):
        return text
    place = place_of(error)
    if isinstance(error, OSError) and error.strerror and not place:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {text}{place}"

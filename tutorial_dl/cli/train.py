"""One rank of `python -m tutorial_dl train`: it trains, and a failure is reported once."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path

import numba_kernels

from .. import data as datasets
from .. import models, strategies
from ..runtime.errors import telling_line
from ..tensorflow_chatter import chatter_hidden
from ..training.options import Options, target_of
from .train_result import summary, write, write_timeline


def run_rank(options: Options) -> int:
    """Train as one rank of a run.

    Returns:
        The exit status: 0; 1 if training failed; 2 for bad input; 130 after Ctrl-C; 143 after
        SIGTERM.
    """
    import numpy as np

    from numba_kernels import launch
    from numba_kernels.team.team import Team, abort_all

    from ..checkpoint.contents import tell_resumed
    from ..runtime.errors import Terminated

    np.seterr(all="ignore")  # one line reports a loss that is not finite
    team = Team()
    launch.can_be_lost()
    # Every rank may print again: from here on, ranks agree on which one does.
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    setting_up = True
    try:
        trainer = prepare(options, team)
        team.barrier()  # set-up fails on all ranks or on none
        setting_up = False
        if options.resume:
            tell_resumed(trainer, trainer.resume(), options.epochs)
        trainer.fit_to(options.epochs)
        result = summary(options, trainer)
        if team.rank == 0:
            write(result, options.json)
            if trainer.timeline is not None:
                write_timeline(trainer.timeline, Path(options.timeline))
        if options.has_master:  # lost workers would never reach a barrier or MPI_Finalize
            leave(0)
        else:
            team.barrier()
        return 0
    except KeyboardInterrupt as error:
        abort_all(error)
        if options.has_master:
            leave(130)
        return 130  # the user knows what happened
    except Terminated as end:
        if team.rank == 0:
            print(end, file=sys.stderr, flush=True)
        if options.has_master:
            leave(end.code)
        return end.code
    except (Exception, SystemExit) as error:
        abort_all(error)
        causes, others = who_failed(team, error)
        if speaks_for_all(team, causes, others):
            tell(error, setting_up)
        status = 2 if setting_up and causes else 1
        if options.has_master:
            leave(status)
        return status


def leave(status: int) -> None:
    """End this process at once if it has a supervisor process; return otherwise.

    MPI_Finalize would wait for all ranks, lost ones included. Without the supervisor
    (numba_kernels/launch/rank_supervisor.py) mpiexec would take such an end for a failure.
    """
    if os.environ.get("NUMBA_KERNELS_KEPT"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def prepare(options: Options, team):
    """Make data, model and Trainer, and try the model on a few samples. Collective.

    Returns:
        The Trainer.

    Raises:
        ValueError: if model, data and options do not fit together.
    """
    import random

    import numpy as np

    from ..training import rates
    from ..training.trainer import Trainer

    if options.timeline:
        from ..training.timeline import Timeline

        timeline = Timeline()
    else:
        timeline = None
    # Code that draws from the global generators starts alike in every run and on every rank.
    random.seed(options.seed)
    np.random.seed(options.seed)
    dataset = datasets.load(options.data, **options.of_files)
    replica = models.build(options.model, dataset, seed=options.seed)
    strategy = strategies.get(
        options.strategy, team, **options.of_strategy, layout=options.layout(team.size)
    )
    optimizer = options.make_optimizer(strategy.default_optimizer)
    per_epoch = strategy.updates_an_epoch(len(dataset.train), options.batch_size)
    rate = rates.planned(options, optimizer.learning_rate, per_epoch)
    trainer = Trainer(
        replica,
        dataset,
        strategy,
        optimizer,
        batch_size=options.batch_size,
        seed=options.seed,
        progress=not options.quiet,
        timeline=timeline,
        learning_rate=rate,
        accumulate=options.accumulate,
        clip_norm=options.clip_norm,
        callbacks=callbacks_of(options),
        checkpoint=options.checkpoint,
        checkpoint_every=options.checkpoint_every,
    )
    if trainer.saving is not None and not options.resume:
        trainer.saving.check_folder()
    trainer.check_agreement()
    if team.rank == 0:
        say_which_optimizer(replica, trainer.optimizer)
    try:
        # The exception repeats what TensorFlow logs about it.
        with chatter_hidden() if "tensorflow" in sys.modules else nullcontext():
            metrics = replica.evaluate([dataset.train.take(telling_samples(dataset.train))])
    except Exception as error:
        raise ValueError(
            f"model {options.model!r} can't be used on data {options.data!r}: {first_line(error)}"
        ) from error
    if options.target is not None:
        known = ["loss", *(f"val_{name}" for name in metrics if name != "samples")]
        if (metric := target_of(options.target)[0]) not in known:
            raise ValueError(f"target {options.target!r}: there is no {metric!r}; one of {known}")
    return trainer


def callbacks_of(options: Options) -> list:
    """The callbacks that the options ask for."""
    from ..training import callbacks

    found = []
    if options.target is not None:
        found.append(callbacks.Target(*target_of(options.target)))
    if options.patience is not None:
        found.append(callbacks.EarlyStopping(patience=options.patience))
    if options.report_every is not None:
        found.append(callbacks.Throughput(options.report_every))
    return found


def say_which_optimizer(replica, ours) -> None:
    """Tell Keras users that the optimizer of `compile` is not used.

    RMSprop is not mentioned, because `compile` sets it if none is given.
    """
    theirs = type(getattr(replica.model, "optimizer", None)).__name__
    if theirs not in ("NoneType", "RMSprop", type(ours).__name__):
        print(
            f"note: trained with {ours.in_words}, as --optimizer says; {theirs}, which the model "
            "was compiled with, is not used",
            file=sys.stderr,
            flush=True,
        )


def telling_samples(data):
    """Indices of two samples, and of those with the smallest and the largest class label."""
    import numpy as np

    indices = [*range(min(2, len(data)))]
    labels = data.targets
    one = not isinstance(labels, tuple | dict)  # several targets are not checked
    if one and labels.dtype.kind in "iu" and labels.ndim == 1:
        indices += [int(labels.argmin()), int(labels.argmax())]
    return np.array(indices)


def who_failed(team, error: BaseException) -> tuple[set[int], set[int]]:
    """After a failure: the ranks that caused it, and the others. Collective.

    Returns:
        (causes, others): ranks that failed by themselves, and ranks that only stopped waiting.
        Where a rank was killed, `causes` is empty.
    """
    from numba_kernels.errors import MismatchError
    from numba_kernels.team.mailbox import FOLLOWED

    letters = team.settle()
    causes = {letter.rank for letter in letters if letter.kind != FOLLOWED}
    if team.is_cause or isinstance(error, MismatchError):
        causes.add(team.rank)
    return causes, {team.rank, *(letter.rank for letter in letters)} - causes


def speaks_for_all(team, causes: set[int], others: set[int]) -> bool:
    """Whether this rank is the one that reports the failure."""
    if not causes and 0 not in others and "NUMBA_KERNELS_KEPT" in os.environ:
        return False  # rank 0 was killed: the process that started it reports that
    return team.rank == min(causes or others)


def tell(error: BaseException, setting_up: bool) -> None:
    """Print one line for an error that the user can fix, a traceback for one in the program."""
    from numba_kernels.errors import TeamError

    from ..checkpoint.format import CheckpointError
    from ..replica.consistency import DriftError
    from ..runtime.errors import TrainingError

    known = TrainingError | DriftError | TeamError | CheckpointError | datasets.DataError
    if setting_up or isinstance(error, known):
        print(f"error: {first_line(error)}", file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)


def first_line(error: BaseException) -> str:
    """An error in one line, with file and line number if it was raised outside this package."""
    text = telling_line(str(error))
    frames = traceback.extract_tb(error.__traceback__)
    packages = tuple(
        str(folder) for folder in (Path(__file__).parents[1], Path(numba_kernels.__file__).parent)
    )
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    ours = type(error).__module__.partition(".")[0] in ("tutorial_dl", "numba_kernels")
    said_by_us = not frames or frames[-1].filename.startswith(packages)
    if ours or (isinstance(error, ValueError | TypeError) and said_by_us):
        return text
    outside = [f for f in frames if not f.filename.startswith(packages)]
    place = f" ({outside[0].filename}, line {outside[0].lineno})" if outside else ""
    return f"{type(error).__name__}: {text}{place}"

"""`python -m tutorial_dl train`: what one rank of it does, and how a failure is told once."""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from numba_kernels import launch

from .. import data as datasets
from .. import models, strategies


@dataclass(frozen=True)
class Options:
    """The words of the command line; see `train --help`."""

    model: str
    data: str
    strategy: str
    epochs: int
    batch_size: int
    optimizer: str
    learning_rate: float | None
    seed: int
    quiet: bool
    json: str | None
    one_copy: bool = False

    def check(self, ranks: int | None) -> None:
        """ValueError or OSError for what can be known to be wrong before ranks are started."""
        launch.check_ranks(1 if ranks is None else ranks)
        strategies.check(self.strategy, self.one_copy)
        if self.strategy == "serial" and (ranks or 1) > 1:
            raise ValueError(f"strategy 'serial' uses 1 rank, not {ranks}; leave out -n {ranks}")
        models.check(self.model)
        datasets.check(self.data)
        if self.json not in (None, "-"):
            check_writable(Path(self.json))

    def words(self) -> list[str]:
        """The command line that says the same, for the ranks."""
        words = ["train"]
        for name in ("model", "data", "strategy", "epochs", "batch_size", "optimizer", "seed"):
            words += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        if self.learning_rate is not None:
            words += ["--learning-rate", repr(self.learning_rate)]
        words += ["--quiet"] if self.quiet else []
        words += ["--one-copy"] if self.one_copy else []
        words += ["--json", self.json] if self.json else []
        return words


def check_writable(path: Path) -> None:
    """OSError, in words, unless `path` can be written: better now than after training."""
    if path.is_dir():
        raise OSError(f"{path} is a folder; a file is needed")
    if not path.parent.is_dir():
        raise OSError(f"{path} can't be written: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OSError(f"{path} can't be written: permission denied")


def run_rank(options: Options) -> int:
    """Train as one rank of a run; returns the exit status (0, 1 failed, 2 bad input)."""
    import numpy as np

    from numba_kernels.team import Team, abort_all

    np.seterr(all="ignore")  # a loss that is no number is told in one line, not by every product
    team = Team()
    # Every rank may speak again: from here on they agree who does.
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    setting_up = True
    try:
        trainer = prepare(options, team)
        team.barrier()  # set-up fails on all ranks or on none
        setting_up = False
        trainer.fit(options.epochs)
        result = summary(options, trainer)
        if team.rank == 0:
            write(result, options.json)
        team.barrier()
        return 0
    except KeyboardInterrupt as error:
        abort_all(error)
        return 130  # whoever pressed the keys knows
    except (Exception, SystemExit) as error:
        abort_all(error)
        if speaks_for_all(team, error):
            tell(error, setting_up)
        return 2 if setting_up else 1


def prepare(options: Options, team):
    """Data, model and trainer, tried on two samples: what is wrong with them shows here."""
    from numba_kernels import optimizers

    from .trainer import Trainer

    dataset = datasets.load(options.data)
    replica = models.build(options.model, dataset, seed=options.seed)
    trainer = Trainer(
        replica,
        dataset,
        strategies.get(options.strategy, team, options.one_copy),
        optimizers.get(options.optimizer, options.learning_rate),
        batch_size=options.batch_size,
        seed=options.seed,
        progress=not options.quiet,
    )
    trainer.check_agreement()
    if team.rank == 0:
        say_which_optimizer(replica, trainer.optimizer)
    try:
        replica.evaluate([dataset.train.take(telling_samples(dataset.train))])
    except Exception as error:
        raise ValueError(
            f"model {options.model!r} can't be used on data {options.data!r}: {first_line(error)}"
        ) from error
    return trainer


def say_which_optimizer(replica, ours) -> None:
    """Keras users may expect the optimizer of `compile` (which sets rmsprop if not asked)."""
    theirs = type(getattr(getattr(replica, "model", None), "optimizer", None)).__name__
    if theirs not in ("NoneType", "RMSprop", type(ours).__name__):
        print(
            f"note: trained with {ours}, as --optimizer says; {theirs}, which the model was "
            "compiled with, is not used",
            file=sys.stderr,
            flush=True,
        )


def telling_samples(data):
    """Indices of two samples, and of those with the least and the greatest label, if labels."""
    import numpy as np

    indices = [*range(min(2, len(data)))]
    labels = data.targets
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.ndim == 1:
        indices += [int(labels.argmin()), int(labels.argmax())]
    return np.array(indices)


def summary(options: Options, trainer) -> dict:
    """One object a run, as `--json` writes it."""
    history = trainer.history
    result = {
        "strategy": options.strategy,
        "ranks": trainer.team.size,
        "model": options.model,
        "data": options.data,
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "optimizer": options.optimizer,
        "learning_rate": trainer.optimizer.learning_rate,
        "seed": options.seed,
        "parameters": sum(s.size for s in trainer.replica.segments),
        "loss": history.last["loss"],
        "val_loss": history.last["val_loss"],
        "val_accuracy": history.last.get("val_accuracy"),
        "samples_per_second": history.samples_per_second,
        "seconds": history.seconds,
        "history": history.epochs,
    }
    if options.strategy == "serial":
        from .prediction import profile

        result["profile"] = profile(trainer)
    return result


def write(result: dict, where: str | None) -> None:
    if where == "-":
        print(json.dumps(result, allow_nan=False), flush=True)
    elif where:
        Path(where).write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    if where != "-":
        accuracy, ranks = result["val_accuracy"], result["ranks"]
        print(
            f"{result['strategy']} on {ranks} rank{'s' * (ranks > 1)}: loss {result['loss']:.4f}, "
            f"validation loss {result['val_loss']:.4f}"
            + (f", accuracy {accuracy:.4f}" if accuracy is not None else "")
            + f"; {result['samples_per_second']:.0f} samples/s, {result['seconds']:.2f} s",
            flush=True,
        )


def speaks_for_all(team, error: BaseException) -> bool:
    """After a failure: is this the lowest of the ranks that failed by themselves?"""
    from numba_kernels.errors import MismatchError
    from numba_kernels.mailbox import FOLLOWED

    causes = {letter.rank for letter in team.settle() if letter.kind != FOLLOWED}
    if team.is_cause or isinstance(error, MismatchError):
        causes.add(team.rank)
    return not causes or team.rank == min(causes)


def tell(error: BaseException, setting_up: bool) -> None:
    """One line for what the user can mend; a traceback for what is broken in the program."""
    from numba_kernels.errors import TeamError

    from .consistency import DriftError
    from .trainer import TrainingError

    if setting_up or isinstance(error, TrainingError | DriftError | TeamError):
        print(f"error: {first_line(error)}", file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)


def first_line(error: BaseException) -> str:
    """An error in one line; with the place, where it comes out of somebody else's code."""
    text = next((line for line in str(error).splitlines() if line.strip()), "no message")
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(__file__).parent.parent)
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    ours = type(error).__module__.partition(".")[0] in ("tutorial_dl", "numba_kernels")
    said_by_us = not frames or frames[-1].filename.startswith(package)
    if ours or (isinstance(error, ValueError | TypeError) and said_by_us):
        return text
    outside = [f for f in frames if not f.filename.startswith(package)]
    place = f" ({outside[0].filename}, line {outside[0].lineno})" if outside else ""
    return f"{type(error).__name__}: {text}{place}"

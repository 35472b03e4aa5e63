"""The output of `python -m tutorial_dl train`: a JSON object, a printed line, a timeline."""

import json
import os
import sys
import time
from pathlib import Path

from numba_kernels import launch

from ..config import RunConfig
from ..replica.base import compiled
from ..training.progress import TERMINAL
from ..training.ranks import with_ranks
from .files import replace

# Columns of training/gan_quality.py that the printed line has, too
QUALITY = ("discriminator_loss", "accuracy_asked", "separation", "profile_error",
           "resolution_error", "distance")  # fmt: skip


# Seconds that standard output waits: mpiexec takes it another way than the line of the last epoch
BEHIND = 0.1


def summary(config: RunConfig, trainer) -> dict:
    """The result of a run, as `--json` writes it: numbers, texts, lists and dicts only."""
    history, strategy = trainer.history, config.strategy.strategy
    metrics = {n: v for n, v in history.last.items() if n not in ("epoch", "seconds")}
    result = metrics | {
        "strategy": strategy,
        "ranks": trainer.team.size,
        "model": config.data.model,
        "data": config.data.data,
        "epochs": config.schedule.epochs,
        "batch_size": trainer.run.batch_size,
        "optimizer": trainer.optimizer.name,
        "learning_rate": shortest(trainer.run.player.rate),
        "momentum": getattr(trainer.optimizer, "momentum", None),
        "seed": config.data.seed,
        "one_copy": trainer.strategy.one_copy,
        "schedule": str(trainer.schedule) if trainer.schedule else None,
        "accumulate": config.data.accumulate,
        "clip_norm": trainer.clip_norm,
        "compression": config.values()["compression"],
        "compile": compiled(trainer.replica),
        "stopped": trainer.stopped,
        "parameters": sum(s.size for s in trainer.strategy.holding.whole),
        "loss": history.last.get("loss", history.last.get("generator_loss")),
        "val_loss": history.last.get("val_loss", history.last.get("val_generator_loss")),
        "val_accuracy": history.last.get("val_accuracy"),
        "samples_per_second": history.samples_per_second,
        "seconds": history.seconds,
        "history": [
            row | {n: shortest(row[n]) for n in row if n.endswith("learning_rate")}
            for row in history.epochs
        ],
        "config": with_ranks(config, trainer.team.size).tables(),
    }
    if trainer.players[1:]:
        result |= {f"{one.name}_{key}": value for one in trainer.players[1:] for key, value in (
            ("learning_rate", shortest(one.rate)),
            ("loss", history.last[f"{one.name}_loss"]),
            ("parameters", sum(s.size for s in one.replica.segments)),
        )}  # fmt: skip
    quality = [n for one in trainer.callbacks for n in getattr(one, "columns", ())]
    # (A checkpoint of an earlier version may lack one.)
    result |= {name: history.last[name] for name in quality if name in history.last}
    for one in trainer.callbacks:
        if hasattr(one, "pictures"):  # a GAN's (training/gan_samples.py)
            result["samples"] = one.pictures()
    layout = trainer.layout
    if layout.masters:
        result |= {
            "masters": layout.masters,
            "workers": layout.workers,
            "devices": layout.devices,
            "staleness": {str(tau): n for tau, n in sorted(history.staleness.items())},
            "batches_by_rank": {str(rank): n for rank, n in sorted(history.workers.items())},
            "lost": history.lost,
        }
        own = config.strategy_options()
        result |= {name: getattr(trainer.strategy, name) for name in own}
    if strategy == "serial" and not trainer.players[1:]:
        from ..simulate.steps import profile

        result["profile"] = profile(trainer)
    return result


def shortest(value: float) -> float:
    """0.001 for 0.0010000000474974513, which is the float32 nearest to 0.001, as Keras keeps it."""
    import numpy as np

    short = float(str(np.float32(value)))
    return short if float(np.float32(value)) == value else value


def write_config(config: RunConfig, ranks: int) -> None:
    """Write the options beside the checkpoints, for `train --config FOLDER/run.toml --resume`."""
    file = Path(config.checkpoint.checkpoint, "run.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, with_ranks(config, ranks).toml())


def write(result: dict, where: str | None) -> None:
    """Print the result as one line, and write it as JSON; "-" prints the JSON instead."""
    if where == "-":
        print(json.dumps(result, allow_nan=False), flush=True)
        return
    # In a terminal the bar, which ranks write to stderr, must have ended before.
    stream = sys.stderr if os.environ.get(TERMINAL) == "both" else sys.stdout
    if stream is sys.stdout and launch.under_mpi():
        time.sleep(BEHIND)
    print(in_words(result), file=stream, flush=True)
    if where:  # after the line: if the file can't be written, not all is lost
        try:
            Path(where).write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise OSError(error.errno, f"cannot write: {error.strerror}", where) from None


def in_words(result: dict) -> str:
    """A result as one line."""
    loss, accuracy, ranks = result["val_loss"], result["val_accuracy"], result["ranks"]
    rest = " after the first epoch" if len(result["history"]) > 1 else ""
    return (
        f"{result['model']}, {result['strategy']} on {ranks} rank{'s' * (ranks > 1)}: "
        f"loss {result['loss']:.4f}"
        + "".join(f", {n.replace('_', ' ')} {result[n]:.4f}" for n in QUALITY if n in result)
        + (f", validation loss {loss:.4f}" if loss is not None else "")
        + (f", validation accuracy {accuracy:.4f}" if accuracy is not None else "")
        + f"; trained for {result['seconds']:.2f} s, {result['samples_per_second']:,.0f} "
        f"samples/s{rest}"
    )


def write_timeline(timeline, path: Path) -> None:
    """Save the timeline, and print its notes."""
    timeline.save(path)
    for note in timeline.notes():
        print(f"note: {path}: {note}", file=sys.stderr, flush=True)

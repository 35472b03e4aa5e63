"""The output of `python -m tutorial_dl train`: a JSON object, a printed line, a timeline."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ..strategies import OPTIONS
from ..training.options import Options


def summary(options: Options, trainer) -> dict:
    """The result of a run, as `--json` writes it: numbers, texts, lists and dicts only."""
    history = trainer.history
    result = {
        "strategy": options.strategy,
        "ranks": trainer.team.size,
        "model": options.model,
        "data": options.data,
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "optimizer": trainer.optimizer.name,
        "learning_rate": trainer.optimizer.learning_rate,
        "momentum": getattr(trainer.optimizer, "momentum", None),
        "seed": options.seed,
        "one_copy": getattr(trainer.strategy, "one_copy", False),
        "schedule": str(trainer.schedule) if trainer.schedule else None,
        "accumulate": options.accumulate,
        "clip_norm": options.clip_norm,
        "compression": options.compression,
        "stopped": trainer.stopped,
        "parameters": sum(s.size for s in trainer.replica.segments),
        "loss": history.last["loss"],
        "val_loss": history.last["val_loss"],
        "val_accuracy": history.last.get("val_accuracy"),
        "samples_per_second": history.samples_per_second,
        "seconds": history.seconds,
        "history": history.epochs,
    }
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
        result |= {name: getattr(trainer.strategy, name) for name in options_of(options.strategy)}
    if options.strategy == "serial":
        from ..training.prediction import profile

        result["profile"] = profile(trainer)
    return result


def options_of(strategy: str) -> list[str]:
    """The names of the options of the rule called `strategy`."""
    return [name for name, of in OPTIONS.items() if strategy in of and name != "layout"]


def write(result: dict, where: str | None) -> None:
    """Write the result as JSON, and print it as one line.

    Args:
        result: of `summary`.
        where: a file; "-" prints the JSON instead of the line; None prints the line only.
    """
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


def write_timeline(timeline, path: Path) -> None:
    """Save the timeline, and print its notes."""
    timeline.save(path)
    for note in timeline.notes():
        print(f"note: {path}: {note}", file=sys.stderr, flush=True)

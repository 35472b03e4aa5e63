"""The output of `python -m tutorial_dl train`: a JSON object, a printed line, a timeline."""

import json
import sys
from pathlib import Path

from ..config import RunConfig
from ..training.setup import optimizer_of, with_ranks


def summary(config: RunConfig, trainer) -> dict:
    """The result of a run, as `--json` writes it: numbers, texts, lists and dicts only."""
    history, strategy = trainer.history, config.strategy.strategy
    # The rate asked for: the trainer's own may be that of step 0, at the foot of a warm-up.
    asked = optimizer_of(config, trainer.replica, trainer.strategy).optimizer
    result = {
        "strategy": strategy,
        "ranks": trainer.team.size,
        "model": config.data.model,
        "data": config.data.data,
        "epochs": config.schedule.epochs,
        "batch_size": trainer.run.batch_size,
        "optimizer": trainer.optimizer.name,
        "learning_rate": asked.learning_rate,
        "momentum": getattr(trainer.optimizer, "momentum", None),
        "seed": config.data.seed,
        "one_copy": trainer.strategy.one_copy,
        "schedule": str(trainer.schedule) if trainer.schedule else None,
        "accumulate": config.data.accumulate,
        "clip_norm": trainer.clip_norm,
        "compression": config.values()["compression"],
        "compile": trainer.replica.compiled,
        "stopped": trainer.stopped,
        "parameters": sum(s.size for s in trainer.replica.segments),
        "loss": history.last["loss"],
        "val_loss": history.last.get("val_loss"),
        "val_accuracy": history.last.get("val_accuracy"),
        "samples_per_second": history.samples_per_second,
        "seconds": history.seconds,
        "history": history.epochs,
        "config": with_ranks(config, trainer.team.size).tables(),
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
        own = config.strategy_options()
        result |= {name: getattr(trainer.strategy, name) for name in own}
    if strategy == "serial":
        from ..training.prediction import profile

        result["profile"] = profile(trainer)
    return result


def write_config(config: RunConfig, ranks: int) -> None:
    """Write the options beside the checkpoints, for `train --config FOLDER/run.toml --resume`."""
    file = Path(config.checkpoint.checkpoint, "run.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(with_ranks(config, ranks).toml(), encoding="utf-8")
    part.replace(file)  # at once: a file that is half written would be of no use


def write(result: dict, where: str | None) -> None:
    """Write the result as JSON, and print it as one line; "-" prints the JSON instead."""
    if where == "-":
        print(json.dumps(result, allow_nan=False), flush=True)
    elif where:
        Path(where).write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    if where != "-":
        loss, accuracy, ranks = result["val_loss"], result["val_accuracy"], result["ranks"]
        print(
            f"{result['strategy']} on {ranks} rank{'s' * (ranks > 1)}: loss {result['loss']:.4f}"
            + (f", validation loss {loss:.4f}" if loss is not None else "")
            + (f", validation accuracy {accuracy:.4f}" if accuracy is not None else "")
            + f"; {result['samples_per_second']:.0f} samples/s, {result['seconds']:.2f} s",
            flush=True,
        )


def write_timeline(timeline, path: Path) -> None:
    """Save the timeline, and print its notes."""
    timeline.save(path)
    for note in timeline.notes():
        print(f"note: {path}: {note}", file=sys.stderr, flush=True)

"""What came out of `python -m tutorial_dl run`, in sentences that are computed from its rows."""

from ..words import counted

IN_STEP = ("serial", "synchronous")  # all ranks make the updates that one process makes
SAME = 0.05  # speeds and losses that differ by less, relatively, count as the same
IDLE = 0.3  # cores that other programs may use without being mentioned


def outcome(rows: list[dict], cores: int, others: float) -> list[str]:
    """Sentences about the rows of `compare`.

    Args:
        rows: See run.py.
        cores: The cores that the ranks shared.
        others: Cores that other programs kept busy between the runs, at most.
    """
    found = [_speed(rows, model) for model in dict.fromkeys(row["model"] for row in rows)]
    found += [_losses(rows), _asynchronous(rows)]
    if others > IDLE:
        found.append(
            f"Other programs kept up to {min(others, cores):.1f} of {counted(cores, 'core')} busy "
            "meanwhile, so times and speed-ups are not those of a quiet machine."
        )
    return [sentence for sentence in found if sentence]


def of_gan(result: dict) -> str:
    """What came out of the run of a GAN of digits: a result of `train --json`."""
    missing = int(result["missing_classes"])
    classes = ("no class is", "1 class is", f"{missing} classes are")[min(missing, 2)]
    return (
        f"A GAN of the digits, on {counted(result['ranks'], 'rank')}: after "
        f"{counted(len(result['history']), 'epoch')}, a classifier of real digits takes "
        f"{result['accuracy_asked']:.0%} of 1000 generated ones for the class asked for, and "
        f"{classes} missing."
    )


def _speed(rows: list[dict], model: str) -> str:
    """How much faster than one process the best number of synchronous ranks was."""
    ranks = [r for r in rows if (r["model"], r["strategy"]) == (model, "synchronous")]
    several = [row for row in ranks if row["ranks"] > 1]
    if not several:
        return ""
    best = max(several, key=lambda row: row["speed_up"])
    times, where = best["speed_up"], counted(best["ranks"], "rank")
    if times >= 1 + SAME:
        return f"Model {model}: {where} trained {times:.1f} times as fast as one process."
    if times >= 1 - SAME:
        return f"Model {model}: {where} were about as fast as one process."
    return f"Model {model}: one process was faster than several ranks ({where}: {times:.2f} times)."


def _losses(rows: list[dict]) -> str:
    """Whether synchronous ranks ended where one process did."""
    serial = {row["model"]: row["val_loss"] for row in rows if row["strategy"] == "serial"}
    ranks = [row for row in rows if row["strategy"] == "synchronous"]
    if not ranks:
        return ""
    away = max(abs(row["val_loss"] / serial[row["model"]] - 1) for row in ranks)
    if away < SAME:
        return f"All synchronous runs ended with the loss of one process, to within {away:.1%}."
    return f"Losses of synchronous runs differ from those of one process by up to {away:.0%}."


def _asynchronous(rows: list[dict]) -> str:
    """How the asynchronous strategies compare with one process, after as many samples."""
    found = [row for row in rows if row["strategy"] not in IN_STEP]
    if not found:
        return ""
    model = found[0]["model"]
    one = next(r for r in rows if (r["model"], r["strategy"]) == (model, "serial"))
    best = min(found, key=lambda row: row["val_loss"])
    accuracies = sorted(row["val_accuracy"] for row in found)
    return (
        f"Of the asynchronous strategies, {best['strategy'].replace('_', ' ')} ended with the "
        f"lowest validation loss, {best['val_loss']:.4f} (one process: {one['val_loss']:.4f}); "
        f"their accuracies are {accuracies[0]:.3f} to {accuracies[-1]:.3f} (one process: "
        f"{one['val_accuracy']:.3f})."
    )

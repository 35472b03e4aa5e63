"""The figure of merit: what a search makes as low, or as high, as it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..user_function import find, is_reference

HIGHER = ("accuracy", "auc", "precision", "recall", "f1_score", "iou", "r2_score")  # is better


def is_higher_better(name: str) -> bool:
    """Whether a search maximises the column `name` of a history if it isn't told."""
    return any(name.removeprefix("val_").endswith(word) for word in HIGHER)


def merit_of(name: str) -> Callable[[Any], float]:
    """The function of a trainer that returns its figure of merit after its last epoch so far.

    `name` is a column of the history, such as val_loss, or a function f(trainer) of the user's,
    "module:function".
    """
    if is_reference(name):
        return find(name, "merit")

    def entry(trainer) -> float:
        row = trainer.history.last
        if name not in row:
            have = ", ".join(n for n in row if n != "epoch")
            raise ValueError(f"merit {name!r} is none of the history's columns: {have}")
        return row[name]

    return entry

"""The figure of merit: what a search makes as low, or as high, as it can."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..user_function import find, is_reference

# Is better
HIGHER = (
    "accuracy", "acc", "auc", "precision", "prc", "recall", "f1_score", "f1", "iou", "r2_score",
)  # fmt: skip


def is_higher_better(name: str) -> bool:
    """Whether a search maximises the column `name` of a history if it isn't told."""
    # Keras numbers a second metric of the same kind: auc_1
    return re.sub(r"_\d+$", "", name.lower()).endswith(HIGHER)


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

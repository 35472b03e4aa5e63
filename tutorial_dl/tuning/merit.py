"""The figure of merit: what a search makes as low, or as high, as it can."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from ..user_function import find, is_reference
from .space import nearest

# Is better
HIGHER = (
    "accuracy", "acc", "auc", "precision", "prc", "recall", "f1_score", "f1", "iou", "r2_score",
    "accuracy_asked",  # of a GAN
)  # fmt: skip


def is_higher_better(name: str) -> bool:
    """Whether a search maximises the column `name` of a history if it isn't told."""
    # Keras numbers a second metric of the same kind: auc_1
    return re.sub(r"_\d+$", "", name.lower()).endswith(HIGHER)


def merit_of(name: str) -> Callable[[Any], float | list[float]]:
    """The function of a trainer that returns its figure of merit after its last epoch so far.

    `name` is a column of the history, such as val_loss, or a function f(trainer) of the user's,
    "module:function". Of several, with commas, the function returns a list.
    """
    if "," in name:
        each = [merit_of(one) for one in name.split(",")]
        return lambda trainer: [float(of(trainer)) for of in each]
    if is_reference(name):
        function = find(name, "merit")
        try:
            inspect.signature(function).bind(None)
        except TypeError:
            takes = inspect.signature(function)
            raise ValueError(
                f"merit {name!r} is called with the trainer alone, and it takes {takes}"
            ) from None
        except ValueError:  # a function without a signature, such as a builtin
            pass
        return function

    def entry(trainer) -> float:
        row = trainer.history.last
        check_column(name, row)
        return row[name]

    return entry


def check_column(name: str, columns: Iterable[str]) -> None:
    """Raise ValueError, in one line, if a history of these columns has none of this name."""
    have = [one for one in columns if one != "epoch"]
    if name not in have:
        hint = nearest(name, have)
        raise ValueError(
            f"merit {name!r} is none of the history's columns: {', '.join(have)}"
            + (f"; {hint}" if hint else "")
        )

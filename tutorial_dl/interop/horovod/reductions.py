"""What an allreduce does with the tensors of all ranks; small integers, as scripts compare them."""

from __future__ import annotations

from enum import IntEnum


class Reduction(IntEnum):
    """Average = 0 ... so that `op=0` and `op=hvd.Average` mean the same."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    def __str__(self) -> str:
        return self.name


Average, Sum, Adasum, Min, Max, Product = Reduction


def reduction(op: int | None, average: bool | None = None) -> Reduction:
    """The reduction that `op`, or the older argument `average`, asks for; by default Average.

    Raises ValueError if both are given, or for an op that there is not.
    """
    if op is not None and average is not None:
        raise ValueError("give op, or average, not both")
    if op is None:
        return Sum if average is False else Average
    try:
        return Reduction(op)
    except ValueError:
        names = ", ".join(r.name for r in Reduction)
        raise ValueError(f"unknown op {op!r}; one of {names} is right") from None

"""Reduction operators (Average, Sum, ...) as small integers, because scripts compare them."""

from enum import IntEnum


class Reduction(IntEnum):
    """Reduction operators; Average = 0 ..., so `op=0` and `op=hvd.Average` mean the same."""

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
    """The reduction given by `op`, or by the older argument `average`; by default Average.

    Raises:
        ValueError: If both are given, or `op` is unknown.
    """
    if op is not None and average is not None:
        raise ValueError("give either op or average, not both")
    if op is None:
        return Sum if average is False else Average
    try:
        return Reduction(op)
    except ValueError:
        names = ", ".join(r.name for r in Reduction)
        raise ValueError(f"unknown op {op!r}; choose one of {names}") from None

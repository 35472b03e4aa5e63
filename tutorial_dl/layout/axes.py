"""Named axes: numbers as coordinates in mixed radix, the last axis varying fastest.

>>> axes = {"data": 2, "pipeline": 3, "tensor": 4}
>>> coordinates(axes, 17)
{'data': 1, 'pipeline': 1, 'tensor': 1}
>>> along(axes, "pipeline", 17)
[13, 17, 21]

`Layout.axes` are the axes of a run; a grid of ranks without masters needs only these functions.
"""

from collections.abc import Mapping
from itertools import islice
from math import prod


def sizes(ranks: int, pipeline: int) -> dict[str, int]:
    """The axes of `ranks` ranks in pipelines of `pipeline`; ValueError if they don't divide."""
    if pipeline < 1:
        raise ValueError(f"pipeline must have at least 1 rank, got {pipeline}")
    if ranks % pipeline:
        below = [s for s in range(1, ranks + 1) if ranks % s == 0]
        raise ValueError(
            f"{ranks} ranks can't be divided into pipelines of {pipeline}: use a multiple of "
            f"{pipeline} ranks, or pipelines of {', '.join(map(str, below))}"
        )
    return {"data": ranks // pipeline, "pipeline": pipeline}


def coordinates(axes: Mapping[str, int], number: int) -> dict[str, int]:
    """The coordinates of `number` by axis, in the order of `axes` (name -> size).

    Raises ValueError if there are not that many numbers.
    """
    if not 0 <= number < prod(axes.values()):
        raise ValueError(f"number must be from 0 to {prod(axes.values()) - 1}, got {number}")
    found = dict(axes)
    for name in reversed(found):
        number, found[name] = divmod(number, axes[name])
    return found


def along(axes: Mapping[str, int], name: str, number: int) -> list[int]:
    """The numbers that have the coordinates of `number` on all axes but `name`, in order."""
    stride = prod(islice(axes.values(), list(axes).index(name) + 1, None))
    first = number - coordinates(axes, number)[name] * stride
    return [first + place * stride for place in range(axes[name])]

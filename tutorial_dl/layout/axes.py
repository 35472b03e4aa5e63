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

# What ranks with all other coordinates equal make together, for the axes that divide a model
GROUPS = {"pipeline": "pipelines", "context": "context groups", "tensor": "tensor groups"}


def sizes(
    ranks: int, pipeline: int = 1, context: int | None = None, tensor: int | None = None
) -> dict[str, int]:
    """The axes of `ranks` ranks, outermost first: data, pipeline, context, tensor.

    The ranks of a tensor group exchange most, so they are neighbours: on one node, if it has as
    many. Context and tensor are left out where they are None. ValueError if the axes do not divide
    the ranks.

    >>> sizes(8, 2, tensor=2)
    {'data': 2, 'pipeline': 2, 'tensor': 2}
    """
    asked = {"pipeline": pipeline, "context": context, "tensor": tensor}
    asked = {name: size for name, size in asked.items() if size is not None}
    for name, size in asked.items():
        if size < 1:
            raise ValueError(f"{name} must have at least 1 rank, got {size}")
    one = prod(asked.values())
    if ranks % one:
        beyond = {name: size for name, size in asked.items() if size > 1}
        if len(beyond) == 1:
            (name,) = beyond
            below = [s for s in range(1, ranks + 1) if ranks % s == 0]
            raise ValueError(
                f"{ranks} ranks can't be divided into {GROUPS[name]} of {one}: use a multiple of "
                f"{one} ranks, or {GROUPS[name]} of {', '.join(map(str, below))}"
            )
        product = " x ".join(f"{name} {size}" for name, size in beyond.items())
        raise ValueError(
            f"{ranks} ranks can't be divided into groups of {one} ({product}): use a multiple of "
            f"{one} ranks"
        )
    return {"data": ranks // one, **asked}


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


def number_of(axes: Mapping[str, int], place: Mapping[str, int]) -> int:
    """The reverse of `coordinates`: the number with these coordinates; 0 on axes left out.

    >>> number_of({"data": 2, "pipeline": 3, "tensor": 4}, {"data": 1, "tensor": 1})
    13
    """
    number = 0
    for name, size in axes.items():
        number = number * size + place.get(name, 0)
    return number


def along(axes: Mapping[str, int], name: str, number: int) -> list[int]:
    """The numbers that have the coordinates of `number` on all axes but `name`, in order."""
    stride = prod(islice(axes.values(), list(axes).index(name) + 1, None))
    first = number - coordinates(axes, number)[name] * stride
    return [first + place * stride for place in range(axes[name])]

"""Named axes: numbers as coordinates in mixed radix, the last axis varying fastest.

>>> axes = {"data": 2, "pipeline": 3, "tensor": 4}
>>> coordinates(axes, 17)
{'data': 1, 'pipeline': 1, 'tensor': 1}
>>> along(axes, "pipeline", 17)
[13, 17, 21]

`Layout.axes` are the axes of a run; a grid of ranks without masters needs only these functions:
data, pipeline, context and tensor (`sizes`), and `lines`, which shows such a grid as text.
"""

from collections.abc import Mapping
from itertools import islice
from math import prod

from tutorial_dl.words import counted

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


def roles(axes: Mapping[str, int], node_size: int | None = None) -> list[dict[str, int]]:
    """Each rank's number and coordinates, and its node if nodes have `node_size` ranks."""
    found = [{"rank": rank} | coordinates(axes, rank) for rank in range(prod(axes.values()))]
    if node_size is None:
        return found
    return [role | {"node": role["rank"] // node_size} for role in found]


def ranks_of(axes: Mapping[str, int], **place: int) -> list[int]:
    """The ranks of a tensor group: those with the other coordinates of `place` (0 if not given).

    >>> ranks_of({"data": 2, "pipeline": 2, "tensor": 2}, data=1, pipeline=0)
    [4, 5]
    """
    return [number_of(axes, place | {"tensor": t}) for t in range(axes.get("tensor", 1))]


def split_groups(axes: Mapping[str, int], node_size: int) -> list[list[int]]:
    """The tensor groups whose ranks lie on several nodes."""
    size = axes.get("tensor", 1)
    groups = [list(range(low, low + size)) for low in range(0, prod(axes.values()), size)]
    return [one for one in groups if one[0] // node_size != one[-1] // node_size]


def title(axes: Mapping[str, int]) -> str:
    """In words: "data 2 x pipeline 2: 4 ranks"."""
    product = " x ".join(f"{name} {size}" for name, size in axes.items())
    return f"{product}: {counted(prod(axes.values()), 'rank')}"


def lines(axes: Mapping[str, int], node_size: int | None = None) -> list[str]:
    """A line per copy of the model, with the ranks of each stage, and of each part of sequences."""
    found = [title(axes)]
    for copy in range(axes["data"]):
        cells = []
        for stage in range(axes.get("pipeline", 1)):
            for part in range(axes.get("context", 1)):
                ranks = ranks_of(axes, data=copy, pipeline=stage, context=part)
                names = [f"stage {stage}"] if "pipeline" in axes else []
                names += [f"part {part}"] if "context" in axes else []
                text = f"rank{'s' * (len(ranks) > 1)} {' '.join(map(str, ranks))}"
                cells.append(": ".join([", ".join(names), text] if names else [text]))
                if node_size is not None:
                    nodes = sorted({rank // node_size for rank in ranks})
                    many = "s" * (len(nodes) > 1)
                    cells[-1] += f" (node{many} {' '.join(map(str, nodes))})"
        found.append(f"copy {copy}    " + "    ".join(cells))
    if node_size is not None and (split := split_groups(axes, node_size)):
        size = axes["tensor"]
        found.append(
            f"note: the tensor group of ranks {' '.join(map(str, split[0]))} lies on several "
            "nodes, so every layer waits for the network: use nodes of a multiple of "
            f"{size} ranks, or a smaller --tensor"
        )
    return found

"""The ranks of a run without masters along its axes, as text: data, pipeline, context, tensor."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tutorial_dl.layout.axes import coordinates, number_of


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
    ranks = prod(axes.values())
    product = " x ".join(f"{name} {size}" for name, size in axes.items())
    return f"{product}: {ranks} rank{'s' * (ranks != 1)}"


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

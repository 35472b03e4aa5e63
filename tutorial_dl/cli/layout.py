"""`python -m tutorial_dl layout`: how many ranks a run needs, and the role of each."""

from __future__ import annotations

import json as json_format
from pathlib import Path

from tutorial_dl.layout.counts import check_bound
from tutorial_dl.layout.layout import Layout

FIGURES = (".png", ".svg", ".pdf")


def main(
    *,
    groups: int,
    folds: int,
    masters: int | None,
    workers: int | None,
    devices: int | None,
    ranks: int | None,
    node_size: int | None,
    json: str | None,
    figure: str | None,
) -> None:
    """Print the layout as a tree, or as JSON if json is "-"; write the files asked for.

    Args:
        groups: parameter sets that a search tries at once.
        folds: folds of a cross-validation, trained at once.
        masters: 0, 1, or the number of sub-masters; None if not given. A number that is not given
            follows from `ranks`, or is 1. The same holds for `workers` and `devices`.
        workers: workers per master or sub-master.
        devices: ranks per worker.
        ranks: number of ranks; None for as many as the layout needs.
        node_size: ranks per node, in order of rank; None for a single node.
        json: file for the roles as JSON, or "-" for standard output.
        figure: file for the drawing; its suffix is its format.

    Raises:
        ValueError: if the numbers do not fit, or a file cannot be written.
    """
    said = {"masters": masters, "workers": workers, "devices": devices}
    if ranks is not None:
        layout = Layout.for_ranks(ranks, **said, groups=groups, folds=folds)
    else:
        said = {name: value for name, value in said.items() if value is not None}
        layout = Layout(groups, folds, **said)
    check_bound(layout.ranks)
    nodes = None if node_size is None else [rank // node_size for rank in range(layout.ranks)]
    if figure is not None and not figure.lower().endswith(FIGURES):
        raise ValueError(
            f"--figure must be a file name that ends in {', '.join(FIGURES)}, got {figure!r}"
        )
    wanted, picture = (_file(name) if name not in (None, "-") else None for name in (json, figure))

    text = json_format.dumps(as_object(layout, nodes))
    if wanted is not None:
        wanted.write_text(text + "\n")
    print(text if json == "-" else layout.text(nodes))
    if picture is not None:
        layout.figure(nodes).savefig(picture, bbox_inches="tight")


def as_object(layout: Layout, nodes: list[int] | None = None) -> dict:
    """The object that --json writes.

    Returns:
        {"ranks": int, "nodes_in_talk": int, "roles": [{"rank": int, "role": str, ...}, ...]}
    """
    return {
        "ranks": layout.ranks,
        "nodes_in_talk": layout.nodes_in_talk,
        "roles": [role._asdict() for role in layout.roles(nodes)],
    }


def _file(name: str) -> Path:
    from numba_kernels.bench import check_file  # it imports numpy: only where a file is written

    return check_file(name)

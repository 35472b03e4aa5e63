"""`python -m tutorial_dl layout`: ranks needed, and who is who, before any of them runs."""

from __future__ import annotations

import json as json_format
from pathlib import Path

from tutorial_dl.layout.fitting import check_bound
from tutorial_dl.layout.layout import Layout

FIGURES = (".png", ".svg", ".pdf")


def main(
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
    """Print the tree, or with json="-" the object; write the files that are asked for.

    Parameters
    ----------
    masters, workers, devices : None: not said. Then it is 1, or follows from `ranks`.
    ranks : how many there are; None: as many as the layout needs.
    node_size : ranks of a node, the first node having the first ones; None: all are on one.
    json : file for the object, or "-".
    figure : file for the picture; its name says the format.

    Raises
    ------
    ValueError : numbers that do not fit; a file that can't be written.
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
        raise ValueError(f"--figure {figure}: a name that ends in {', '.join(FIGURES)} is right")
    wanted, picture = (_file(name) if name not in (None, "-") else None for name in (json, figure))

    text = json_format.dumps(as_object(layout, nodes))
    if wanted is not None:
        wanted.write_text(text + "\n")
    print(text if json == "-" else layout.text(nodes))
    if picture is not None:
        layout.figure(nodes).savefig(picture, bbox_inches="tight")


def as_object(layout: Layout, nodes: list[int] | None = None) -> dict:
    """What --json writes: {"ranks", "nodes_in_talk", "roles": [{"rank", "role", ...}, ...]}."""
    return {
        "ranks": layout.ranks,
        "nodes_in_talk": layout.nodes_in_talk,
        "roles": [role._asdict() for role in layout.roles(nodes)],
    }


def _file(name: str) -> Path:
    from numba_kernels.bench import check_file  # numpy with it: not for those who want no file

    return check_file(name)

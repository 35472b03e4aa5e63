"""`python -m tutorial_dl layout`: how many ranks a run needs, and the role of each."""

import json as json_format
from pathlib import Path

from tutorial_dl.layout.axes import coordinates, sizes
from tutorial_dl.layout.counts import check_bound
from tutorial_dl.layout.layout import Layout

from .errors import check_writable

FIGURES = (".png", ".svg", ".pdf")


def main(
    *, groups: int, folds: int, masters: int | None, workers: int | None, devices: int | None,
    ranks: int | None, node_size: int | None, json: str | None, figure: str | None,
    pipeline: int | None = None,
) -> None:  # fmt: skip
    """Print the layout as a tree, or as JSON if json is "-"; write the files asked for."""
    said = {"masters": masters, "workers": workers, "devices": devices}
    if pipeline is not None:
        given = {name: value for name, value in said.items() if value is not None}
        if given or (groups, folds) != (1, 1) or figure is not None:
            raise ValueError("--pipeline is shown with -n, --node-size and --json only")
        show_pipelines(ranks or pipeline, pipeline, node_size, json)
        return
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
    for name in (json, figure):
        if name not in (None, "-"):
            check_writable(Path(name))
    roles = [role._asdict() for role in layout.roles(nodes)]
    found = {"ranks": layout.ranks, "nodes_in_talk": layout.nodes_in_talk, "roles": roles}
    text = json_format.dumps(found)
    if json not in (None, "-"):
        Path(json).write_text(text + "\n")
    print(text if json == "-" else layout.text(nodes))
    if figure is not None:
        layout.figure(nodes).savefig(figure, bbox_inches="tight")


def show_pipelines(ranks: int, pipeline: int, node_size: int | None, json: str | None) -> None:
    """Print the axes of a run with pipelines: a line per pipeline, with the rank of each stage."""
    check_bound(ranks)
    axes = sizes(ranks, pipeline)
    roles = [{"rank": rank} | coordinates(axes, rank) for rank in range(ranks)]
    if node_size is not None:
        roles = [role | {"node": role["rank"] // node_size} for role in roles]
    text = json_format.dumps({"ranks": ranks, "axes": axes, "roles": roles})
    if json not in (None, "-"):
        check_writable(Path(json))
        Path(json).write_text(text + "\n")
    if json == "-":
        print(text)
        return
    print(f"data {axes['data']} x pipeline {pipeline}: {ranks} ranks")
    for copy in range(axes["data"]):
        mine = [role for role in roles if role["data"] == copy]
        cells = [
            f"stage {role['pipeline']}: rank {role['rank']}"
            + (f" (node {role['node']})" if node_size is not None else "")
            for role in mine
        ]
        print(f"copy {copy}    " + "    ".join(cells))

"""`python -m tutorial_dl layout`: how many ranks a run needs, and the role of each."""

import json as json_format
from math import prod
from pathlib import Path

from tutorial_dl.layout.axes import lines, roles, sizes
from tutorial_dl.layout.counts import check_bound
from tutorial_dl.layout.layout import Layout

from .errors import check_writable

FIGURES = (".png", ".svg", ".pdf")


def main(
    *, groups: int, folds: int, masters: int | None, workers: int | None, devices: int | None,
    ranks: int | None, node_size: int | None, json: str | None, figure: str | None,
    pipeline: int | None = None, context: int | None = None, tensor: int | None = None,
    for_model: str | None = None, data: str | None = None, batch_size: int | None = None,
    optimizer: str | None = None, memory: float | None = None,
    sequence_parallel: bool | None = None,
) -> None:  # fmt: skip
    """Print the layout as a tree, or as JSON if json is "-"; write the files asked for."""
    said = {"masters": masters, "workers": workers, "devices": devices}
    cut = {"pipeline": pipeline, "context": context, "tensor": tensor}
    cut = {name: size for name, size in cut.items() if size is not None}
    of_model = {
        "data": data, "batch_size": batch_size, "optimizer": optimizer, "memory": memory,
        "sequence_parallel": sequence_parallel,
    }  # fmt: skip
    if for_model is None:
        if given := [name for name, value in of_model.items() if value is not None]:
            raise ValueError(f"--{given[0].replace('_', '-')} has no effect without --for MODEL")
    else:
        asked = any(value is not None for value in (*said.values(), figure, node_size))
        if cut or asked or (groups, folds) != (1, 1):
            raise ValueError(
                "--for proposes cuts itself: give it only -n, --data, --batch-size, --optimizer, "
                "--memory, --sequence-parallel and --json"
            )
        if ranks is None:
            raise ValueError("--for needs the number of ranks, -n RANKS")
        if memory is not None and not memory > 0:
            raise ValueError(f"--memory must be above 0, got {memory:g}")
        check_bound(ranks)
        if json not in (None, "-"):
            check_writable(Path(json))
        from . import layout_for

        layout_for.main(
            model=for_model, ranks=ranks, data=data, batch_size=batch_size or 32,
            optimizer=optimizer or "adam", memory=memory, json=json,
            sequence=bool(sequence_parallel),
        )  # fmt: skip
        return
    if figure is not None and not figure.lower().endswith(FIGURES):
        raise ValueError(
            f"--figure must be a file name that ends in {', '.join(FIGURES)}, got {figure!r}"
        )
    for name in (json, figure):
        if name not in (None, "-"):
            check_writable(Path(name))
    if cut:
        if any(value is not None for value in said.values()) or (groups, folds) != (1, 1):
            raise ValueError(
                f"--{next(iter(cut))} is shown with -n, --node-size, --json, --figure and the "
                "other axes only"
            )
        show_axes(ranks or prod(cut.values()), cut, node_size, json, figure)
        return
    if ranks is not None:
        layout = Layout.for_ranks(ranks, **said, groups=groups, folds=folds)
    else:
        said = {name: value for name, value in said.items() if value is not None}
        layout = Layout(groups, folds, **said)
    check_bound(layout.ranks)
    nodes = None if node_size is None else [rank // node_size for rank in range(layout.ranks)]
    roles = [role._asdict() for role in layout.roles(nodes)]
    found = {"ranks": layout.ranks, "nodes_in_talk": layout.nodes_in_talk, "roles": roles}
    text = json_format.dumps(found)
    if json not in (None, "-"):
        Path(json).write_text(text + "\n")
    print(text if json == "-" else layout.text(nodes))
    if figure is not None:
        layout.figure(nodes).savefig(figure, bbox_inches="tight")


def show_axes(
    ranks: int, cut: dict[str, int], node_size: int | None, json: str | None, figure: str | None
) -> None:
    """Print the axes of a run whose model is cut: a line per copy of the model."""
    check_bound(ranks)
    axes = sizes(ranks, **{"pipeline": 1} | cut)
    if "pipeline" not in cut:
        del axes["pipeline"]
    found = {"ranks": ranks, "axes": axes, "roles": roles(axes, node_size)}
    text = json_format.dumps(found)
    if json not in (None, "-"):
        Path(json).write_text(text + "\n")
    print(text if json == "-" else "\n".join(lines(axes, node_size)))
    if figure is not None:
        from tutorial_dl.layout.figure import draw_axes

        draw_axes(axes, node_size).savefig(figure, bbox_inches="tight")

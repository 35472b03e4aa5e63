"""`python -m tutorial_dl layout`: how many ranks a run needs, and the role of each."""

from math import prod
from typing import Annotated

import typer

from tutorial_dl.layout.axes import lines, roles, sizes
from tutorial_dl.layout.counts import check_bound
from tutorial_dl.layout.layout import Layout

from .. import config
from .errors import one_line
from .files import check_figure, check_writable, print_or_write
from .parameters import RANKS, file_option, flag, number


@one_line()
def layout(
    masters: number(config.OPTIONS["masters"].help) = None,
    workers: number(config.OPTIONS["workers"].help) = None,
    devices: number(config.OPTIONS["devices"].help) = None,
    pipeline: number("Show pipelines of so many stages, of all -n ranks.", min=1) = None,
    context: number("Show sequences divided over so many ranks.", min=1) = None,
    tensor: number("Show layers cut over so many ranks each.", min=1) = None,
    groups: number("Parameter sets that a search tries at once.") = 1,
    folds: number("Cross-validation folds trained at once.") = 1,
    ranks: number("Number of ranks, masters included.", *RANKS) = None,
    node_size: number("Number of ranks per node.", min=1, metavar="RANKS") = None,
    for_model: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="Propose how to cut this Keras model over -n ranks.",
            metavar="NAME|module:function",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="With --for: the data.", metavar="NAME|module:function")
    ] = None,
    batch_size: number("With --for: samples per update; default: 32.", min=1) = None,
    optimizer: Annotated[
        str | None, typer.Option(help="With --for: the optimizer, whose averages take memory.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(help="With --for: GiB that a rank may use.", metavar="GIB")
    ] = None,
    sequence_parallel: flag("With --for: as of --tensor in train.", "--sequence-parallel") = False,
    json: file_option("Write the roles as JSON; - prints them.") = None,
    figure: file_option("Draw the layout as .png, .svg or .pdf.") = None,
) -> None:
    """Show the role of each rank: master, sub-master or worker; or propose how to cut a model."""
    said = {"masters": masters, "workers": workers, "devices": devices}
    cut = {"pipeline": pipeline, "context": context, "tensor": tensor}
    cut = {name: size for name, size in cut.items() if size is not None}
    of_model = {
        "data": data, "batch_size": batch_size, "optimizer": optimizer, "memory": memory,
        "sequence_parallel": sequence_parallel or None,
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
        check_writable(json)
        from . import layout_for

        layout_for.main(
            model=for_model, ranks=ranks, data=data, batch_size=batch_size or 32,
            optimizer=optimizer or "adam", memory=memory, json=json,
            sequence=sequence_parallel,
        )  # fmt: skip
        return
    check_figure(figure)
    check_writable(json)
    if cut:
        if any(value is not None for value in said.values()) or (groups, folds) != (1, 1):
            raise ValueError(
                f"--{next(iter(cut))} is shown with -n, --node-size, --json, --figure and the "
                "other axes only"
            )
        show_axes(ranks or prod(cut.values()), cut, node_size, json, figure)
        return
    if ranks is not None:
        found = Layout.for_ranks(ranks, **said, groups=groups, folds=folds)
    else:
        said = {name: value for name, value in said.items() if value is not None}
        found = Layout(groups, folds, **said)
    check_bound(found.ranks)
    nodes = None if node_size is None else [rank // node_size for rank in range(found.ranks)]
    each = [role._asdict() for role in found.roles(nodes)]
    told = {"ranks": found.ranks, "nodes_in_talk": found.nodes_in_talk, "roles": each}
    print_or_write(told, json, found.text(nodes))
    if figure is not None:
        found.figure(nodes).savefig(figure, bbox_inches="tight")


def show_axes(
    ranks: int, cut: dict[str, int], node_size: int | None, json: str | None, figure: str | None
) -> None:
    """Print the axes of a run whose model is cut: a line per copy of the model."""
    check_bound(ranks)
    axes = sizes(ranks, **{"pipeline": 1} | cut)
    if "pipeline" not in cut:
        del axes["pipeline"]
    found = {"ranks": ranks, "axes": axes, "roles": roles(axes, node_size)}
    print_or_write(found, json, "\n".join(lines(axes, node_size)))
    if figure is not None:
        from tutorial_dl.layout.figure import draw_axes

        draw_axes(axes, node_size).savefig(figure, bbox_inches="tight")

"""The figure of `History.plot`: loss and metrics by epoch."""

from collections.abc import Mapping

from matplotlib.ticker import MaxNLocator

from .. import figure_style as style

OTHERS = ("epoch", "seconds", "samples_per_second", "learning_rate", "loss")  # no metrics
WORDS = {"loss": "loss", "auc": "AUC"}


def curves(histories: Mapping[str, object]) -> style.Figure:
    """A panel for the loss and one for each metric, a colour for each history.

    Solid lines are of training, dashed ones of validation.
    """
    for name, history in histories.items():
        if not history.epochs:
            raise ValueError(
                f"the history of {name} has no epochs yet; train first: trainer.fit(5)"
            )
    every = [name for of in histories.values() for row in of.epochs for name in row]
    metrics = [name.removeprefix("val_") for name in every if name not in OTHERS]
    loss = ["loss"] if "loss" in every else []  # players of a game have losses of their own
    names = list(dict.fromkeys([*loss, *metrics]))
    with style.panel_each(names, 2, 4.6, 3.2) as (figure, panels):
        for name, ax in panels.items():
            for number, history in enumerate(histories.values()):
                _draw(ax, history, name, number, alone=len(histories) == 1)
            what = WORDS.get(name, name.replace("_", " "))
            ax.set(title=what[0].upper() + what[1:], xlabel="epoch", ylabel=what)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(handles=_legend(histories), loc="outside lower center", ncols=4)
    return figure


def _draw(ax, history, name: str, number: int, alone: bool) -> None:
    for kind, column in enumerate((name, f"val_{name}")):
        points = [(row["epoch"], row[column]) for row in history.epochs if column in row]
        if points:
            marker = "o" if len(points) == 1 else ""  # a line of one point can't be seen
            look = {"color": style.colour(kind if alone else number), "marker": marker}
            if not alone and number == 0:  # a band, which other lines that coincide do not hide
                look |= {"linewidth": 6, "alpha": 0.35}
            ax.plot(*zip(*points, strict=True), linestyle=style.LINES[kind], **look)


def _legend(histories: Mapping[str, object]) -> list:
    from matplotlib.lines import Line2D

    alone = len(histories) == 1
    columns = {name for of in histories.values() for row in of.epochs for name in row}
    kinds = ["training"] + ["validation"] * any(name.startswith("val_") for name in columns)
    looks = [
        {"color": style.colour(kind) if alone else style.GREY, "linestyle": style.LINES[kind]}
        for kind in range(len(kinds))
    ]
    handles = [Line2D([], [], label=kind, **look) for kind, look in zip(kinds, looks, strict=True)]
    if alone:
        return handles
    names = enumerate(histories)
    bands = [{"linewidth": 6, "alpha": 0.35} if n == 0 else {} for n in range(len(histories))]
    return [
        Line2D([], [], label=name, color=style.colour(n), **bands[n]) for n, name in names
    ] + handles

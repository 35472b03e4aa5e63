"""Figures of a search, for its report and for notebooks, in the look of all figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from optuna.trial import FrozenTrial, TrialState

from .. import figure_style as style
from .coordinator import Outcome
from .drawing import short
from .space import choices_of
from .study import Study

HATCHES = {"failed": "////", "pruned": ".."}
PANEL = 3.0, 2.3  # inches


def timeline(outcome: Outcome, rows: Iterable[Mapping] = ()) -> style.Figure:
    """What each cell trained when: a bar per training, with its trial's number where it fits.

    `rows` are the trials (`Study.rows`): those that did not complete are hatched, and named in the
    legend. Time begins with the search, when its ranks load data and code.
    """
    states = {row["number"]: row["state"] for row in rows}
    with style.axes(height=1.2 + 0.35 * outcome.cells) as ax:
        whole = max([outcome.seconds, *(ended for *_, ended in outcome.spans)])
        for cell, trial, _, began, ended in outcome.spans:
            state = states.get(trial, "complete")
            ax.barh(
                cell, ended - began, left=began, color=style.colour(trial), edgecolor="white",
                hatch=HATCHES.get(state), linewidth=1,
            )  # fmt: skip
            if ended - began > 0.018 * len(str(trial)) * whole:
                ax.text(
                    (began + ended) / 2, cell, trial, ha="center", va="center", color="white",
                    size=9, weight="bold",
                    path_effects=[withStroke(linewidth=2, foreground="#444444")],
                )  # fmt: skip
        ax.set(
            xlabel="seconds of the search", ylabel="cell", yticks=range(outcome.cells),
            title="What each cell trained: numbers are trials", xlim=(0, whole or 1.0),
        )  # fmt: skip
        ax.grid(visible=False, axis="y")
        ax.invert_yaxis()
        seen = [state for state in HATCHES if state in states.values()]
        if seen:
            ax.legend(
                handles=[
                    Patch(facecolor=style.GREY, edgecolor="white", hatch=HATCHES[one], label=one)
                    for one in seen
                ],
                loc="upper left", bbox_to_anchor=(1, 1),
            )  # fmt: skip
    return ax.figure


def history(study: Study) -> style.Figure:
    """Figures of merit by trial, a panel each, and the best so far."""
    numbers, _, values = _complete(study)
    with style.panel_each(study.merits, 1, 6.4, 2.6) as (figure, axes):
        for (name, ax), higher, column in zip(axes.items(), study.higher, values.T, strict=True):
            best = (np.maximum if higher else np.minimum).accumulate(column)
            ax.plot(numbers, column, "o", color=style.MEASURED, label="a trial")
            ax.step(numbers, best, where="post", color=style.ORANGE, label="the best so far")
            ax.set(xlabel="trial", ylabel=name)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.legend_beside(ax)
    return figure


@style.one_panel("", legend="beside")
def front(ax, study: Study):
    """Two figures of merit, a marker per complete trial, and the Pareto front."""
    best = np.array([trial.values for trial in study.front])
    ax.plot(*_complete(study)[2].T, "o", color=style.MEASURED, label="a trial")
    ax.plot(*best.T, "o-", color=style.ORANGE, label="the Pareto front")
    ax.set(xlabel=study.merits[0], ylabel=study.merits[1])


@style.one_panel("Which parameters matter", "share", legend=None, height=2.6)
def importances(ax, study: Study):
    """How much each parameter matters (`Study.importances`), a bar each."""
    found = study.importances()
    ax.barh(range(len(found)), list(found.values()), color=style.MEASURED)
    style.rows(ax, list(found) or ["fewer than two complete trials"])


def slices(study: Study) -> style.Figure:
    """Figures of merit by each parameter, a row of panels per figure."""
    _, sets, values = _complete(study)
    names, figures = study.space.names, len(study.merits)
    with style.panel_each(range(figures * len(names)), 3, *PANEL) as (figure, axes):
        for i, ax in axes.items():
            name, column = names[i % len(names)], values[:, i // len(names)]
            known = [name in one for one in sets]
            x = [one[name] for one in sets if name in one]
            one = study.space.distributions[name]
            if choices := choices_of(one):
                places = [choices.index(value) for value in x]
                ax.set_xticks(range(len(choices)), [short(choice) for choice in choices])
            else:
                places = x
                ax.xaxis.set_major_locator(MaxNLocator(4, integer=isinstance(one.low, int)))
            ax.plot(places, column[known], "o", color=style.MEASURED)
            if not choices and one.log:
                ticks = {float(f"{tick:.1g}") for tick in np.geomspace(one.low, one.high, 3)}
                style.log_x(ax, sorted(ticks), 10)
            ax.set(xlabel=name, ylabel=study.merits[i // len(names)])
    return figure


@style.one_panel("", "epoch", legend=None)
def epochs(ax, trials: Iterable[FrozenTrial], name: str):
    """Figures of merit by epoch, a line per trial that has reported one; complete ones in blue."""
    for trial in trials:
        if reported := sorted(trial.intermediate_values.items()):
            complete = trial.state == TrialState.COMPLETE
            ax.plot(*np.array(reported).T, ".-", color=style.MEASURED if complete else style.GREY)
    ax.set(ylabel=name)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _complete(study: Study) -> tuple[list[int], list[dict], np.ndarray]:
    """Numbers, sets of values and figures of merit, (n, figures), of the complete trials."""
    rows = [row for row in study.rows() if row["state"] == "complete"]
    values = np.array([row["value"] for row in rows], float).reshape(len(rows), len(study.merits))
    return [row["number"] for row in rows], [row["params"] for row in rows], values

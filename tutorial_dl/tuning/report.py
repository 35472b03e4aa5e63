"""`report.html` of a search: what was found, Optuna's plots, and what each cell did when."""

from __future__ import annotations

import html
import io
import warnings
from collections.abc import Iterable, Mapping

from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from .. import figure_style as style
from .coordinator import Outcome
from .drawing import parallel, table
from .study import Study

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #8888; text-align: right }
svg { width: 100%; height: auto; background: #fff; color: #111; border-radius: .5rem }
"""
HATCHES = {"failed": "////", "pruned": ".."}
PLOTS = {  # of Optuna, and from how many complete trials on
    "plot_optimization_history": ("Figure of merit by trial", 1),
    "plot_param_importances": ("Which parameters matter", 5),
    "plot_slice": ("Figure of merit by parameter", 2),
    "plot_intermediate_values": ("Figure of merit by epoch", 1),
}


def page(study: Study, outcome: Outcome, title: str) -> str:
    """The report, one self-contained page of HTML."""
    parts = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(summary(study, outcome))}</p>"]
    parts += [f"<p>{html.escape(line)}</p>" for line in outcome.lost]
    parts += ["<h2>What the ranks did</h2>", svg(timeline(outcome, study.rows()))]
    complete = sum(row["state"] == "complete" for row in study.rows())
    for name, (words, least) in PLOTS.items():
        if complete >= least and (drawn := of_optuna(name, study)) is not None:
            parts += [f"<h2>{words}</h2>", drawn]
    if complete > 1:
        drawn = parallel(study.rows(), study.space, study.maximise)
        parts += ["<h2>Sets of values</h2>", drawn]
    parts += ["<h2>Trials</h2>", trials_of(study)]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}'
    return f"{head}</title><style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"


def summary(study: Study, outcome: Outcome) -> str:
    """What came out, in a sentence."""
    rows, best = study.rows(), study.best
    ended = {state: sum(row["state"] == state for row in rows) for state in ("pruned", "failed")}
    rest = "".join(f", {number} {state}" for state, number in ended.items() if number)
    said = f"{len(rows)} trials{rest} in {outcome.seconds:.1f} s, cells in use for "
    said += f"{outcome.utilisation:.0%} of it"
    if best is None:
        return said + "; no trial was completed"
    values = ", ".join(f"{name} = {value!r}" for name, value in best.params.items())
    return f"{said}; best: {best.value:.6g} (trial {best.number}) with {values}"


def trials_of(study: Study) -> str:
    """All finished trials, the best first, as a table."""
    sign, names = -1 if study.maximise else 1, study.space.names
    complete = [row for row in study.rows() if row["state"] == "complete"]
    complete.sort(key=lambda row: sign * row["value"])
    lines = []
    for row in [*complete, *(row for row in study.rows() if row["state"] != "complete")]:
        folds = row.get("folds", ())
        lines.append(
            [
                row["number"],
                "" if row["value"] is None else row["value"],
                max(folds) - min(folds) if len(folds) > 1 else "",
                *(row["params"].get(name, "") for name in names),
                f"{row['seconds']:.1f}" if "seconds" in row else "",
                row["state"] + (f": {row['why']}" if "why" in row else ""),
            ]
        )
    return table(["trial", "value", "spread over folds", *names, "seconds", "state"], lines)


def timeline(outcome: Outcome, rows: Iterable[Mapping] = ()):
    """What each cell trained when: a bar per training, with its trial's number where it fits.

    `rows` are the trials (`Study.rows`): those that did not complete are hatched, and named in the
    legend.
    """
    states = {row["number"]: row["state"] for row in rows}
    with style.axes(height=1.2 + 0.35 * outcome.cells) as ax:
        first = min((began for *_, began, _ in outcome.spans), default=0.0)
        whole = max((ended for *_, ended in outcome.spans), default=1.0) - first
        for cell, trial, _, began, ended in outcome.spans:
            state = states.get(trial, "complete")
            ax.barh(
                cell, ended - began, left=began - first, color=style.colour(trial),
                edgecolor="white", hatch=HATCHES.get(state), linewidth=1,
            )  # fmt: skip
            if ended - began > 0.018 * len(str(trial)) * whole:
                middle = (began + ended) / 2 - first
                ax.text(
                    middle, cell, trial, ha="center", va="center", color="white", size=9,
                    weight="bold", path_effects=[withStroke(linewidth=2, foreground="#444444")],
                )  # fmt: skip
        ax.set(
            xlabel="seconds", ylabel="cell", yticks=range(outcome.cells),
            title="What each cell trained: numbers are trials",
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


def of_optuna(name: str, study: Study) -> str | None:
    """A figure of Optuna's as SVG; None if it has nothing to show (with one value, for example)."""
    import matplotlib
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as plots

    reported = any(trial.intermediate_values for trial in study.optuna.get_trials(deepcopy=False))
    if name == "plot_intermediate_values" and not reported:
        return None
    # Optuna sets a style of its own for everything that is drawn later, too
    with warnings.catch_warnings(), matplotlib.rc_context():
        warnings.simplefilter("ignore")
        backend = matplotlib.get_backend()
        pyplot.switch_backend("agg")
        try:
            axes = getattr(plots, name)(study.optuna)
            figure = axes.figure if hasattr(axes, "figure") else axes.flat[0].figure
            pyplot.close(figure)
            return svg(figure)
        except (ValueError, RuntimeError, ZeroDivisionError):
            return None
        finally:
            pyplot.switch_backend(backend)


def svg(figure) -> str:
    """A figure as SVG, to be part of a page."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", bbox_inches="tight")
    text = stream.getvalue()
    return text[text.index("<svg") :]

"""`report.html` of a search: what was found, and what each cell did when."""

from __future__ import annotations

import html
import io

from . import figures
from .coordinator import Outcome
from .drawing import parallel, said, short, table
from .study import Study

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #8888; text-align: right }
svg { max-width: none; background: #fff; color: #111; border-radius: .5rem }
"""
IMPORTANCES = 5  # complete trials, from which on they are shown


def page(study: Study, outcome: Outcome, title: str) -> str:
    """The report, one self-contained page of HTML."""
    rows, trials = study.rows(), study.optuna.get_trials(deepcopy=False)
    complete, name = sum(row["state"] == "complete" for row in rows), study.merits[0]
    several = len(study.merits) > 1
    parts = [f"<h1>{html.escape(title)}</h1>", f"<p>{html.escape(summary(study, outcome))}</p>"]
    parts += [f"<p>{html.escape(line)}</p>" for line in outcome.lost]
    parts += ["<h2>What the ranks did</h2>", svg(figures.timeline(outcome, rows))]
    parts += ["<p>Before its first training, a cell loads code and data, and is not in use.</p>"]
    if complete:
        parts += ["<h2>Figure of merit by trial</h2>", svg(figures.history(study))]
    if complete and len(study.merits) == 2:
        parts += ["<h2>The Pareto front</h2>", svg(figures.front(study))]
    if complete >= IMPORTANCES:
        to = "to be near the front" if several else "to be among the best"
        drawn = figures.importances(study, title="")
        parts += [f"<h2>Which parameters matter {to}</h2>", svg(drawn)]
    if complete > 1:
        parts += ["<h2>Figure of merit by parameter</h2>", svg(figures.slices(study))]
    if any(trial.intermediate_values for trial in trials):
        parts += ["<h2>Figure of merit by epoch</h2>", svg(figures.epochs(trials, name))]
    if complete > 1:
        parts += ["<h2>Sets of values</h2>", parallel(study)]
    parts += ["<h2>Trials</h2>", trials_of(study)]
    head = '<!doctype html><html lang="en"><meta charset="utf-8">'
    head += '<meta name="viewport" content="width=device-width">'
    head += f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
    return f"{head}<body>{''.join(parts)}</body></html>\n"


def summary(study: Study, outcome: Outcome) -> str:
    """What came out, in a sentence."""
    rows, best = study.rows(), study.best
    ended = {state: sum(row["state"] == state for row in rows) for state in ("pruned", "failed")}
    rest = "".join(f", {number} {state}" for state, number in ended.items() if number)
    words = f"{len(rows)} trials{rest} in {outcome.seconds:.1f} s, cells in use for "
    words += f"{outcome.utilisation:.0%} of it"
    if not (front := study.front):
        return words + "; no trial was completed"
    if best is None:
        return f"{words}; {len(front)} on the Pareto front of {' and '.join(study.merits)}"
    return f"{words}; best: {short(best.value, 6)} (trial {best.number}) with {said(best.params)}"


def trials_of(study: Study) -> str:
    """All finished trials, the best or those of the Pareto front first, as a table."""
    front, names = [trial.number for trial in study.front], study.space.names
    complete = [row for row in study.rows() if row["state"] == "complete"]
    several = len(study.merits) > 1
    if several:
        complete.sort(key=lambda row: (row["number"] not in front, row["number"]))
    else:
        complete.sort(key=lambda row: row["value"], reverse=study.higher[0])
    lines = []
    for row in [*complete, *(row for row in study.rows() if row["state"] != "complete")]:
        folds = row.get("folds", ())
        on_front = several and row["number"] in front
        why = row.get("why", "on the front" if on_front else "")
        lines.append(
            [
                row["number"],
                "" if row["value"] is None else row["value"],
                max(folds) - min(folds) if len(folds) > 1 and not several else "",
                *(row["params"].get(name, "") for name in names),
                f"{row['seconds']:.1f}" if "seconds" in row else "",
                row["state"] + f": {why}" * bool(why),
            ]
        )
    head = ["trial", ", ".join(study.merits), "spread over folds", *names, "seconds", "state"]
    return table(head, lines)


def svg(figure) -> str:
    """A figure as SVG, to be part of a page; it is as wide as it is, or can be scrolled."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", bbox_inches="tight")
    text = stream.getvalue()
    return f'<div style="overflow-x: auto">{text[text.index("<svg") :]}</div>'

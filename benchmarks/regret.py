"""`python -m benchmarks.regret`: how near samplers come to the minimum, and how fast.

    python -m benchmarks.regret --dimensions 5 --trials 50 --json r.json --figure r.png

Each sampler searches on every problem of benchmarks/problems.py, once per seed; seed s has
instance 1 + (s - 1) mod 5 of BBOB. Regret is the best value so far minus the minimum. Samplers are
compared by the rank of their median regret, problem by problem, because values of different
functions can't be averaged. With scikit-optimize on Python's path, its Gaussian process takes part
("skopt"); with torch, Optuna's ("GPSampler"):

    pip install --target others scikit-optimize pyaml torch
    PYTHONPATH=others python -m benchmarks.regret --samplers random,bayesian --seeds 20

Theirs take up to a second per suggestion, so a large comparison is made in parts, each with its own
--json FILE; then `--rows FILE FILE ...` compares all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from optuna.distributions import IntDistribution

from benchmarks import problems
from tutorial_dl.tuning import samplers
from tutorial_dl.tuning.problems import Problem, search
from tutorial_dl.tuning.space import choices_of
from tutorial_dl.words import counted

OURS = ("random", "tpe", "bayesian", "evolutionary", "cmaes")
OTHERS = {"skopt": "skopt", "GPSampler": "torch"}  # and the module that it needs


def search_by(problem: Problem, name: str, trials: int, seed: int) -> tuple[list, float]:
    """As `search`, also by the samplers of `OTHERS`."""
    if name == "skopt":
        return search_by_skopt(problem, trials, seed)
    if name == "GPSampler":
        import optuna

        return search(problem, optuna.samplers.GPSampler(seed=seed), trials, seed)
    return search(problem, name, trials, seed)


def search_by_skopt(problem: Problem, trials: int, seed: int) -> tuple[list, float]:
    import skopt

    dimensions = []
    for _, one in problem.space:
        if choices := choices_of(one):
            dimensions.append(skopt.space.Categorical(choices))
            continue
        kind = skopt.space.Integer if isinstance(one, IntDistribution) else skopt.space.Real
        dimensions.append(kind(one.low, one.high, "log-uniform" if one.log else "uniform"))
    optimizer = skopt.Optimizer(dimensions, "GP", random_state=seed)
    best, spent = [], 0.0
    for _ in range(trials):
        began = time.perf_counter()
        x = optimizer.ask()
        spent += time.perf_counter() - began
        value = problem.value(dict(zip(problem.space.names, x, strict=True)))
        began = time.perf_counter()
        optimizer.tell(x, value)  # it chooses its next set here
        spent += time.perf_counter() - began
        best.append(min([value, *best[-1:]]))
    return best, spent / trials


def measure(
    names: list[str],
    dimensions: list[int],
    seeds: int,
    trials: int,
    functions: Iterable[int] = problems.BBOB,
    kinds: Iterable[str] = problems.KINDS,
    tell=lambda text, rows: None,
) -> list[dict]:
    """A row per problem, seed and sampler: `regret` after each trial, s per suggestion."""
    rows = []
    for seed, problem in problems.suite(dimensions, seeds, functions, kinds):
        for name in names:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                best, seconds = search_by(problem, name, trials, seed)
            regret = (np.array(best) - problem.lowest).tolist()
            rows.append(
                {"problem": problem.name, "seed": seed, "sampler": name,
                 "seconds": seconds, "regret": regret}
            )  # fmt: skip
        tell(f"{problem.name}, seed {seed}", rows)
    return rows


def medians(rows: list[dict], trials: int) -> dict[str, dict[str, float]]:
    """{problem: {sampler: the median over seeds of the regret after `trials` trials}}."""
    found: dict[str, dict[str, list]] = {}
    for row in rows:
        of = found.setdefault(row["problem"], {}).setdefault(row["sampler"], [])
        of.append(row["regret"][trials - 1])
    return {
        problem: {name: float(np.median(values)) for name, values in of.items()}
        for problem, of in found.items()
    }


def compare(rows: list[dict], trials: int) -> list[dict]:
    """A row per set of problems and sampler: median and mean rank, problems better than random."""
    from scipy.stats import rankdata

    table, found = medians(rows, trials), []
    for kind in dict.fromkeys(_kind(problem) for problem in table):
        of = {problem: values for problem, values in table.items() if _kind(problem) == kind}
        names = list(next(iter(of.values())))
        ranks = np.array([rankdata([values[n] for n in names]) for values in of.values()])
        for i, name in enumerate(names):
            found.append(
                {
                    "problems": kind, "number": len(of), "trials": trials, "sampler": name,
                    "median rank": float(np.median(ranks[:, i])),
                    "mean rank": float(ranks[:, i].mean()),
                    "median regret": next(iter(of.values()))[name] if len(of) == 1 else None,
                    "better than random": sum(v[name] < v["random"] for v in of.values()),
                    "ms per suggestion": 1e3 * float(
                        np.median([r["seconds"] for r in rows
                                   if r["sampler"] == name and _kind(r["problem"]) == kind])
                    ),
                }
            )  # fmt: skip
    return found


def _kind(problem: str) -> str:
    return f"BBOB in {problem.split()[-1]} dimensions" if problem.startswith("f") else problem


def text(table: list[dict]) -> str:
    lines = []
    for kind in dict.fromkeys(row["problems"] for row in table):
        of = [row for row in table if row["problems"] == kind]
        lines.append(f"{kind}, {counted(of[0]['number'], 'problem')}, {of[0]['trials']} trials")
        lines.append(
            "  sampler       median rank  mean rank  better than random  ms per suggestion"
            + ("  median regret" if of[0]["number"] == 1 else "")
        )
        for row in of:
            regret = row["median regret"]
            lines.append(
                f"  {row['sampler']:<13}{row['median rank']:>11.1f}{row['mean rank']:>11.2f}"
                f"{row['better than random']:>20}{row['ms per suggestion']:>19.1f}"
                + (f"{regret:>15.4g}" if regret is not None else "")
            )
    return "\n".join(lines)


def figure(rows: list[dict]):
    """Regret by trials, relative to that of the first trial; a panel per set of problems."""
    from tutorial_dl import figure_style as style

    kinds = list(dict.fromkeys(_kind(row["problem"]) for row in rows))
    with style.panels(1, len(kinds)) as (drawing, panels):
        for panel, kind in zip(panels[0], kinds, strict=True):
            of = [row for row in rows if _kind(row["problem"]) == kind]
            starts = {
                problem: np.median([r["regret"][0] for r in of if r["problem"] == problem])
                for problem in {row["problem"] for row in of}
            }
            for i, name in enumerate(dict.fromkeys(row["sampler"] for row in of)):
                curves = [
                    np.maximum(row["regret"], 1e-12) / max(starts[row["problem"]], 1e-12)
                    for row in of
                    if row["sampler"] == name
                ]
                middle = np.median(np.array(curves), axis=0)
                panel.semilogy(np.arange(1, len(middle) + 1), middle, label=name, **style.line(i))
            panel.set(title=kind, xlabel="trials", ylabel="regret / that of the first trial")
        panels[0][0].legend()
    return drawing


def installed(module: str) -> bool:
    """Whether a module can be imported; a folder of that name is none."""
    found = find_spec(module)
    return found is not None and found.origin is not None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regret")
    parser.add_argument("--samplers", default=",".join(OURS), help="names, separated by commas")
    parser.add_argument("--dimensions", default="5", help="of BBOB, separated by commas")
    parser.add_argument("--seeds", type=int, default=5, help="searches on each problem")
    parser.add_argument("--problems", default=",".join(problems.KINDS), help="kinds of problems")
    parser.add_argument("--functions", help="of BBOB, separated by commas; default: all 24")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--json", metavar="FILE", help="write all rows")
    parser.add_argument("--figure", metavar="FILE", help="draw regret by trials")
    parser.add_argument(
        "--rows", nargs="+", metavar="FILE", help="compare rows of earlier runs; search nothing"
    )
    asked = parser.parse_args()
    if asked.rows:
        try:
            rows = [row for file in asked.rows for row in json.loads(Path(file).read_text())]
        except (OSError, ValueError) as error:
            sys.exit(f"error: --rows: {error}")
        show(rows, min(len(row["regret"]) for row in rows), asked.figure)
        return
    names = asked.samplers.split(",")
    names += [n for n, module in OTHERS.items() if n not in names and installed(module)]
    try:
        for name in names:
            if name not in OTHERS:
                samplers.check(name)
        if "random" not in names:
            raise ValueError("--samplers must have 'random', with which the others are compared")
        dimensions = [int(one) for one in asked.dimensions.split(",")]
        if min(asked.seeds, asked.trials) < 1:
            raise ValueError("--seeds and --trials must be at least 1")
        kinds = asked.problems.split(",")
        if not set(kinds) <= set(problems.KINDS):
            raise ValueError(f"--problems must be of {', '.join(problems.KINDS)}")
        functions = list(problems.BBOB)
        if asked.functions:
            functions = [int(one) for one in asked.functions.split(",")]
        if not set(functions) <= set(problems.BBOB):
            raise ValueError("--functions must be numbers from 1 to 24")
    except ValueError as error:
        sys.exit(f"error: {error}")

    def keep(words: str, rows: list[dict]) -> None:
        print(words, file=sys.stderr, flush=True)
        if asked.json:
            Path(asked.json).write_text(json.dumps(rows) + "\n")

    rows = measure(names, dimensions, asked.seeds, asked.trials, functions, kinds, keep)
    show(rows, asked.trials, asked.figure)


def show(rows: list[dict], trials: int, file: str | None) -> None:
    """Print the tables after half of the trials and after all of them, and draw the figure."""
    for number in dict.fromkeys((max(1, trials // 2), trials)):
        print(text(compare(rows, number)))
    if file:
        figure(rows).savefig(file, bbox_inches="tight")


if __name__ == "__main__":
    main()

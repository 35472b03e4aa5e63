"""A simulated clock for the coordinator: how well many groups are used, and what they gain.

    python -m tutorial_dl.tuning.simulation --groups 1,2,4,8,32,128 --trials 200 --sampler bayesian

The coordinator is the real one; only its port is simulated. A training takes as long as `seconds`
says, and then has its figure of merit; nothing is trained. `advantage` shows the best value by wall
time for several numbers of groups: with more groups a suggestion knows fewer results, which costs
regret, and results come faster.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import problems, samplers
from .coordinator import Coordinator, Outcome, Port
from .running import FURTHER
from .study import Study
from .suggester import Suggester


class SimulatedPort(Port):
    """Cells that only wait, on a clock that jumps to the next event.

    Args:
        cells: How many.
        value: The figure of merit of (values, fold).
        seconds: How long a training takes, of (values, fold, trial).
        suggesters: Ranks that choose sets of values, for as long as that takes in reality, or for
            `choosing` seconds.
        sizes: Ranks of each cell, which divide its seconds; None: one each.
    """

    def __init__(
        self,
        cells: int,
        value: Callable[[Mapping, int], float],
        seconds: Callable[[Mapping, int, int], float],
        suggesters: list[Suggester] | None = None,
        choosing: float | None = None,
        sizes: list[int] | None = None,
    ):
        self.sizes = sizes or [1] * cells
        self.time, self.value, self.seconds = 0.0, value, seconds
        self.cells, self.suggesters, self.choosing = cells, suggesters or [], choosing
        self.count = cells + len(self.suggesters)  # events at one time keep their order
        # Suggesters come first, so that the coordinator never chooses in their place
        order = [*range(cells, self.count), *range(cells)]
        self.events: list[tuple] = [(0.0, i, n, {"what": "ready"}) for i, n in enumerate(order)]
        heapq.heapify(self.events)

    def now(self) -> float:
        return self.time

    def send(self, cell: int, message: dict) -> None:
        if message["what"] == "choose":
            began = time.perf_counter()
            answer = self.suggesters[cell - self.cells].answer(message)
            took = time.perf_counter() - began if self.choosing is None else self.choosing
            self.count += 1
            heapq.heappush(self.events, (self.time + took, self.count, cell, answer))
        if message["what"] != "train":
            return
        values, fold, trial = message["values"], message["fold"], message["trial"]
        ended = {"what": "ended", "trial": trial, "fold": fold, "state": "complete"}
        ended["value"] = self.value(values, fold)
        ended["seconds"] = self.seconds(values, fold, trial) / self.sizes[cell]
        self.count += 1
        at = self.time + ended["seconds"]
        heapq.heappush(self.events, (at, self.count, cell, ended))

    def receive(self, seconds: float) -> tuple[int, dict] | None:
        """The next event; its time is waited for only if `seconds` is above 0."""
        if not self.events or (seconds == 0 and self.events[0][0] > self.time):
            return None
        at, _, cell, message = heapq.heappop(self.events)
        self.time = max(self.time, at)
        return cell, message

    def lost(self) -> list[int]:
        return []

    def drop(self, cell: int) -> None: ...

    def spend(self, seconds: float) -> None:
        """Let time pass, in which the coordinator computed."""
        self.time += seconds


@dataclass
class Simulated:
    """A simulated search: `curve` has (seconds, best value) after each trial."""

    outcome: Outcome
    curve: list[tuple[float, float]]
    busy: float  # seconds of training in all
    asking: float  # real seconds per suggestion


def search(
    problem: problems.Problem,
    groups: int,
    trials: int,
    sampler: str = "bayesian",
    seconds: Callable[[Mapping, int, int], float] = lambda values, fold, trial: 1.0,
    seed: int = 0,
    count_asking: bool = False,
    suggesters: int = 0,
    choosing: float | None = None,
) -> Simulated:
    """Search a problem on `groups` groups; `count_asking`: suggestions take their real time, or
    those of `suggesters` ranks `choosing` seconds."""
    study = Study(problem.space, sampler, trials, seed=seed)

    def suggester(number: int) -> Suggester:
        """Its seed is as in `Search.study_of`."""
        return Suggester(
            lambda after: Study(
                problem.space, sampler, trials, seed=seed + FURTHER * number + 1000 * after
            )
        )

    port = SimulatedPort(
        groups, lambda values, fold: problem.value(values), seconds,
        [suggester(1 + i) for i in range(suggesters)], choosing,
    )  # fmt: skip
    if count_asking:
        ask = study.ask

        def timed():
            began = time.perf_counter()
            found = ask()
            port.spend(time.perf_counter() - began)
            return found

        study.ask = timed
    curve: list[tuple[float, float]] = []

    def note(text: str, row: dict | None) -> None:
        if row is not None:
            curve.append((port.now(), study.best.value if study.best else np.inf))

    coordinator = Coordinator(study, port, groups, tell=note, suggesters=suggesters)
    outcome = coordinator.run()
    busy = sum(end - start for *_, start, end in outcome.spans)
    return Simulated(outcome, curve, busy, coordinator.asking / trials)


def tenfold(seed: int = 0) -> Callable[[Mapping, int, int], float]:
    """Times of training that differ tenfold: 1 to 10 s, each factor alike (by trial's number)."""

    def seconds(values: Mapping, fold: int, trial: int) -> float:
        return float(10 ** np.random.default_rng([seed, trial, fold]).random())

    return seconds


def advantage(
    groups: list[int], trials: int, sampler: str, seeds: int, problem: problems.Problem,
    suggesters: int = 0,
) -> list[dict]:  # fmt: skip
    """A row per number of groups: time, speed-up, utilisation, regret, and seconds until the regret
    that one group ends with. Medians over seeds; `trials` trials each, of 1 to 10 s."""
    rows, ends = [], []
    for number in groups:
        runs = [
            search(problem, number, trials, sampler, tenfold(seed), seed, suggesters=suggesters)
            for seed in range(seeds)
        ]
        final = [run.curve[-1][1] for run in runs]
        ends = ends or final
        reached = [
            next((at for at, best in run.curve if best <= end), np.nan)
            for run, end in zip(runs, ends, strict=True)
        ]
        middle = [float(np.median(c)) for c in np.array([[b for _, b in r.curve] for r in runs]).T]
        times = [float(np.median(c)) for c in np.array([[t for t, _ in r.curve] for r in runs]).T]
        rows.append(
            {
                "groups": number,
                "seconds": float(np.median([run.outcome.seconds for run in runs])),
                "speed_up": float(np.median([run.busy / run.outcome.seconds for run in runs])),
                "utilisation": float(np.median([run.outcome.utilisation for run in runs])),
                "regret": float(np.median(final)) - problem.lowest,
                "seconds_to_same": float(np.median(reached)),  # NaN: most never came there
                "curve": [[t, b - problem.lowest] for t, b in zip(times, middle, strict=True)],
            }
        )
    return rows


def text(rows: list[dict]) -> str:
    lines = [
        "groups  seconds  speed-up  utilisation  regret at the end  seconds to the regret of 1"
    ]
    for row in rows:
        same = row["seconds_to_same"]
        lines.append(
            f"{row['groups']:>6}{row['seconds']:>9.0f}{row['speed_up']:>10.1f}"
            f"{row['utilisation']:>13.3f}{row['regret']:>19.4g}"
            + (f"{same:>28.0f}" if np.isfinite(same) else f"{'not reached':>28}")
        )
    return "\n".join(lines)


def figure(rows: list[dict], problem: str):
    """Regret by wall time, a line per number of groups."""
    from .. import figure_style as style

    with style.axes() as ax:
        for i, row in enumerate(rows):
            times, regrets = np.array(row["curve"]).T
            label = f"{row['groups']} group" + "s" * (row["groups"] > 1)
            ax.loglog(times, np.maximum(regrets, 1e-12), label=label, **style.line(i))
        ax.set(title=problem, xlabel="wall time (simulated s)", ylabel="regret")
        ax.legend()
    return ax.figure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tutorial_dl.tuning.simulation")
    parser.add_argument("--groups", default="1,2,4,8,32,128", help="numbers of groups")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--sampler", default="bayesian")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--suggesters", type=int, default=0, help="ranks that choose sets")
    parser.add_argument("--json", metavar="FILE", help="write the rows")
    parser.add_argument("--figure", metavar="FILE", help="draw regret by wall time")
    asked = parser.parse_args()
    try:
        samplers.check(asked.sampler)
        groups = [int(one) for one in asked.groups.split(",")]
        samplers.check_suggesters(asked.sampler, asked.suggesters)
        if min(*groups, asked.trials, asked.seeds, 1) < 1:
            raise ValueError("--groups, --trials and --seeds must be at least 1")
    except ValueError as error:
        sys.exit(f"error: {error}")
    problem = problems.hartmann()
    rows = advantage(groups, asked.trials, asked.sampler, asked.seeds, problem, asked.suggesters)
    print(f"{problem.name}, {asked.trials} trials of 1 to 10 s, {asked.sampler}")
    print(text(rows))
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows) + "\n")
    if asked.figure:
        figure(rows, problem.name).savefig(asked.figure, bbox_inches="tight")


if __name__ == "__main__":
    main()

"""A search on a simulated clock: how well many groups are used, and what they gain.

    python -m tutorial_dl.tuning.simulation --groups 1,8,128 --trials 200 --sampler bayesian

Coordinator and leaders are the real ones; only their port is simulated. A training takes as long as
`seconds` says, and then has its figure of merit; nothing is trained. A choice takes the processor
time that it takes here, and so does what the coordinator computes between two messages.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..simulate.clock import SimulatedClock
from . import problems, samplers
from .coordinator import Coordinator, Outcome, Port
from .leader import Leader
from .study import Study


class SimulatedPort(SimulatedClock, Port):
    """Cells that only wait, on a simulated clock.

    Args:
        cells: How many.
        value: The figure of merit of (values, fold).
        seconds: How long a training takes, of (values, fold, trial).
        leaders: What chooses for each cell.
        measured: Whether choices, and what the coordinator computes, take time.
    """

    def __init__(
        self,
        cells: int,
        value: Callable[[Mapping, int], float],
        seconds: Callable[[Mapping, int, int], float],
        leaders: list[Leader],
        measured: bool = False,
    ):
        super().__init__()
        self.value, self.seconds = value, seconds
        self.leaders, self.measured = leaders, measured
        self.choices: list[float] = []  # seconds that each took
        self.kept = 0.0  # seconds that the coordinator computed
        for cell in range(cells):
            self.after(0.0, (cell, {"what": "ready"}))
        self.since = time.process_time()

    def spend(self) -> None:
        """Let the time pass that the coordinator has computed for."""
        now = time.process_time()
        self.kept += now - self.since
        self.time += self.measured * (now - self.since)
        self.since = now

    def send(self, cell: int, message: dict) -> None:
        self.spend()
        if message["what"] == "choose":
            answer = self.leaders[cell].answer(message)
            now = time.process_time()
            self.choices.append(now - self.since)
            self.since = now
            self.after(self.measured * self.choices[-1], (cell, answer))
        elif message["what"] == "train":
            values, fold, trial = message["values"], message["fold"], message["trial"]
            ended = {"what": "ended", "trial": trial, "fold": fold, "state": "complete"}
            ended["value"] = self.value(values, fold)
            ended["seconds"] = self.seconds(values, fold, trial)
            self.since = time.process_time()
            self.after(ended["seconds"], (cell, ended))

    def receive(self, seconds: float) -> tuple[int, dict] | None:
        """The next event; its time is waited for only if `seconds` is above 0."""
        self.spend()
        if seconds == 0 and not self.due():
            return None
        return self.next()

    def lost(self) -> list[int]:
        return []

    def drop(self, cell: int) -> None: ...


@dataclass
class Simulated:
    """A simulated search.

    curve: (seconds, best value) after each trial.
    busy: The share of time that groups trained, up to the moment when the last trial began.
    choices: Processor seconds that each choice took.
    kept: Processor seconds of the coordinator in all.
    """

    outcome: Outcome
    curve: list[tuple[float, float]]
    busy: float
    choices: list[float]
    kept: float


def search(
    problem: problems.Problem,
    groups: int,
    trials: int,
    sampler: str = "bayesian",
    seconds: Callable[[Mapping, int, int], float] = lambda values, fold, trial: 1.0,
    seed: int = 0,
    measured: bool = False,
) -> Simulated:
    """Search a problem on `groups` groups; `measured` as for `SimulatedPort`."""
    study = Study(problem.space, sampler, trials, seed=seed)
    leaders = [Leader(problem.space, sampler, seed, number) for number in range(groups)]
    port = SimulatedPort(
        groups, lambda values, fold: problem.value(values), seconds, leaders, measured
    )
    curve: list[tuple[float, float]] = []

    def note(text: str, row: dict | None) -> None:
        if row is not None:
            curve.append((port.now(), study.best.value if study.best else np.inf))

    outcome = Coordinator(study, port, groups, announce=note).run()
    last = max(began for *_, began, _ in outcome.spans)
    trained = sum(min(ended, last) - began for *_, began, ended in outcome.spans)
    busy = trained / (groups * last) if last else 1.0
    return Simulated(outcome, curve, busy, port.choices, port.kept)


def tenfold(seed: int = 0) -> Callable[[Mapping, int, int], float]:
    """Times of training that differ tenfold: 1 to 10 s, each factor alike (by trial's number)."""

    def seconds(values: Mapping, fold: int, trial: int) -> float:
        return float(10 ** np.random.default_rng([seed, trial, fold]).random())

    return seconds


REGRETS = 1.5, 0.1  # how soon a search comes down to these
HEAD = "groups  seconds  speed-up  in use  (until the last began)    regret"


def advantage(
    groups: list[int], trials: int, sampler: str, seeds: int, problem: problems.Problem,
    tell: Callable[[str], None] = lambda line: None,
) -> list[dict]:  # fmt: skip
    """A row per number of groups: time, speed-up, utilisation, regret, and seconds until the regret
    was as low as each of `REGRETS`. Medians over seeds; `trials` trials each, of 1 to 10 s. `tell`
    gets lines of a table, each as soon as its searches have ended."""
    rows = []
    tell(HEAD + "".join(f"{f'to regret {one:g}':>16}" for one in REGRETS))
    for number in groups:
        runs = [
            search(problem, number, trials, sampler, tenfold(seed), seed) for seed in range(seeds)
        ]
        final = [run.curve[-1][1] for run in runs]
        reached = [
            [
                next((at for at, best in r.curve if best <= problem.lowest + one), np.inf)
                for r in runs
            ]
            for one in REGRETS
        ]
        times, bests = np.median([run.curve for run in runs], axis=0).T
        rows.append(
            {
                "groups": number,
                "seconds": float(np.median([run.outcome.seconds for run in runs])),
                "speed_up": float(np.median([number * r.outcome.utilisation for r in runs])),
                "utilisation": float(np.median([run.outcome.utilisation for run in runs])),
                "busy": float(np.median([run.busy for run in runs])),
                "regret": float(np.median(final)) - problem.lowest,
                "reached": np.median(reached, 1).tolist(),  # infinite: most never came there
                "curve": [[t, b - problem.lowest] for t, b in zip(times, bests, strict=True)],
            }
        )
        tell(text(rows[-1]))
    return rows


def text(row: dict) -> str:
    """A line below `HEAD`."""
    cells = (
        f"{row['groups']:>6}{row['seconds']:>9.0f}{row['speed_up']:>10.1f}"
        f"{row['utilisation']:>8.0%}{row['busy']:>24.0%}{row['regret']:>10.2g}"
    )
    reached = [f"{at:.0f}" if np.isfinite(at) else "not reached" for at in row["reached"]]
    return cells + "".join(f"{at:>16}" for at in reached)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tutorial_dl.tuning.simulation")
    parser.add_argument("--groups", default="1,2,4,8,32,128", help="numbers of groups")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--sampler", default="bayesian")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    try:
        samplers.check(asked.sampler)
        groups = [int(one) for one in asked.groups.split(",")]
        if min(*groups, asked.trials, asked.seeds, 1) < 1:
            raise ValueError("--groups, --trials and --seeds must be at least 1")
    except ValueError as error:
        sys.exit(f"error: {error}")
    problem = problems.hartmann()
    print(f"{problem.name}, {asked.trials} trials of 1 to 10 s, {asked.sampler}")
    advantage(groups, asked.trials, asked.sampler, asked.seeds, problem, print)


if __name__ == "__main__":
    main()

"""`Proposing`: a sampler of ours under Optuna's interface; it sees trials as rows of numbers.

What has happened to a trial is an *event*, a row of float64 that leaders of groups exchange:

    number, state, figures of merit, their epoch, set of values in the unit cube (columns)

Lower figures are better in it, and NaN is none. The last event of a trial replaces the others.
Of several figures, samplers of ours see one number (`in_one`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from .space import Space

GONE, BEGUN, COMPLETE, PRUNED, FAILED = range(-1, 4)  # states of an event
STATES = {
    TrialState.RUNNING: BEGUN, TrialState.COMPLETE: COMPLETE, TrialState.PRUNED: PRUNED,
    TrialState.FAIL: FAILED,
}  # fmt: skip
HEAD = 3  # entries of an event beside the figures and the set of values
INTERRUPTED = "interrupted"  # the mark of a trial that was in training when its search ended
SUM = 0.05  # how much the sum counts beside the largest figure


def event_of(trial: FrozenTrial, space: Space, signs: Sequence[float]) -> np.ndarray:
    """A trial of Optuna's as an event, (HEAD + figures + columns,).

    `signs` has, for each figure of merit, -1 if higher is better, else 1.
    """
    state = GONE if trial.user_attrs.get(INTERRUPTED) else STATES[trial.state]
    known = trial.values is not None and state != FAILED
    values = np.multiply(signs, trial.values if known else np.nan)
    epoch = max(trial.intermediate_values, default=-1)
    return np.array([trial.number, state, *values, epoch, *space.encode(trial.params)])


@dataclass
class Seen:
    """The trials of a study.

    rows: finished sets in the unit cube, (n, columns).
    values: their figures of merit in one number, lower is better, those without one as bad as the
        worst, (n,).
    failed: which had none, (n,).
    pending: the sets that are in training, (m, columns).
    numbers: the finished trials' numbers, (n,).
    tried: sets that were begun before this search, (k, columns); None: all.
    place: which set of this search is chosen, from 0 on; no two leaders have the same one.
    others: leaders that choose at this moment, from the same trials.
    """

    rows: np.ndarray
    values: np.ndarray
    failed: np.ndarray
    pending: np.ndarray
    numbers: list[int] = field(default_factory=list)
    tried: np.ndarray | None = None
    place: int = 0
    others: int = 0

    def __post_init__(self):
        if self.tried is None:
            self.tried = np.concatenate([self.rows, self.pending])


class Results:
    """The last event of each trial, by number, for sets of `columns` columns."""

    def __init__(self, columns: int, figures: int = 1):
        self.table, self.head = np.empty((0, HEAD + figures + columns)), HEAD + figures
        self.known = 0  # events that were learnt

    def learn(self, events: np.ndarray) -> None:
        """Note these events, (n, HEAD + figures + columns), in their order."""
        self.known += len(events)
        numbers = events[:, 0].astype(int)
        if (more := numbers.max(initial=-1) + 1 - len(self.table)) > 0:
            new = np.full((max(more, len(self.table)), self.table.shape[1]), float(GONE))
            self.table = np.concatenate([self.table, new])
        self.table[numbers] = events

    def seen(
        self, random: np.random.Generator, before: int | None = None, place: int = 0,
        others: int = 0,
    ) -> Seen:  # fmt: skip
        """The trials; those with a number below `before` were begun before this search."""
        table = self.table
        begun = table[table[:, 1] >= BEGUN]
        ended, pending = begun[begun[:, 1] > BEGUN], begun[begun[:, 1] == BEGUN]
        values = in_one(ended[:, 2 : self.head - 1], random)
        failed = ~np.isfinite(values)
        worst = values[~failed].max() if not failed.all() else 0.0
        tried = begun if before is None else begun[begun[:, 0] < before]
        return Seen(
            ended[:, self.head :], np.where(failed, worst, values), failed,
            pending[:, self.head :], ended[:, 0].astype(int).tolist(), tried[:, self.head :],
            place, others,
        )  # fmt: skip


def in_one(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Figures of merit (n, figures), lower is better, as one number for each trial, (n,).

    Of several, each is scaled to 0 .. 1 and has a weight; the largest product counts, and a little
    of their sum. As each choice draws other weights, the sets spread over the Pareto front (ParEGO:
    Knowles 2006, doi 10.1109/TEVC.2005.851274). NaN: a trial has none.
    """
    if values.shape[1] == 1:
        return values[:, 0]
    known = values[np.isfinite(values).all(1)]
    low, high = known.min(0, initial=np.inf), known.max(0, initial=-np.inf)
    parts = random.dirichlet(np.ones(values.shape[1])) * (values - low)
    parts = parts / np.where(high > low, high - low, 1.0)
    return parts.max(1) + SUM * parts.sum(1)


class Proposing(BaseSampler):
    """Base class; `propose` returns the next set of values.

    `common` is the seed of what the samplers of all leaders have in common; None: `seed`.
    """

    def __init__(self, space: Space, seed: int | None = None, common: int | None = None):
        self.space, self.random = space, np.random.default_rng(seed)
        self.common = np.random.default_rng(seed if common is None else common)
        self.other = RandomSampler(seed)
        self.results, self.ended = None, set()  # `Results`, in a study of Optuna's
        self.smooth = np.zeros(space.columns, bool)  # columns of real numbers
        for name, one in space:
            self.smooth[space.slices[name]] = isinstance(one, FloatDistribution)

    def propose(self, seen: Seen) -> dict[str, Any]:
        raise NotImplementedError

    # Optuna's interface

    def infer_relative_search_space(self, study, trial) -> dict:
        return self.space.distributions

    def sample_relative(self, study, trial, search_space) -> dict[str, Any]:
        signs = [-1.0 if one == StudyDirection.MAXIMIZE else 1.0 for one in study.directions]
        self.results = self.results or Results(self.space.columns, len(signs))
        for one in study.get_trials(deepcopy=False):
            if one.params and one.number != trial.number and one.number not in self.ended:
                self.results.learn(event_of(one, self.space, signs)[None])
                if one.state.is_finished():
                    self.ended.add(one.number)
        return self.propose(self.results.seen(self.random))

    def sample_independent(self, study, trial, param_name, param_distribution):
        return self.other.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        self.random = np.random.default_rng()

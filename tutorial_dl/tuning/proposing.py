"""`Proposing`: a sampler of ours under Optuna's interface; it sees trials as rows of numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import TrialState

from .space import INACTIVE, Space

PENDING = (TrialState.RUNNING,)


@dataclass
class Seen:
    """The trials of a study.

    rows: finished sets in the unit cube, (n, columns).
    values: their figures of merit, lower is better, those without one as bad as the worst, (n,).
    failed: which had none, (n,).
    pending: the sets that are in training, (m, columns).
    numbers: the finished trials' numbers, (n,).
    """

    rows: np.ndarray
    values: np.ndarray
    failed: np.ndarray
    pending: np.ndarray
    numbers: list[int] = field(default_factory=list)


class Proposing(BaseSampler):
    """Base class; `propose` returns the next set of values.

    Attributes:
        others: Samplers that propose at this moment, from the same trials (suggester.py).
    """

    others = 0

    def __init__(self, space: Space, seed: int | None = None):
        self.space, self.random = space, np.random.default_rng(seed)
        self.distributions = space.distributions()
        self.other = RandomSampler(seed)
        self._rows: dict[int, np.ndarray] = {}  # trial's number -> its row
        self.smooth = np.zeros(space.columns, bool)  # columns of real numbers
        for one in space:
            self.smooth[space.slices[one.name]] = one.type == "float"

    def propose(self, seen: Seen) -> dict[str, Any]:
        raise NotImplementedError

    # Optuna's interface

    def infer_relative_search_space(self, study, trial) -> dict:
        return self.distributions

    def sample_relative(self, study, trial, search_space) -> dict[str, Any]:
        return self.propose(self.seen(study, trial.number))

    def sample_independent(self, study, trial, param_name, param_distribution):
        return self.other.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        self.random = np.random.default_rng()

    def seen(self, study, but: int | None = None) -> Seen:
        """The trials of the study, without number `but`."""
        sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
        rows, values, pending, numbers = [], [], [], []
        for trial in study.get_trials(deepcopy=False):
            if trial.number == but or not trial.params or trial.user_attrs.get("interrupted"):
                continue
            if trial.number not in self._rows:
                self._rows[trial.number] = self.space.encode(trial.params)
            row = self._rows[trial.number]
            if not trial.state.is_finished():
                pending.append(row)
                continue
            rows.append(row)
            numbers.append(trial.number)
            values.append(sign * trial.value if trial.value is not None else np.nan)
        values, columns = np.array(values, float), self.space.columns
        failed = ~np.isfinite(values)
        if len(values):
            worst = values[~failed].max() if not failed.all() else 0.0
            values = np.where(failed, worst, values)
        return Seen(
            np.array(rows).reshape(-1, columns), values, failed,
            np.array(pending).reshape(-1, columns), numbers,
        )  # fmt: skip

    # Rows

    def snapped(self, rows: np.ndarray) -> np.ndarray:
        """The nearest rows of sets that can be had: whole numbers, one choice, conditions."""
        rows = rows.copy()
        decoded: dict[str, list] = {}
        for one in self.space:
            part = rows[:, self.space.slices[one.name]]
            if one.choices:
                chosen = part.argmax(1)
                part[:] = 0
                part[np.arange(len(part)), chosen] = 1
                decoded[one.name] = [one.choices[c] for c in chosen]
            elif one.type == "int":
                values = [one.decode(row) for row in part]
                for value, row in zip(values, part, strict=True):
                    one.encode(value, row)
                decoded[one.name] = values
            if not one.when:
                continue
            absent = np.array(
                [
                    not one.exists(
                        {n: decoded[n][i] for n in one.when if decoded[n][i] is not None}
                    )
                    for i in range(len(rows))
                ]
            )
            part[absent] = 0.0 if one.choices else INACTIVE
            if one.name in decoded:
                decoded[one.name] = [
                    None if gone else value
                    for value, gone in zip(decoded[one.name], absent, strict=True)
                ]
        return rows

    def neighbours(self, row: np.ndarray) -> np.ndarray:
        """Rows that differ in one category, or in one whole number by one or by a tenth."""
        found = []
        for one in self.space:
            part = self.space.slices[one.name]
            if one.choices:
                for choice in range(len(one.choices)):
                    if not row[part][choice]:
                        other = row.copy()
                        other[part] = np.eye(len(one.choices))[choice]
                        found.append(other)
            elif one.type == "int":
                now = one.decode(row[part])
                far = max(1, (one.high - one.low) // 10)
                for value in {now - far, now - 1, now + 1, now + far}:
                    if one.low <= value <= one.high:
                        other = row.copy()
                        one.encode(value, other[part])
                        found.append(other)
        return np.array(found).reshape(-1, len(row))

"""`Study`: the trials of a search, kept by Optuna; only the coordinator writes them.

With a file, each line of it is one event (Optuna's journal), on the disk before the next one. A
trial ends in a single line, so a process that is killed leaves it finished or not. To resume is to
read the file: a trial that was in training then counts as interrupted, not as finished, and its set
of values is tried again.
"""

from __future__ import annotations

import ast
import fcntl
import json
import os
import warnings
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import distribution_to_json
from optuna.exceptions import ExperimentalWarning
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from . import samplers
from .proposing import HEAD, INTERRUPTED, event_of
from .space import Space, check_name

PRUNERS = ("none", "median", "successive_halving", "hyperband")
NAME = "search"


class Held:
    """A lock, as Optuna's journal takes one, on a study's file for as long as this process lives.
    Nothing is left behind when it is killed.

    Raises ValueError if another process has it.
    """

    def __init__(self, path: Path):
        self.file = open(f"{path}.lock", "a+")  # noqa: SIM115  (closed with the process)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.seek(0)
            who = f" (process {found})" if (found := self.file.read().strip()) else ""
            raise ValueError(f"study {path} is in use by another search{who}") from None
        self.file.truncate(0)
        self.file.write(str(os.getpid()))
        self.file.flush()

    def acquire(self) -> bool:
        return True

    def release(self) -> None: ...

    def close(self) -> None:
        self.file.close()


class Study:
    """A study of `trials` trials.

    Attributes:
        best: The best complete trial so far; None if there is none.
        resumed: Trials that had ended in an earlier process.
        before: Trials that were begun in an earlier process, with those to be tried again.
        again: How many sets of values are queued to be tried again.

    Args:
        space: What is searched.
        sampler: Its name, see samplers.py.
        trials: Trials in all, those of a resumed study included. One that failed counts.
        maximise: Whether a higher figure of merit is better.
        pruner: Its name: which trials are stopped early.
        epochs: Epochs of a whole trial, which Hyperband needs.
        file: Where trials are kept; None: in memory.
        resume: Go on with the study in the file, if there is one.
        seed: Of its random numbers; a study that goes on does not draw its first sets again.
        about: What must be the same in a resumed study, by name: values that JSON can hold.

    Raises:
        ValueError: If the file has another study, or there is one and `resume` is False.
    """

    def __init__(
        self,
        space: Space,
        sampler: str = "bayesian",
        trials: int = 20,
        *,
        maximise: bool = False,
        pruner: str = "none",
        epochs: int = 1,
        seed: int | None = None,
        file: Path | None = None,
        resume: bool = False,
        about: Mapping[str, Any] | None = None,
    ):
        if trials < 1:
            raise ValueError(f"trials must be at least 1, got {trials}")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.trials, self.maximise, self.lock = space, trials, maximise, None
        self.made = Path(file) if file is not None and not Path(file).exists() else None
        about = dict(about or {}) | {"space": described(space), "maximise": maximise}
        about = json.loads(json.dumps(about))
        samplers.check(sampler)
        storage = None if file is None else self._open(Path(file), resume)
        try:
            self.optuna = optuna.create_study(
                storage=storage,
                study_name=NAME,
                load_if_exists=True,
                pruner=_pruner(pruner, epochs),
                direction="maximize" if maximise else "minimize",
            )
        except (ValueError, KeyError, TypeError) as error:
            if file is None:
                raise
            self.close()
            raise ValueError(f"{file} is not a study: {error}") from None
        begun = self.optuna.get_trials(deepcopy=False)
        self.optuna.sampler = samplers.of_stream(sampler, space, seed, 0, len(begun))
        self._check_same(file, about)
        finished = self.finished
        self.resumed = len(finished)
        self.best = reduce(self._better, finished, None)
        self._log = bytearray()
        for trial in finished:
            self._note(trial)
        self.again = sum(trial.state == TrialState.WAITING for trial in begun)
        self._try_again(begun)
        self.before = self.begun = len(self.optuna.get_trials(deepcopy=False))

    def _open(self, file: Path, resume: bool) -> JournalStorage:
        if file.exists() and not resume:
            raise ValueError(f"study {file} exists; resume it (--resume), or choose another file")
        self.lock = Held(file)
        try:
            if file.exists():
                _cut_half_a_line(file)
            return JournalStorage(JournalFileBackend(str(file), lock_obj=self.lock))
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise ValueError(f"{file} is not a study: {error}") from None

    def _check_same(self, file: Path | None, about: dict) -> None:
        before = self.optuna.user_attrs.get("about")
        if before is None:
            self.optuna.set_user_attr("about", about)
            return
        if isinstance(before.get("space"), str):
            before = before | {"space": described(of_text(before["space"]))}
        for name in about.keys() | before.keys():
            if about.get(name) != before.get(name):
                self.close()  # a notebook keeps this object, in the last traceback
                raise ValueError(
                    f"study {file} was begun with {name} {before.get(name)}, not "
                    f"{about.get(name)}; use the same, or another file"
                )

    def _try_again(self, trials: list[FrozenTrial]) -> None:
        """Mark trials that were in training as interrupted, and queue their sets of values."""
        for trial in trials:
            if trial.state == TrialState.RUNNING:
                self._interrupt(trial.number)
                if trial.params:
                    self.optuna.enqueue_trial(trial.params)
                    self.again += 1

    def _interrupt(self, number: int) -> None:
        # The mark comes first: without it, the end of the trial would count as a failure
        self.trial(number).set_user_attr(INTERRUPTED, True)
        self.optuna.tell(number, state=TrialState.FAIL)

    # While it runs

    @property
    def finished(self) -> list[FrozenTrial]:
        """Trials that have ended by themselves: complete, pruned or failed."""
        return [
            trial
            for trial in self.optuna.get_trials(deepcopy=False)
            if trial.state.is_finished() and not trial.user_attrs.get(INTERRUPTED)
        ]

    def ask(self) -> tuple[Trial, dict[str, Any]]:
        """A new trial and its set of values: one that is queued, or the sampler's choice."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            trial = self.optuna.ask()
            values = self.space.suggest(trial)
        self.again, self.begun = max(0, self.again - 1), max(self.begun, trial.number + 1)
        self._note(self._frozen(trial.number))
        return trial, values

    def begin(self, values: Mapping[str, Any]) -> Trial:
        """A new trial of a set of values that was chosen elsewhere (leader.py)."""
        known = self.space.distributions
        new = create_trial(
            state=TrialState.RUNNING,
            params=dict(values),
            distributions={name: known[name] for name in values},
        )
        self.optuna.add_trial(new)
        self.begun += 1
        self._note(self._frozen(self.begun - 1))
        return self.trial(self.begun - 1)

    def trial(self, number: int) -> Trial:
        """The trial of this number."""
        return Trial(self.optuna, self._frozen(number)._trial_id)

    def _frozen(self, number: int) -> FrozenTrial:
        return self.optuna.get_trials(deepcopy=False)[number]

    # What leaders of groups are told

    def _note(self, trial: FrozenTrial) -> None:
        event = event_of(trial, self.space, -1.0 if self.maximise else 1.0)
        self._log += event.tobytes()

    @property
    def events(self) -> int:
        """How many events there have been: trials that began or ended (proposing.py)."""
        return len(self._log) // (8 * (HEAD + self.space.columns))

    def news(self, known: int) -> bytes:
        """All events but the first `known`, for `Leader.answer`."""
        return bytes(self._log[known * 8 * (HEAD + self.space.columns) :])

    # The end of a trial

    def prune(self, trial: Trial, epoch: int, value: float) -> bool:
        """Note the figure of merit after an epoch, and say whether the trial should stop."""
        trial.report(value, epoch)
        return trial.should_prune()

    def tell(
        self, trial: Trial, value: float | None, state: str = "complete", **about: Any
    ) -> dict[str, Any]:
        """Keep the end of a trial: "complete" with its value, "pruned" or "failed".

        Returns the trial's row (`row_of`).

        `about` is kept with it: `folds`, `why`, `seconds`. A value that is not finite is a failure.
        """
        if state == "complete" and (value is None or not np.isfinite(value)):
            state, about = "failed", {"why": f"the figure of merit is {value}"} | about
        for name, one in about.items():
            trial.set_user_attr(name, one)
        if state == "complete":
            ended = self.optuna.tell(trial, value)
        else:
            ended = self.optuna.tell(trial, state=getattr(TrialState, _STATES[state]))
        self.best = self._better(self.best, ended)
        self._note(ended)
        return row_of(ended)

    def give_up(self, trial: Trial) -> None:
        """The search ends before the trial has: it does not count."""
        self._interrupt(trial.number)
        self.optuna.enqueue_trial(trial.params)

    def __enter__(self) -> Study:
        return self

    def __exit__(self, kind, error, trace) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def close(self) -> None:
        """Let another search use the file."""
        if self.lock is not None:
            self.lock.close()

    def discard(self) -> None:
        """Close; remove the file if it was made here and has no trial, since nothing was tried."""
        new = self.made is not None and not self.optuna.get_trials(deepcopy=False)
        if new:
            for name in (self.made, f"{self.made}.lock"):
                Path(name).unlink(missing_ok=True)
        self.close()  # after that: another search may take the name now

    # What has come out

    def _better(self, one: FrozenTrial | None, other: FrozenTrial) -> FrozenTrial | None:
        """The better of two trials, the earlier one if they are equal; only a complete one is."""
        if other.state != TrialState.COMPLETE:
            return one
        sign = -1 if self.maximise else 1
        both = [trial for trial in (one, other) if trial is not None]
        return min(both, key=lambda trial: (sign * trial.value, trial.number))

    def rows(self) -> list[dict[str, Any]]:
        """Every finished trial: number, params, value, state, and what was told about it."""
        return [row_of(trial) for trial in self.finished]


_STATES = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
_WORDS = {TrialState[word]: state for state, word in _STATES.items()}


def described(space: Space) -> dict[str, Any]:
    """A space as values that JSON can hold: Optuna's texts, and conditions."""
    return {
        name: [distribution_to_json(one), {n: list(v) for n, v in space.when.get(name, {}).items()}]
        for name, one in space
    }


def of_text(text: str) -> Space:
    """The space in a study that was written before spaces were Optuna's distributions."""
    tables = {}
    for call in ast.parse(text, mode="eval").body.elts:
        given = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
        name = given.pop("name")
        tables[name] = {entry: value for entry, value in given.items() if value not in (None, ())}
    return Space.of(tables)


def row_of(trial: FrozenTrial) -> dict[str, Any]:
    """A finished trial as `--json` has it."""
    return {
        "number": trial.number,
        "params": dict(trial.params),
        "value": trial.value,
        "state": _WORDS[trial.state],
        **trial.user_attrs,
    }


def _pruner(name: str, epochs: int) -> optuna.pruners.BasePruner:
    """Optuna's pruner. Its successive halving is the asynchronous one (arXiv 1810.05934)."""
    check_name("pruner", name, PRUNERS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        if name == "median":
            return optuna.pruners.MedianPruner(n_startup_trials=5)
        if name == "successive_halving":
            return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
        if name == "hyperband":
            return optuna.pruners.HyperbandPruner(max_resource=epochs)
        return optuna.pruners.NopPruner()


def _cut_half_a_line(file: Path) -> None:
    """Remove what a writer that was killed has left of its last line."""
    content, first = file.read_bytes(), b'{"op_code":'  # how each line begins
    if not first.startswith(content[: len(first)]):
        raise ValueError(f"{file} is not a study")
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(file, whole)

"""`Study`: the trials of a search, kept by Optuna; only the coordinator writes them.

With a file, each line of it is one event (Optuna's journal), on the disk before the next one. A
trial ends in a single line, so a process that is killed leaves it finished or not. To resume is to
read the file: a trial that was in training then counts as interrupted, not as finished, and its set
of values is tried again.
"""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from . import samplers
from .described import described, differences, in_tables
from .proposing import HEAD, INTERRUPTED, event_of
from .space import Space, check_name

PRUNERS = ("none", "median", "successive_halving", "hyperband")
NAME = "search"
RETRIES = "retries"  # of a trial: the number of the failed one whose set it tries again


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
        best: The best complete trial so far; None if there is none, or if there are several figures
            of merit, for which `front` has the best ones.
        higher: For each figure of merit, whether higher is better. `merits`: their names.
        resumed: Trials that had ended in an earlier process.
        before: Trials that were begun in an earlier process, with those to be tried again.
        again: How many sets of values are queued to be tried again.

    Args:
        space: What is searched.
        sampler: Its name, see samplers.py.
        trials: Trials in all, those of a resumed study included. One that failed counts.
        maximise: Whether a higher figure of merit is better; a sequence if there are several.
        merits: The names of the figures of merit.
        pruner: Its name: which trials are stopped early.
        epochs: Epochs of a whole trial, which Hyperband needs.
        file: Where trials are kept; None: in memory.
        resume: Go on with the study in the file, if there is one.
        retry: Try sets that have failed again, in place of the failed trials. A grid that has no
            other sets left for `trials` does so, too.
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
        maximise: bool | Sequence[bool] = False,
        merits: Sequence[str] = (),
        pruner: str = "none",
        epochs: int = 1,
        seed: int | None = None,
        file: Path | None = None,
        resume: bool = False,
        retry: bool = False,
        about: Mapping[str, Any] | None = None,
    ):
        if trials < 1:
            raise ValueError(f"trials must be at least 1, got {trials}")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.trials, self.lock = space, trials, None
        self.higher = (maximise,) if isinstance(maximise, bool) else tuple(maximise)
        numbers = range(1, len(self.higher) + 1)
        self.merits = [*merits] or ([f"result {i}" for i in numbers] if numbers[1:] else ["result"])
        self.made = Path(file) if file is not None and not Path(file).exists() else None
        about = dict(about or {}) | {"space": described(space)}
        about["maximise"] = self.higher[0] if len(self.higher) == 1 else self.higher
        about = json.loads(json.dumps(about))
        samplers.check(sampler)
        stops = pruner_of(pruner, epochs, len(self.higher))
        self.storage = None if file is None else self._open(Path(file), resume)
        try:
            self.optuna = optuna.create_study(
                storage=self.storage,
                study_name=NAME,
                load_if_exists=True,
                pruner=stops,
                directions=["maximize" if one else "minimize" for one in self.higher],
            )
        except (ValueError, KeyError, TypeError) as error:
            if file is None:
                raise
            self.close()
            raise ValueError(f"{file} is not a study: {error}") from None
        begun = self.optuna.get_trials(deepcopy=False)
        self.optuna.sampler = samplers.of_stream(sampler, space, seed, 0, len(begun))
        self._check_same(file, about)
        if sampler == "grid":
            retry = self._fit_to_grid(begun) or retry
        self.again = sum(trial.state == TrialState.WAITING for trial in begun)
        self._try_again(begun, retry)
        finished = self.finished
        self.resumed = len(finished)
        self.best = reduce(self._better, finished, None)
        self._log = bytearray()
        for trial in finished:
            self._note(trial)
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
        if found := list(differences(in_tables(before), in_tables(about))):
            self.close()  # a notebook keeps this object, in the last traceback
            raise ValueError(
                f"study {file} was begun with other options: {'; '.join(found)}; use the same, or "
                "another file"
            )

    def _fit_to_grid(self, begun: list[FrozenTrial]) -> bool:
        """Whether more trials are asked for than the grid has sets: then those that failed are
        tried again. Raises ValueError if too few have failed for that."""
        ended = [trial for trial in begun if trial.state == TrialState.FAIL]
        # A set counts once, however often it has failed
        failed = {frozenset(t.params.items()) for t in ended if INTERRUPTED not in t.user_attrs}
        try:
            sets = samplers.check_grid(self.space, self.trials, len(failed))
        except ValueError:
            self.discard()
            raise
        more, self.trials = self.trials > sets, min(self.trials, sets)
        return more

    def _try_again(self, begun: list[FrozenTrial], retry: bool) -> None:
        """Queue sets of values again: of trials that were in training, which are marked as
        interrupted, and with `retry` of those that failed, whose place the new trials take."""
        failed = [t for t in self.finished if retry and t.state == TrialState.FAIL]
        for trial in [t for t in begun if t.state == TrialState.RUNNING]:
            self._interrupt(trial.number)
            if trial.params:
                self.optuna.enqueue_trial(trial.params)
                self.again += 1
        for trial in failed:
            self.optuna.enqueue_trial(trial.params, {RETRIES: trial.number})
            self.again += 1

    def _interrupt(self, number: int) -> None:
        # The mark comes first: without it, the end of the trial would count as a failure
        self.trial(number).set_user_attr(INTERRUPTED, True)
        self.optuna.tell(number, state=TrialState.FAIL)

    # While it runs

    @property
    def finished(self) -> list[FrozenTrial]:
        """Trials that have ended by themselves: complete, pruned, or failed and not retried."""
        trials = self.optuna.get_trials(deepcopy=False)
        without = {trial.user_attrs.get(RETRIES) for trial in trials}
        return [
            trial
            for trial in trials
            if trial.state.is_finished()
            and not (trial.user_attrs.get(INTERRUPTED) or trial.number in without)
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
        self._log += event_of(trial, self.space, self._signs).tobytes()

    @property
    def _signs(self) -> list[float]:
        return [-1.0 if higher else 1.0 for higher in self.higher]

    def news(self, known: int) -> bytes:
        """All events (proposing.py) but the first `known`, for `Leader.answer`."""
        entries = HEAD + len(self.higher) + self.space.columns
        return bytes(self._log[known * 8 * entries :])

    # The end of a trial

    def prune(self, trial: Trial, epoch: int, value: float) -> bool:
        """Note the figure of merit after an epoch, and say whether the trial should stop.

        Of several figures none is noted: pruners compare one.
        """
        if len(self.higher) > 1:
            return False
        trial.report(value, epoch)
        return trial.should_prune()

    def tell(
        self, trial: Trial, value: float | Sequence[float] | None, state: str = "complete",
        **about: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Keep the end of a trial: "complete" with its value or values, "pruned" or "failed".

        Returns the trial's row (`row_of`).

        `about` is kept with it: `folds`, `why`, `seconds`. A value that is not finite is a failure.
        """
        if state == "complete" and (value is None or not np.isfinite(value).all()):
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
        try:
            if error is not None:
                self.discard()
            elif self.lock is not None:
                # Of this search: what another one writes to the file does not come in
                ram = optuna.storages.InMemoryStorage()
                optuna.copy_study(from_study_name=NAME, from_storage=self.storage, to_storage=ram)
                self.optuna = optuna.load_study(study_name=NAME, storage=ram)
        finally:
            self.close()  # though the file can't be read

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
        if other.state != TrialState.COMPLETE or len(self.higher) > 1:
            return one
        both = [trial for trial in (one, other) if trial is not None]
        return min(both, key=lambda trial: (self._signs[0] * trial.value, trial.number))

    @property
    def front(self) -> list[FrozenTrial]:
        """The Pareto front: complete trials than which none is better in one figure of merit and
        as good in the others. With one figure, the best trial."""
        if len(self.higher) == 1:
            return [] if self.best is None else [self.best]
        return sorted(self.optuna.best_trials, key=lambda trial: self._signs[0] * trial.values[0])

    def importances(self) -> dict[str, float]:
        """How much each parameter matters, in shares of 1, the largest first; empty if fewer than
        two trials are complete.

        By Optuna (PED-ANOVA, arXiv 2304.10255): how far the values of the best tenth of the trials
        differ from those of all; of several figures of merit, those nearest to the front.
        """
        if sum(trial.state == TrialState.COMPLETE for trial in self.finished) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few trials: all matter alike
            return optuna.importance.get_param_importances(self.optuna)

    def rows(self) -> list[dict[str, Any]]:
        """Every finished trial: number, params, value, state, and what was told about it."""
        return [row_of(trial) for trial in self.finished]


_STATES = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
_WORDS = {TrialState[word]: state for state, word in _STATES.items()}


def row_of(trial: FrozenTrial) -> dict[str, Any]:
    """A finished trial as `--json` has it; its value is a list of several figures of merit."""
    return {
        "number": trial.number,
        "params": dict(trial.params),
        "value": trial.values and (trial.values if len(trial.values) > 1 else trial.values[0]),
        "state": _WORDS[trial.state],
        **trial.user_attrs,
    }


def pruner_of(name: str, epochs: int, figures: int = 1) -> optuna.pruners.BasePruner:
    """Optuna's pruner. Its successive halving is the asynchronous one (arXiv 1810.05934).

    Raises ValueError if there is none of this name, or for several figures of merit.
    """
    check_name("pruner", name, PRUNERS)
    if figures > 1 and name != "none":
        raise ValueError(
            f"pruner {name!r} compares trials by one figure of merit, and there are {figures}: "
            "leave it out"
        )
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

"""The trials of any Optuna study on groups of ranks.

    # mine.py: mpiexec -n 5 python mine.py
    import optuna
    from tutorial_dl import Team, Trainer, strategies
    from tutorial_dl.tuning.optuna import optimize

    def objective(trial, team):  # on all ranks of a group
        rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
        trainer = Trainer(model(), data, strategies.Synchronous(team), learning_rate=rate)
        for epoch in range(8):
            loss = trainer.fit(1).last["val_loss"]
            trial.report(loss, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    team = Team()
    study = optuna.create_study() if team.rank == 0 else None
    optimize(study, objective, trials=20, groups=2, team=team)

Rank 0 has the study, of any sampler, pruner and storage, and answers; the others form `groups`
groups and train. All ranks of a group use a trial alike: the first of them asks rank 0, and tells
the others. So objectives may be defined by run, as everywhere in Optuna. A group that is free takes
the next trial, and waits for no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from optuna import Study, TrialPruned
from optuna.trial import Trial, TrialState

from numba_kernels.errors import PeerError, line_of
from numba_kernels.team.bytes import broadcast
from numba_kernels.team.stall import has_ended

from ..runtime.errors import telling_line
from .mpi_port import Mail

PAUSE = 0.002  # seconds between two looks
REGROUP = 60.0  # seconds for the ranks of a group to find each other again


class GroupTrial:
    """A trial of Optuna's on each rank of a group: its methods and properties are collective."""

    def __init__(self, number: int, team, ask: Callable[[dict], Any]):
        self.number, self.team, self._ask = number, team, ask

    def __getattr__(self, name: str):
        if name.startswith("_") or not hasattr(Trial, name):
            raise AttributeError(f"a trial of a group has no {name!r} (the study is on rank 0)")
        if not callable(getattr(Trial, name)):
            return self._of_rank_0(name)
        return lambda *given, **named: self._of_rank_0(name, given, named)

    def _of_rank_0(self, name: str, given: tuple = (), named: dict | None = None):
        found = None
        if self.team.rank == 0:
            found = self._ask({"what": "use", "name": name, "given": given, "named": named or {}})
        value, error = broadcast(self.team, found)
        if error is not None:
            raise error
        return value


def optimize(
    study: Study | None,
    objective: Callable[[GroupTrial, Any], float],
    trials: int,
    groups: int = 1,
    team=None,
) -> None:
    """Run so many trials of `study`. Collective.

    Args:
        study: On rank 0; the other ranks' is not used.
        objective: f(trial, team), on all ranks of a group, `team`. Returns the value (or values) of
            the trial; may raise optuna.TrialPruned on all of them. Another error, also of one rank
            alone, makes it a failed trial with a line `why` in its user attributes. If a rank
            ends, its group does, and the others go on.
        trials: How many, 1 or more.
        groups: Sets of ranks that train at once. 1 + groups x ranks per group are needed.
        team: All ranks; None: those of the MPI job.

    Raises:
        ValueError: If the ranks can't be divided so.
        RuntimeError: If no group is left; on a group's ranks, if rank 0 has failed.
    """
    if team is None:
        from numba_kernels.team.team import Team

        team = Team()
    if trials < 1 or groups < 1 or team.size < 2 or (team.size - 1) % groups:
        raise ValueError(
            f"{trials} trials on 1 + {groups} groups x ranks per group: both must be at least 1, "
            f"and the ranks but one a multiple of the groups, got {team.size} ranks"
        )
    each = (team.size - 1) // groups
    group = (team.rank - 1) // each if team.rank else groups
    mail, own = Mail(team.duplicate(team.comm)), team.split(group)
    if team.rank == 0:
        _serve(study, mail, team, {1 + group * each: None for group in range(groups)}, trials)
    else:
        _work(objective, mail, team, own)
    mail.flush(5.0)
    with suppress(PeerError):  # a process has ended
        team.recover(None)  # trainings that fail abort all teams of their ranks


def _serve(study: Study, mail: Mail, team, leaders: dict[int, Any], trials: int) -> None:
    """Rank 0: answer the first ranks of groups until all trials have ended."""
    begun = 0
    try:
        while leaders:
            if (found := mail.receive()) is None:
                dead = [rank for rank in leaders if has_ended(team.pid(rank))]
                for rank in dead:
                    _leave(study, leaders, rank, "its ranks have ended")
                time.sleep(PAUSE)
                continue
            rank, message = found
            if rank not in leaders:
                continue
            if message["what"] == "gone":
                _leave(study, leaders, rank, message["why"])
            elif message["what"] == "use":
                mail.send(rank, {"answer": _used(leaders[rank], **message)})
            else:
                _end(study, leaders[rank], message)
                leaders[rank] = study.ask() if begun < trials else None
                begun += 1
                if leaders[rank] is None:
                    del leaders[rank]
                    mail.send(rank, {"answer": None})
                else:
                    mail.send(rank, {"answer": leaders[rank].number})
    except BaseException as error:
        for rank in leaders:
            mail.send(rank, {"failed": line_of(error)})
        mail.flush(5.0)
        raise


def _leave(study: Study, leaders: dict[int, Any], rank: int, why: str) -> None:
    """A group has ended."""
    _end(study, leaders.pop(rank), {"why": why})
    if not leaders:
        raise RuntimeError(f"no group is left: {why}")


def _used(trial, what: str, name: str, given: tuple, named: dict) -> tuple[Any, Exception | None]:
    try:
        found = getattr(trial, name)
        return (found(*given, **named) if callable(found) else found), None
    except Exception as error:
        return None, error


def _end(study: Study, trial, ended: dict) -> None:
    """Note how a group's trial has ended; None: it had none."""
    if trial is None:
        return
    if ended.get("why"):
        trial.set_user_attr("why", ended["why"])
    state = None if "values" in ended else TrialState[ended.get("state", "FAIL")]
    study.tell(trial, ended.get("values"), state)


def _work(objective: Callable, mail: Mail, team, own) -> None:
    """A rank of a group: train trials until none is left."""
    failed = ""

    def ask(message: dict) -> Any:
        nonlocal failed
        mail.send(0, message)
        while not failed:
            if (found := mail.receive()) is not None:
                if "answer" in found[1]:
                    return found[1]["answer"]
                failed = f"has failed: {found[1]['failed']}"
            elif has_ended(team.pid(0)):
                failed = "has ended"
            else:
                time.sleep(PAUSE)
        raise RuntimeError(f"rank 0, which has the study, {failed}")

    ended: dict[str, Any] = {}
    try:
        while True:
            number = ask({"what": "next", **ended}) if own.rank == 0 else None
            if (number := broadcast(own, number)) is None:
                return
            ended = _trained(objective, GroupTrial(number, own, ask), own)
    except BaseException as error:  # its process may wait for others to end, so it says so
        own.abort(error)
        if own.rank == 0:
            mail.send(0, {"what": "gone", "why": telling_line(error)})
            mail.flush(5.0)
        raise


def _trained(objective: Callable, trial: GroupTrial, own) -> dict[str, Any]:
    """How a trial has ended."""
    try:
        try:
            ended = {"values": objective(trial, own)}
        except TrialPruned:
            ended = {"state": "PRUNED"}
        if np.ptp(own.allgather(np.array([len(ended.get("state", ""))]))):
            raise ValueError("TrialPruned must be raised on all ranks of the group")
        return ended
    except Exception as error:
        why = str(error) if isinstance(error, PeerError) else f"{type(error).__name__}: {error}"
        own.abort(error)
        own.recover(REGROUP)
        return {"why": telling_line(why)}

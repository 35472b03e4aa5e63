"""Checkpoints with sub-masters: every sample is used once per epoch, also after failures."""

from pathlib import Path

import pytest
from counted_runs import EPOCHS, Cut, alike, counted, counting, cut_at, run_until
from faults import Fault, fail, strike

from numba_kernels import PeerError
from numba_kernels.team.team import Team
from tutorial_dl.layout import Layout
from tutorial_dl.runtime.master.hierarchical_master import HierarchicalMaster
from tutorial_dl.runtime.master.messages import Kind, Order


def group_layouts():
    under = {"layout": Layout(masters=2, workers=1), "upward": 3}
    return under, {"layout": Layout(masters=1, workers=2, devices=2)}


def counted_under(trainer):
    if trainer.strategy.synchronous:  # (groups are weighted by their share of the samples)
        trainer.replica.parameters[:] = -EPOCHS
    elif trainer.team.rank == 0:
        assert sum(trainer.history.workers.values()) == trainer.steps
        assert sum(trainer.history.staleness.values()) == trainer.steps
    counted(trainer)
    assert alike(trainer.team, trainer.replica.parameters)


def cut_groups(folder, steps):
    """Interrupt and resume runs with sub-masters before, afterwards, or both times."""
    team, (under, plain) = Team(), group_layouts()
    for synchronous in (False, True):
        for step in steps:
            for before, after in ((under, under), (under, plain), (plain, under)):
                place = Path(f"{folder}_{synchronous}_{step}_{len(before)}_{len(after)}")
                cut = counting(team, place, synchronous, **before)
                run_until(cut, step)
                resumed = counting(team, place, synchronous, **after)
                assert resumed.resume()
                resumed.saving = None
                resumed.fit_to(EPOCHS)
                counted_under(resumed)


def test_groups_use_every_sample_once_after_a_resume(on_ranks, tmp_path):
    """`make soak` interrupts runs at other steps, and over messages."""
    on_ranks(5, cut_groups, str(tmp_path / "window"), [25])


def cut_at_word(word, monkeypatch):
    """End the run when a group is empty (LEFT), or after the top master's next order `word`."""
    seen, told, order_for = [], HierarchicalMaster.from_sub_master, HierarchicalMaster.order_for

    def noted(self, leaf, kind, record):
        told(self, leaf, kind, record)
        if kind == Kind.LEFT:
            seen.append("LEFT")

    def ordered(self, leaf):
        answer = order_for(self, leaf)
        if seen and answer:
            seen.append(Order(answer.order).name)
        return answer

    def between(self):
        if word in seen:
            raise Cut

    monkeypatch.setattr(HierarchicalMaster, "from_sub_master", noted)
    monkeypatch.setattr(HierarchicalMaster, "order_for", ordered)
    before = HierarchicalMaster.between
    monkeypatch.setattr(HierarchicalMaster, "between", lambda self: (between(self), before(self)))


def cut_after_a_group(folder, cases):
    """A group loses its worker, others do its work, and then the run is ended, twice."""
    team, (under, plain) = Team(), group_layouts()
    for number, (turn, *steps) in enumerate(cases):
        synchronous = bool(number % 2)
        place = Path(f"{folder}_{number}")
        for at, step in enumerate(steps):
            cut = counting(team, place, synchronous, **(under if at < 2 else plain))
            assert cut.resume() == bool(at)
            patch = pytest.MonkeyPatch()
            cut_at_word(step, patch) if isinstance(step, str) else cut.callbacks.append(
                cut_at(step)
            )
            mine = at == 0 and team.rank == 4
            undo = strike("gradient", turn, fail) if mine else lambda: None
            with pytest.raises(Fault if mine else Cut if team.rank == 0 else PeerError):
                cut.fit_to(EPOCHS)
            undo(), patch.undo()
            team.recover()
        resumed = counting(team, place, synchronous, **(under if number % 3 else plain))
        assert resumed.resume()
        resumed.fit_to(EPOCHS)
        counted_under(resumed)


@pytest.mark.thorough
def test_groups_that_lose_their_workers_resume(on_ranks, tmp_path):
    cases = [
        (3, 14, 30), (3, 14, 30), (1, 9, 20, 40), (2, 9, 20, 40), (5, 25, 44), (6, 25, 44),
        (4, "LEFT", 40), (4, "LEFT", 40), (4, "TRAIN", 40), (4, "TRAIN", 40),
    ]  # fmt: skip
    on_ranks(5, cut_after_a_group, str(tmp_path / "window"), cases)

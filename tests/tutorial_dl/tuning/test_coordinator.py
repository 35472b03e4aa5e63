"""The coordinator on a simulated clock, studies in files, and folds."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import tracemalloc
from collections import Counter
from itertools import count

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter

from tutorial_dl import config, data
from tutorial_dl.cli.tune import sizes_in
from tutorial_dl.tuning import folds, problems, report, simulation
from tutorial_dl.tuning.bayesian import APART_PENDING
from tutorial_dl.tuning.coordinator import GRACE, OVERLOOKED, Coordinator, Refused
from tutorial_dl.tuning.costs import Costs
from tutorial_dl.tuning.merit import is_higher_better
from tutorial_dl.tuning.running import Search
from tutorial_dl.tuning.simulation import SimulatedPort
from tutorial_dl.tuning.study import Study
from tutorial_dl.tuning.suggester import Suggester
from tutorial_dl.tuning.suggesting import event_of

SPACE = problems.cube(2, 0.0, 1.0)


def one_second(values, fold, trial):
    return 1.0


def run(port, cells, trials=10, folds=1, sampler="random", **more):
    study = Study(SPACE, sampler, trials, seed=0, **more.pop("study", {}))
    lines = []
    coordinator = Coordinator(
        study, port, cells, folds, tell=lambda text, row: lines.append(text), **more
    )
    return study, coordinator.run(), lines


def test_free_cells_are_never_left_waiting():
    """12 trainings of 1 s on 4 cells take 3 s."""
    study, outcome, _ = run(SimulatedPort(4, lambda v, f: v["x0"], one_second), 4, trials=12)
    assert outcome.seconds == 3 and outcome.utilisation == 1 and len(study.finished) == 12
    assert Counter(cell for cell, *_ in outcome.spans) == dict.fromkeys(range(4), 3)


def test_folds_train_at_once_and_their_mean_counts():
    port = SimulatedPort(6, lambda v, fold: v["x0"] + fold, one_second)
    study, outcome, _ = run(port, 6, trials=4, folds=3)
    assert outcome.seconds == 2 and outcome.utilisation == 1
    for row in study.rows():
        assert row["folds"] == pytest.approx([row["params"]["x0"] + fold for fold in range(3)])
        assert row["value"] == pytest.approx(row["params"]["x0"] + 1)
    best = min(study.rows(), key=lambda row: row["value"])
    assert study.best.number == best["number"]


def test_groups_are_in_use_though_trial_times_differ_tenfold():
    seconds = simulation.tenfold(1)
    for trials, least in ((100, 0.9), (300, 0.95)):
        found = simulation.search(problems.branin(), 8, trials, "random", seconds)
        assert found.outcome.utilisation > least
    alike = simulation.search(problems.branin(), 8, 80, "random")
    assert alike.busy / alike.outcome.seconds == pytest.approx(8)  # the speed-up is ideal


def test_128_groups():
    found = simulation.search(problems.branin(), 128, 256, "evolutionary")
    assert found.outcome.seconds == 2 and found.outcome.utilisation == 1


def test_more_groups_come_to_the_same_regret_sooner():
    rows = simulation.advantage([1, 8], 60, "tpe", 3, problems.branin())
    assert rows[1]["seconds"] < rows[0]["seconds"] / 6
    assert rows[0]["speed_up"] == pytest.approx(1) and rows[1]["speed_up"] > 6


def check_memory(trials):
    """The last quarter of a search on 32 groups takes no more memory per trial than the others."""
    study, sizes, ended = Study(SPACE, "random", trials, seed=0), [], count(1)

    def note(text, row):
        if row is not None and next(ended) % (trials // 4) == 0:
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])

    port = SimulatedPort(32, lambda values, fold: values["x0"], simulation.tenfold())
    tracemalloc.start()
    try:
        Coordinator(study, port, 32, tell=note).run()
    finally:
        tracemalloc.stop()
    _, second, third = np.diff(sizes) / (trials // 4)  # bytes per trial
    assert len(study.finished) == trials and third < 1.3 * second < 13_000, sizes


@pytest.mark.thorough
def test_memory_of_a_long_search_grows_by_its_trials_only():
    check_memory(400)


class Faulty(SimulatedPort):
    """Cells of which some raise, hang or are lost, by the number of the trial."""

    def __init__(self, cells, faults):
        super().__init__(cells, lambda values, fold: values["x0"], one_second)
        self.faults, self.gone, self.said, self.stopped = faults, [], [], []

    def send(self, cell, message):
        if message["what"] == "stop":
            self.stopped.append((cell, message["trial"]))
        if message["what"] != "train":
            return
        fault = self.faults.get((message["trial"], message["fold"]))
        if fault == "lost":
            self.gone.append(cell)
        elif fault != "hangs":
            super().send(cell, message)
            if fault:
                at, count, cell, ended = self.events.pop()
                ended |= {"state": "failed", "why": fault}
                self.events.append((at, count, cell, ended))
                self.events.sort()

    def lost(self):
        found, self.gone = self.gone, []
        return found

    def receive(self, seconds):
        found = super().receive(seconds)
        if found is None and seconds:
            self.time += seconds
        return found


def test_what_fails_is_recorded_and_its_cell_goes_on():
    port = Faulty(2, {(1, 0): "RuntimeError: no", (4, 0): "diverged"})
    study, outcome, lines = run(port, 2, trials=8)
    states = Counter(row["state"] for row in study.rows())
    assert states == {"complete": 6, "failed": 2} and not outcome.lost
    assert next(r for r in study.rows() if r["number"] == 1)["why"] == "RuntimeError: no"
    assert any("trial 1: failed: RuntimeError: no" in line for line in lines)


def test_a_lost_cell_is_dropped_and_the_others_do_all_trials():
    port = Faulty(3, {(2, 0): "lost"})
    study, outcome, _ = run(port, 3, trials=9)
    assert len(study.finished) == 9 and len(outcome.lost) == 1
    assert Counter(r["state"] for r in study.rows()) == {"complete": 8, "failed": 1}
    port = Faulty(2, {(0, 0): "lost", (1, 0): "lost"})
    study, outcome, _ = run(port, 2, trials=9)
    assert outcome.stopped == "no ranks are left" and len(study.finished) == 2


def test_a_cell_that_does_not_answer_is_given_up_after_its_deadline():
    port = Faulty(2, {(0, 0): "hangs"})
    study, outcome, _ = run(port, 2, trials=400, deadline=5.0)
    (why,) = outcome.lost
    assert "did not answer" in why and len(study.finished) == 400
    first = next(row for row in study.rows() if row["number"] == 0)
    assert first["state"] == "failed" and first["seconds"] > 5 + 2 * GRACE


def test_a_fold_that_fails_ends_the_other_folds():
    """Trial 0 fails with fold 1 after a second, while fold 0 would hang for ever."""
    port = Faulty(2, {(0, 0): "hangs", (0, 1): "out of memory"})
    study, _, _ = run(port, 2, trials=3, folds=2, deadline=5.0)
    assert (0, 0) in port.stopped
    row = next(row for row in study.rows() if row["number"] == 0)
    assert row["state"] == "failed" and row["why"] == "fold 1: out of memory"
    assert len(study.finished) == 3


def refusing(cells, which):
    """Cells of which those of `which` say that they can train nothing."""
    port = SimulatedPort(cells, lambda values, fold: values["x0"], one_second)
    said = {"what": "refused", "why": "there is no such column"}
    port.events = [(0.0, i, i, said if i in which else {"what": "ready"}) for i in range(cells)]
    return port


@pytest.mark.parametrize("gone", [[], [0, 1, 2]])
def test_a_search_that_all_cells_refuse_ends_before_any_trial(tmp_path, gone):
    """`gone`: cells whose processes have ended, too, when the first of them is heard."""
    study, lines = Study(SPACE, "random", 5, seed=0, file=tmp_path / "s.log"), []
    port = refusing(3, {0, 1, 2})
    port.lost = lambda: gone
    with pytest.raises(Refused, match="there is no such column"):
        Coordinator(study, port, 3, tell=lambda text, row: lines.append(text)).run()
    assert not lines and not study.optuna.trials
    study.discard()
    assert not list(tmp_path.iterdir())
    study, outcome, lines = run(refusing(3, {0, 2}), 3, trials=5)  # only their nodes are wrong
    assert len(study.finished) == 5 and len(outcome.lost) == 2
    assert sum("is lost: there is no such column" in line for line in lines) == 2


def test_only_a_study_that_is_new_and_empty_is_discarded(tmp_path):
    file = tmp_path / "s.log"
    study = Study(SPACE, "random", 5, file=file)
    study.tell(study.ask()[0], 1.0)
    study.discard()
    Study(SPACE, "random", 5, file=file, resume=True).discard()
    assert len(Study(SPACE, "random", 5, file=file, resume=True).finished) == 1


class Reporting(SimulatedPort):
    """Cells that report after each of 9 epochs of 1 s, until they are told to stop."""

    def __init__(self, cells, offset):
        super().__init__(cells, lambda values, fold: 0.0, one_second)
        self.offset, self.epochs = offset, Counter()

    def send(self, cell, message):
        trial = message.get("trial")
        if message["what"] == "stop":
            for event in [e for e in self.events if e[2] == cell and e[3]["trial"] == trial]:
                self.events.remove(event)
            ended = {"what": "ended", "trial": trial, "fold": -1, "state": "stopped", "why": ""}
            self._add(0, cell, ended)
        if message["what"] == "train":
            value = {"value": trial + self.offset(message["fold"]), "trial": trial}
            for epoch in range(1, 10):
                self._add(epoch, cell, {"what": "report", "epoch": epoch} | value)
            ended = {"what": "ended", "state": "complete", "fold": message["fold"]}
            self._add(9.5, cell, ended | value)

    def _add(self, seconds, cell, message):
        self.count += 1
        self.events.append((self.time + seconds, self.count, cell, message))
        self.events.sort()

    def receive(self, seconds):
        found = super().receive(seconds)
        if found and found[1]["what"] == "report":
            self.epochs[found[1]["trial"]] += 1
        return found


@pytest.mark.parametrize("pruner", ["median", "successive_halving", "hyperband"])
def test_bad_trials_are_pruned_by_the_mean_over_folds(pruner):
    """Each trial is worse than the one before; fold 1 alone would look good."""
    port = Reporting(2, lambda fold: 1000.0 if fold == 0 else -1000.0)
    study, _, _ = run(port, 2, trials=12, folds=2, study={"pruner": pruner, "epochs": 9})
    states = [row["state"] for row in sorted(study.rows(), key=lambda row: row["number"])]
    assert states[0] == "complete" and "pruned" in states
    for row in study.rows():
        if row["state"] == "complete":
            assert row["value"] == pytest.approx(row["number"])
            assert port.epochs[row["number"]] == 18
        else:
            assert port.epochs[row["number"]] < 18


# Ranks that choose --------------------------------------------------------------------------------


def suggesters(sampler, number, space=SPACE):
    return [
        Suggester(lambda after, i=i: Study(space, sampler, 1000, seed=1, stream=1 + i, after=after))
        for i in range(number)
    ]


def known(study):
    """What a sampler sees of the finished trials, in order of their sets."""
    found = [
        (sorted(t.params.items()), t.state.name, t.value, t.intermediate_values)
        for t in study.optuna.trials
        if t.state.is_finished()
    ]
    return sorted(found, key=str)


@pytest.mark.parametrize("sampler", ["tpe", "evolutionary", "cmaes", "bayesian"])
def test_a_suggester_learns_all_that_the_coordinator_knows(sampler):
    """Also of trials that failed, were pruned, or have ended in an earlier search."""
    chosen = suggesters(sampler, 2)

    class Port(Reporting):
        def send(self, cell, message):
            if message["what"] == "choose":
                SimulatedPort.send(self, cell, message)
            elif message["what"] == "train" and message["trial"] in (3, 9):
                ended = {"what": "ended", "state": "failed", "why": "no", "fold": message["fold"]}
                self._add(1, cell, ended | {"trial": message["trial"]})
            else:
                super().send(cell, message)

    port = Port(2, lambda fold: 0.0)
    port.suggesters, port.cells, port.choosing = chosen, 2, 0.25
    ready = [(0.0, number - 4, number, {"what": "ready"}) for number in (2, 3)]
    port.events = ready + port.events  # before the cells
    study = Study(SPACE, sampler, 14, seed=0, pruner="median", epochs=9)
    for value in (0.5, 1.5):
        study.tell(study.ask()[0], value)
    coordinator = Coordinator(study, port, 2, suggesters=2)
    coordinator.finished = 2
    outcome = coordinator.run()
    states = Counter(trial.state.name for trial in study.optuna.trials)
    assert states["FAIL"] == 2 and states["PRUNED"] >= 2 and sum(states.values()) == 14
    assert coordinator.asking == 0 and outcome.stopped is None  # the coordinator has chosen none
    for one in chosen:
        for event in coordinator.suggesting.news[2 + chosen.index(one)]:
            one._learn(event)
        assert known(one.study) == known(study)
        assert len(one.study.optuna.trials) == 14  # those of the other are there once, too


@pytest.mark.thorough
def test_suggesters_at_once_choose_as_fast_as_they_are_many():
    """256 sets of 0.1 s each by 4 ranks, for 128 groups whose trainings take a second."""
    times = {}
    for number in (1, 4):
        times[number] = simulation.search(
            problems.branin(), 128, 256, "evolutionary", suggesters=number, choosing=0.1
        ).outcome.seconds
    assert times[1] == pytest.approx(25.6 + 1, abs=0.2)
    assert times[4] == pytest.approx(25.6 / 4 + 1, abs=0.2)


def test_with_a_set_ahead_no_group_waits():
    found = simulation.search(problems.branin(), 4, 40, "evolutionary", suggesters=2, choosing=0.4)
    # The first sets of four cells take 0.4 and 0.8 s; later there is always one more than is used
    assert found.outcome.seconds == pytest.approx(40 / 4 + 0.8, abs=0.5)


def test_suggesters_that_choose_at_once_choose_apart():
    study = Study(SPACE, "random", 30, seed=0)
    for _ in range(20):
        trial, values = study.ask()
        study.tell(trial, (values["x0"] - 0.3) ** 2 + (values["x1"] - 0.6) ** 2)
    news = [event_of(trial) for trial in study.finished]
    four = suggesters("bayesian", 4)  # all know the same, as they choose at the same time
    found = [one.answer({"news": news, "others": i})["values"] for i, one in enumerate(four)]
    assert nearest(found) > APART_PENDING / 10, found
    alike = [one.answer({"news": [], "others": 0})["values"] for one in suggesters("bayesian", 4)]
    assert nearest(alike) == 0  # so it is the number of the others that makes it so
    first = [
        one.answer({"news": [], "others": i})["values"]
        for i, one in enumerate(suggesters("bayesian", 4))
    ]
    quarters = {(one["x0"] > 0.5, one["x1"] > 0.5) for one in first}
    assert len(quarters) == 4  # of one Sobol sequence


def nearest(sets):
    """The least distance between two of the sets."""
    rows = np.array([[one["x0"], one["x1"]] for one in sets])
    return np.abs(rows[:, None] - rows[None]).max(2)[np.triu_indices(len(rows), 1)].min()


class FaultySuggester(Faulty):
    """A suggester that fails with its sixth set."""

    def __init__(self, fault):
        super().__init__(2, {})
        self.suggesters, self.choosing, self.fault = suggesters("evolutionary", 1), 0.1, fault
        self.events = [(0.0, -1, 2, {"what": "ready"}), *self.events]
        self.asked = 0

    def send(self, cell, message):
        if message["what"] != "choose":
            return super().send(cell, message)
        self.asked += 1
        if self.asked < 6:
            SimulatedPort.send(self, cell, message)
        elif self.fault == "raises":
            self.events.append((self.time, self.count, 2, {"what": "failed", "why": "no memory"}))
            self.events.sort()
        elif self.fault == "lost":
            self.gone.append(2)


@pytest.mark.parametrize(
    "fault, why",
    [("lost", "its ranks were killed"), ("raises", "no memory"), ("hangs", "no set of values")],
)
def test_a_suggester_that_fails_is_dropped_and_the_coordinator_chooses(fault, why):
    port = FaultySuggester(fault)
    study, outcome, lines = run(port, 2, trials=12, sampler="evolutionary", suggesters=1)
    assert len(study.finished) == 12 and outcome.stopped is None and port.asked == 6
    (said,) = outcome.lost
    assert said.startswith("suggester 0 is lost: ") and why in said
    assert any(said in line for line in lines)


def test_a_suggester_may_take_its_time_while_no_cell_waits():
    """A choice of 90 s during trainings of 100 s."""
    found = simulation.search(
        problems.branin(), 1, 4, "evolutionary", lambda v, f, t: 100.0, suggesters=1, choosing=59
    )
    assert not found.outcome.lost
    port = SimulatedPort(1, lambda v, f: v["x0"], lambda v, f, t: 100.0)
    port.suggesters, port.choosing = suggesters("evolutionary", 1), 90.0
    port.events = [(0.0, 0, 0, {"what": "ready"}), (1.0, 1, 1, {"what": "ready"})]
    study, outcome, _ = run(port, 1, trials=4, sampler="evolutionary", suggesters=1)
    assert len(study.finished) == 4 and not outcome.lost


def test_sets_that_were_interrupted_are_tried_before_others_are_chosen(tmp_path):
    file = tmp_path / "study.log"
    study = Study(SPACE, "evolutionary", 8, seed=0, file=file)
    _, values = study.ask()
    study.close()  # as if it had been killed
    study = Study(SPACE, "evolutionary", 8, seed=0, file=file, resume=True)
    port = SimulatedPort(2, lambda v, f: v["x0"], one_second, suggesters("evolutionary", 1), 0.1)
    Coordinator(study, port, 2, suggesters=1).run()
    assert [row["params"] for row in study.rows()].count(values) == 1
    assert len(study.finished) == 8
    study.close()


# Cells of several sizes -------------------------------------------------------------------------


def hundredfold(values, fold, trial):
    """1 to 100 s on one rank, by two of the values."""
    return 10 ** (values["x0"] + values["x1"])


def test_costs_are_predicted_from_what_has_ended():
    """A product of powers has a linear logarithm, so the prediction is exact but for the ridge."""
    costs, random = Costs(SPACE), np.random.default_rng(0)
    for i in range(200):
        if i < 5:
            assert costs.of([{"x0": 0.5, "x1": 0.5}]) is None
        values = {"x0": random.random(), "x1": random.random()}
        ranks = 1 + i % 3
        costs.note(values, hundredfold(values, 0, i) / ranks, ranks)
    some = [{"x0": 0.2, "x1": 0.9}, {"x0": 0.7, "x1": 0.1}]
    expected = np.log([hundredfold(one, 0, 0) for one in some])
    assert costs.of(some) == pytest.approx(expected, abs=0.05)


def test_large_cells_take_the_trials_that_are_the_most_work():
    sizes = [4, 2, 1, 1]
    port = SimulatedPort(4, lambda values, fold: values["x0"], hundredfold, sizes=sizes)
    study, outcome, _ = run(port, 4, trials=400, sizes=sizes)
    rows = {row["number"]: row for row in study.rows()}
    assert len(rows) == 400 and set(rows) == set(range(400))
    work = {size: [] for size in sizes}
    for row in rows.values():
        work[row["ranks"]].append(hundredfold(row["params"], 0, 0))
    means = [float(np.mean(np.log10(work[size]))) for size in (1, 2, 4)]
    assert means[0] < 0.8 and means[2] > 1.2 and means[0] < means[1] < means[2], means
    # No set is left in store for long: the numbers of trials at work are near each other
    begun = [trial for _, trial, _, began, _ in sorted(outcome.spans, key=lambda s: s[3])]
    assert max(abs(np.array(begun) - np.arange(400))) <= OVERLOOKED * 3


def test_folds_of_a_trial_train_on_equally_many_ranks():
    """Unless no cell of that size is left."""

    def seconds(values, fold, trial):
        return hundredfold(values, fold, trial) * (1 + 0.1 * fold)

    sizes = [4, 4, 4, 1, 1, 1, 1, 1, 1]
    port = SimulatedPort(9, lambda values, fold: values["x0"], seconds, sizes=sizes)
    study, outcome, _ = run(port, 9, trials=100, folds=3, sizes=sizes)
    of = {}
    for cell, trial, *_ in outcome.spans:
        of.setdefault(trial, set()).add(sizes[cell])
    assert len(of) == 100 and all(len(one) == 1 for one in of.values())
    assert {(row["number"], row["ranks"]) for row in study.rows()} == {
        (trial, *ranks) for trial, ranks in of.items()
    }
    port = Faulty(2, {(0, 0): "lost"})
    study, outcome, _ = run(port, 2, trials=6, folds=2, sizes=[2, 1])
    assert len(study.finished) == 6 and len(outcome.lost) == 1


def test_a_cell_that_has_lost_ranks_counts_as_one_of_its_new_size():
    class Shrinking(SimulatedPort):
        def receive(self, seconds):
            found = super().receive(seconds)
            if found and found[1]["what"] == "ended":
                left = 1 if self.time > 50 else self.sizes[found[0]]
                self.sizes[found[0]] = left
                found[1]["ranks"] = list(range(left))
            return found

    port = Shrinking(2, lambda values, fold: values["x0"], one_second, sizes=[4, 4])
    study, _, _ = run(port, 2, trials=500, sizes=[4, 4])
    ranks = [row["ranks"] for row in study.rows()]
    assert ranks[0] == 4 and ranks[-1] == 1 and sorted(ranks, reverse=True) == ranks


def test_sizes_that_do_not_fit():
    base = config.RunConfig.of(model="dense", data="digits")
    with pytest.raises(ValueError, match="sizes of 2 groups, but groups 3"):
        Search(SPACE, base, groups=3, sizes=(2, 1))
    with pytest.raises(ValueError, match="at least 1 each"):
        Search(SPACE, base, sizes=(2, 0))
    search = Search(SPACE, base, sizes=(2, 1), folds=2)
    assert search.groups == 2 and search.sizes_of(None) == [2, 2, 1, 1]
    assert search.sizes_of(7) == search.sizes_of(6, alone=0) == [2, 2, 1, 1]
    assert search.members([2, 2, 1, 1], 3) == [[3, 4], [5, 6], [7], [8]]
    with pytest.raises(ValueError, match=r"1 \+ 2 folds x groups of 2 \+ 1 ranks: 7 ranks, got 6"):
        search.sizes_of(6)
    search = Search(SPACE, base, suggesters=3, groups=2)
    with pytest.raises(ValueError, match=r"1 \+ 3 suggesters \+ 2 groups .*: 6 ranks, got 2"):
        search.sizes_of(2)
    with pytest.raises(ValueError, match="whole numbers, one for each group, got '2,1'"):
        Search(SPACE, base, sizes="2,1")
    assert json.dumps(Search(SPACE, base, sizes=np.array([2, 1])).sizes) == "[2, 1]"
    search = Search(
        SPACE, config.RunConfig.of(model="dense", data="digits", strategy="downpour"), sizes=(2, 1)
    )
    with pytest.raises(ValueError, match="in groups of size 1: "):
        search.check([2, 1])
    with pytest.raises(ValueError, match="takes whole numbers, as 4,1,1"):
        sizes_in("4,x")


# Files ------------------------------------------------------------------------------------------


def search_until_killed(file, after):
    """Search, and kill this process once `after` trials have ended."""
    study = Study(SPACE, "random", 40, seed=0, file=file, resume=True)

    def tell(text, row):
        if row is not None and len(study.finished) == after:
            os.kill(os.getpid(), signal.SIGKILL)

    port = SimulatedPort(4, lambda values, fold: values["x0"], simulation.tenfold(after))
    Coordinator(study, port, 4, tell=tell).run()


def test_a_killed_search_goes_on_and_no_trial_is_lost_or_counted_twice(tmp_path):
    file, before = tmp_path / "study.log", {}
    for after in (7, 8, 23):
        child = multiprocessing.get_context("fork").Process(
            target=search_until_killed, args=(file, after)
        )
        child.start()
        child.join(300)
        assert child.exitcode == -signal.SIGKILL
        with file.open("ab") as half:
            half.write(b'{"op_code": 6, "wor')  # killed while it wrote a line
        study = Study(SPACE, "random", 40, seed=0, file=file, resume=True)
        rows = {row["number"]: row for row in study.rows()}
        assert study.resumed == len(rows) == after
        assert before.items() <= rows.items()
        before = rows
        study.close()
    study = Study(SPACE, "random", 40, seed=1, file=file, resume=True)
    waiting = [t.system_attrs["fixed_params"] for t in study.optuna.trials if not t.params]
    port = SimulatedPort(4, lambda values, fold: values["x0"], one_second)
    Coordinator(study, port, 4).run()
    rows = {row["number"]: row for row in study.rows()}
    assert len(rows) == 40 and before.items() <= rows.items()
    assert study.best.value == min(row["value"] for row in rows.values())
    tried = [row["params"] for row in rows.values()]
    assert waiting and all(tried.count(one) == 1 for one in waiting)  # what was interrupted
    study.close()


def test_what_a_file_refuses(tmp_path):
    file = tmp_path / "study.log"
    study = Study(SPACE, "random", 3, file=file)
    with pytest.raises(ValueError, match="exists; resume it"):
        Study(SPACE, "random", 3, file=file)
    with pytest.raises(ValueError, match="is in use by another search"):
        Study(SPACE, "random", 3, file=file, resume=True)
    study.close()
    with pytest.raises(ValueError, match="was begun with space"):
        Study(problems.cube(3, 0.0, 1.0), "random", 3, file=file, resume=True)
    other = tmp_path / "text"
    other.write_text("hello\n")
    for content in ("hello\n", "hello", '{"a": 1}\n'):
        other.write_text(content)
        with pytest.raises(ValueError, match="is not a study"):
            Study(SPACE, "random", 3, file=other, resume=True)
        assert other.read_text() == content
    with pytest.raises(ValueError, match="is not a study"):
        Study(SPACE, "random", 3, file=other, resume=True)


# Folds and figures of merit ---------------------------------------------------------------------


def test_each_sample_is_held_out_once_and_classes_are_divided_evenly():
    whole = data.load("digits")
    parts = [folds.fold_of(whole, number, 3, seed=1) for number in range(3)]
    held = np.concatenate([part.validation.inputs for part in parts])
    order, expected = (np.lexsort(x.reshape(len(x), -1).T) for x in (held, whole.train.inputs))
    assert (held[order] == whole.train.inputs[expected]).all()
    for part in parts:
        assert len(part.train) + len(part.validation) == len(whole.train)
        counts = np.bincount(part.validation.targets.reshape(-1), minlength=10)
        assert (abs(counts - np.bincount(whole.train.targets.reshape(-1)) / 3) <= 1).all()
    assert folds.fold_of(whole, 0, 1) is whole
    with pytest.raises(ValueError, match="folds must be from 1 to"):
        folds.fold_of(whole, 0, 10**6)


def test_higher_is_better_for_accuracies():
    assert all(map(is_higher_better, ("val_acc", "val_auc_1", "f1", "val_prc", "accuracy_asked")))
    assert is_higher_better("val_accuracy") and is_higher_better("val_sparse_categorical_accuracy")
    assert not is_higher_better("val_loss") and not is_higher_better("loss")


def test_rows_can_be_written_as_json():
    study, _, _ = run(SimulatedPort(2, lambda v, f: v["x0"], one_second), 2, trials=3)
    assert json.loads(json.dumps(study.rows())) == study.rows()


# Figures ----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_figures_of_a_search_leave_the_style_of_others_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    port = Faulty(2, {(1, 0): "out of memory"})
    study, outcome, _ = run(port, 2, trials=6)
    figure = report.of_optuna("plot_slice", study)
    shown, _ = DisplayFormatter().format(figure)
    assert shown["image/png"].startswith(b"\x89PNG")
    assert report.of_optuna("plot_intermediate_values", study) is None  # nothing was reported
    assert {**matplotlib.rcParams} == before
    ax = report.timeline(outcome, study.rows()).axes[0]
    assert [bar.get_hatch() for bar in ax.patches].count("////") == 1 and len(ax.patches) == 6
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["failed"]
    assert sorted(text.get_text() for text in ax.texts) == list("012345")

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

from tutorial_dl import config, data
from tutorial_dl.tuning import figures, folds, problems, simulation
from tutorial_dl.tuning.bayesian import APART_PENDING
from tutorial_dl.tuning.coordinator import GRACE, START, Coordinator, Refused
from tutorial_dl.tuning.leader import Leader
from tutorial_dl.tuning.merit import is_higher_better
from tutorial_dl.tuning.search import Search
from tutorial_dl.tuning.simulation import SimulatedPort
from tutorial_dl.tuning.space import Space
from tutorial_dl.tuning.study import Study

SPACE = problems.cube(2, 0.0, 1.0)


def one_second(values, fold, trial):
    return 1.0


def leaders(number, sampler="random", space=SPACE):
    return [Leader(space, sampler, 0, i) for i in range(number)]


def run(port, cells, trials=10, folds=1, sampler="random", **more):
    study = Study(SPACE, sampler, trials, seed=0, **more.pop("study", {}))
    lines = []
    coordinator = Coordinator(
        study, port, cells, folds, announce=lambda text, row: lines.append(text), **more
    )
    return study, coordinator.run(), lines


@pytest.mark.parametrize(
    ("cells", "trials", "seconds", "sampler"), [(4, 12, 3, "random"), (128, 256, 2, "evolutionary")]
)
def test_free_cells_are_never_left_waiting(cells, trials, seconds, sampler):
    """12 trainings of 1 s on 4 cells take 3 s."""
    port = SimulatedPort(cells, lambda v, f: v["x0"], one_second, leaders(cells, sampler))
    study, outcome, _ = run(port, cells, trials=trials)
    assert outcome.seconds == seconds and outcome.utilisation == 1
    assert len(study.finished) == trials
    assert Counter(cell for cell, *_ in outcome.spans) == dict.fromkeys(range(cells), seconds)


def test_folds_train_at_once_and_their_mean_counts():
    port = SimulatedPort(6, lambda v, fold: v["x0"] + fold, one_second, leaders(6))
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
    assert alike.outcome.utilisation == pytest.approx(1)  # the speed-up is ideal


def test_what_is_computed_counts_as_time():
    """With one group all choices, and all that the coordinator computes, come one by one."""
    found = simulation.search(problems.branin(), 1, 12, "bayesian", measured=True)
    computed = sum(found.choices) + found.kept
    assert found.outcome.seconds == pytest.approx(12 + computed, abs=found.kept)
    assert len(found.choices) == 12 and found.busy < 1
    assert found.outcome.utilisation == pytest.approx(12 / found.outcome.seconds)


def test_more_groups_come_to_the_same_regret_sooner():
    lines = []
    rows = simulation.advantage([1, 8], 60, "tpe", 1, problems.branin(), lines.append)
    assert rows[1]["seconds"] < rows[0]["seconds"] / 6
    assert rows[0]["speed_up"] == pytest.approx(1) and rows[1]["speed_up"] > 6
    for row in rows:  # as its curve, of one seed, says; by hand
        when = [min([t for t, r in row["curve"] if r <= one], default=np.inf) for one in (1.5, 0.1)]
        assert row["reached"] == when
    assert lines[0].endswith("to regret 1.5   to regret 0.1") and len(lines) == 3


def check_memory(trials):
    """The last quarter of a search on 32 groups takes no more memory per trial than the others."""
    study, sizes, ended = Study(SPACE, "random", trials, seed=0), [], count(1)

    def note(text, row):
        if row is not None and next(ended) % (trials // 4) == 0:
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])

    port = SimulatedPort(32, lambda values, fold: values["x0"], simulation.tenfold(), leaders(32))
    tracemalloc.start()
    try:
        Coordinator(study, port, 32, announce=note).run()
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
        super().__init__(cells, lambda values, fold: values["x0"], one_second, leaders(cells))
        self.faults, self.gone, self.said, self.stopped = faults, [], [], []
        self.silent = set()  # cells whose ranks are killed when they choose for the first time

    def send(self, cell, message):
        if message["what"] == "stop":
            self.stopped.append((cell, message["trial"]))
        if message["what"] == "choose" and cell in self.silent:
            self.gone.append(cell)
            return
        if message["what"] != "train":
            super().send(cell, message)
            return
        fault = self.faults.get((message["trial"], message["fold"]))
        if fault == "lost":
            self.gone.append(cell)
        elif fault != "hangs":
            super().send(cell, message)
            if fault:
                _, (_, ended) = max(self.events, key=lambda event: event[1])[1:]
                ended |= {"state": "failed", "why": fault}

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
    port = SimulatedPort(cells, lambda values, fold: values["x0"], one_second, leaders(cells))
    said = {"what": "refused", "why": "there is no such column"}
    port.events = [(0.0, i, (i, said if i in which else {"what": "ready"})) for i in range(cells)]
    return port


@pytest.mark.parametrize("gone", [[], [0, 1, 2]])
def test_a_search_that_all_cells_refuse_ends_before_any_trial(tmp_path, gone):
    """`gone`: cells whose processes have ended, too, when the first of them is heard."""
    study, lines = Study(SPACE, "random", 5, seed=0, file=tmp_path / "s.log"), []
    port = refusing(3, {0, 1, 2})
    port.lost = lambda: gone
    with pytest.raises(Refused, match="there is no such column"):
        Coordinator(study, port, 3, announce=lambda text, row: lines.append(text)).run()
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

    sign = 1  # of the figures

    def __init__(self, cells, offset):
        super().__init__(cells, lambda values, fold: 0.0, one_second, leaders(cells))
        self.offset, self.epochs = offset, Counter()

    def send(self, cell, message):
        trial = message.get("trial")
        if message["what"] == "stop":
            its = [(to, m) for *_, (to, m) in self.events if to == cell and m["trial"] == trial]
            self.events = sorted(event for event in self.events if event[2] not in its)
            ended = {"what": "ended", "trial": trial, "fold": -1, "state": "stopped", "why": ""}
            self.after(0, (cell, ended))
        if message["what"] == "choose":
            super().send(cell, message)
        if message["what"] == "train":
            number = trial + self.offset(message["fold"])
            value = {"value": self.sign * number, "trial": trial}
            for epoch in range(1, 10):
                self.after(epoch, (cell, {"what": "report", "epoch": epoch} | value))
            ended = {"what": "ended", "state": "complete", "fold": message["fold"]}
            self.after(9.5, (cell, ended | value))

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


# Leaders -----------------------------------------------------------------------------------------


def known(study, maximise=False):
    """What a sampler sees of the finished trials, in order of their sets."""
    found = [
        (sorted(t.params.items()), t.state.name, -t.value if maximise and t.value else t.value)
        for t in study.optuna.trials
        if t.state.is_finished()
    ]
    return sorted(found, key=str)


def seen_by(leader):
    """The same of a leader's results."""
    words = {1: "COMPLETE", 2: "PRUNED", 3: "FAIL"}
    found = []
    for _, state, value, _, *row in leader.results.table:
        if state > 0:
            values = sorted(leader.space.decode(np.array(row)).items())
            found.append((values, words[state], None if np.isnan(value) else value))
    return sorted(found, key=str)


@pytest.mark.parametrize(("sampler", "maximise"), [("tpe", True), ("bayesian", False)])
def test_leaders_learn_all_that_the_coordinator_knows(sampler, maximise):
    """Also of trials that failed, were pruned, or have ended in an earlier search."""

    class Port(Reporting):
        def send(self, cell, message):
            if message["what"] == "train" and message["trial"] in (3, 9):
                ended = {"what": "ended", "state": "failed", "why": "no", "fold": message["fold"]}
                self.after(1, (cell, ended | {"trial": message["trial"]}))
            else:
                super().send(cell, message)

    port = Port(3, lambda fold: 0.0)
    port.leaders, port.sign = leaders(3, sampler), -1 if maximise else 1
    study = Study(SPACE, sampler, 14, seed=0, pruner="median", epochs=9, maximise=maximise)
    for value in (0.5, 1.5):
        study.tell(study.ask()[0], value)
    study.before = study.resumed = 2
    outcome = Coordinator(study, port, 3).run()
    states = Counter(trial.state.name for trial in study.optuna.trials)
    assert states["FAIL"] == 2 and states["PRUNED"] >= 2 and sum(states.values()) == 14
    assert outcome.stopped is None
    for one in port.leaders:
        request = {"from": one.results.known, "before": 2, "place": 99, "others": 0}
        one.answer(request | {"news": study.news(one.results.known)})
        for (values, *rest), (theirs, *others) in zip(
            known(study, maximise), seen_by(one), strict=True
        ):
            assert rest == others and dict(values) == pytest.approx(dict(theirs))
        if one.study is not None:  # what Optuna's own samplers see, but for sets of its own choice
            states = Counter(t.state.name for t in one.study.optuna.trials)
            assert states["FAIL"] >= 2 and states["PRUNED"] + states["COMPLETE"] == 12


def chosen_at_once(number, sampler, study):
    """Sets of leaders that choose at the same moment, from what the study knows."""
    before = {"from": 0, "news": study.news(0), "before": study.before}
    return [
        one.answer(before | {"place": i, "others": i})["values"]
        for i, one in enumerate(leaders(number, sampler))
    ]


def nearest(sets):
    """The least distance between two of the sets."""
    rows = np.array([[one["x0"], one["x1"]] for one in sets])
    return np.abs(rows[:, None] - rows[None]).max(2)[np.triu_indices(len(rows), 1)].min()


def test_leaders_that_choose_at_once_choose_apart():
    study = Study(SPACE, "bayesian", 100, seed=0)
    first = chosen_at_once(4, "bayesian", study)
    assert len({(one["x0"] > 0.5, one["x1"] > 0.5) for one in first}) == 4  # one Sobol sequence
    for _ in range(20):
        trial, values = study.ask()
        study.tell(trial, (values["x0"] - 0.3) ** 2 + (values["x1"] - 0.6) ** 2)
    study.before = 20
    sets = chosen_at_once(8, "bayesian", study)
    assert nearest(sets) > APART_PENDING / 20, sets
    assert sets[0] == chosen_at_once(1, "bayesian", study)[0]  # it is the others that part them


def test_a_grid_is_tried_once_by_many_leaders():
    """Also where a search goes on that had tried some sets, and where a leader was lost."""
    space = Space.of({"c": {"type": "category", "choices": list(range(30))}})
    study = Study(space, "grid", 30, seed=0)
    for _ in range(3):
        study.tell(study.ask()[0], 1.0)
    study.before = study.resumed = 3
    port = Faulty(7, {})
    port.leaders, port.value = leaders(7, "grid", space), lambda values, fold: float(values["c"])
    port.silent = {2}
    outcome = Coordinator(study, port, 7).run()
    assert sorted(row["params"]["c"] for row in study.rows()) == list(range(30))
    assert len(outcome.lost) == 1 and "cell 2 is lost" in outcome.lost[0]


@pytest.mark.parametrize(
    ("fault", "why"), [("raises", "no memory"), ("hangs", f"no set of values within {START:.0f}")]
)
def test_a_leader_that_fails_is_dropped_with_its_cell_and_the_others_go_on(fault, why):
    class Port(Faulty):
        def send(self, cell, message):
            if message["what"] != "choose" or cell != 1 or message["from"] == 0:
                super().send(cell, message)
            elif fault == "raises":
                self.after(0.1, (cell, {"what": "failed", "why": "no memory"}))

    port = Port(3, {})
    port.leaders = leaders(3, "evolutionary")
    study, outcome, lines = run(port, 3, trials=900 if fault == "hangs" else 12)
    (said,) = outcome.lost
    assert said.startswith("cell 1 is lost: ") and why in said and said in lines
    assert len(study.finished) == study.trials and outcome.stopped is None


def test_another_rank_of_a_cell_leads_it_if_its_leader_is_lost():
    """The new one knows nothing, and says so; then it gets all results."""
    port = Faulty(2, {})
    port.leaders = leaders(2, "evolutionary")
    asked = []

    def send(cell, message):
        if message["what"] == "choose" and cell == 0:
            asked.append(message["from"])
            if len(asked) == 4:
                port.leaders[0] = Leader(SPACE, "evolutionary", 0, 0)
        Faulty.send(port, cell, message)

    port.send = send
    study, outcome, _ = run(port, 2, trials=12, sampler="evolutionary")
    assert len(study.finished) == 12 and not outcome.lost
    assert asked[3] > 0 and asked[4] == 0 and asked[5] > asked[3]


def test_sets_that_were_interrupted_are_tried_before_others_are_chosen(tmp_path):
    file = tmp_path / "study.log"
    study = Study(SPACE, "evolutionary", 8, seed=0, file=file)
    _, values = study.ask()
    study.close()  # as if it had been killed
    study = Study(SPACE, "evolutionary", 8, seed=0, file=file, resume=True)
    port = SimulatedPort(2, lambda v, f: v["x0"], one_second, leaders(2, "evolutionary"))
    Coordinator(study, port, 2).run()
    assert [row["params"] for row in study.rows()].count(values) == 1
    assert len(study.finished) == 8
    study.close()


def test_a_search_of_one_group_is_that_of_its_sampler():
    """As when the study asks the sampler itself, one trial after the other."""
    alone = Study(SPACE, "bayesian", 14, seed=0)
    for _ in range(14):
        trial, values = alone.ask()
        alone.tell(trial, values["x0"] + values["x1"] ** 2)
    port = SimulatedPort(1, lambda v, f: v["x0"] + v["x1"] ** 2, one_second, leaders(1, "bayesian"))
    study, _, _ = run(port, 1, trials=14, sampler="bayesian")
    assert [row["params"] for row in study.rows()] == [row["params"] for row in alone.rows()]


def test_ranks_that_do_not_fit():
    search = Search(SPACE, config.RunConfig.of(model="dense", data="digits"), groups=2, folds=2)
    assert (search.ranks_each(None), search.ranks_each(9)) == (1, 2)
    assert search.members(2, 1) == [[1, 2], [3, 4], [5, 6], [7, 8]]
    with pytest.raises(ValueError, match=r"1 \+ 2 groups x 2 folds .*: 5 or 9 ranks, got 6"):
        search.ranks_each(6)


# Files ------------------------------------------------------------------------------------------


def search_until_killed(file, after):
    """Search, and kill this process once `after` trials have ended."""
    study = Study(SPACE, "random", 40, seed=0, file=file, resume=True)

    def tell(text, row):
        if row is not None and len(study.finished) == after:
            os.kill(os.getpid(), signal.SIGKILL)

    port = SimulatedPort(
        4, lambda values, fold: values["x0"], simulation.tenfold(after), leaders(4)
    )
    Coordinator(study, port, 4, announce=tell).run()


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
    port = SimulatedPort(4, lambda values, fold: values["x0"], one_second, leaders(4))
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
    with pytest.raises(ValueError, match="was begun with other options: space: x2 is new"):
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
    study = Study(SPACE, "random", 3, file=file, resume=True)
    with pytest.raises(json.JSONDecodeError), study:
        file.write_text(file.read_text() + "half a line\n" * 2)  # its end can't be read back
    with pytest.raises(ValueError, match="is not a study"):  # and it is not in use any more
        Study(SPACE, "random", 3, file=file, resume=True)


AS_TEXT = (  # how an earlier version wrote the space
    "[Parameter(name='c', type='category', low=None, high=None, log=False, choices=('a', 3), "
    "when={}), Parameter(name='x', type='float', low=-1, high=2, log=False, choices=(), "
    "when={'c': ('a',)}), Parameter(name='n', type='int', low=1, high=40, log=True, choices=(), "
    "when={})]"
)


def test_a_study_of_an_earlier_version_goes_on(tmp_path):
    tables = {
        "c": {"type": "category", "choices": ["a", 3]},
        "x": {"type": "float", "low": -1.0, "high": 2.0, "when": {"c": "a"}},
        "n": {"type": "int", "low": 1, "high": 40, "log": True},
    }
    file = tmp_path / "study.log"
    study = Study(Space.of(tables), "random", 3, seed=0, file=file)
    study.tell(study.ask()[0], 1.0)
    study.optuna.set_user_attr("about", {"space": AS_TEXT, "maximise": False})
    study.close()
    study = Study(Space.of(tables), "random", 3, file=file, resume=True)
    assert study.resumed == 1
    study.close()
    tables["n"]["high"] = 41
    with pytest.raises(ValueError, match="options: space: n: high was 40, is 41"):
        Study(Space.of(tables), "random", 3, file=file, resume=True)


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


# Figures ----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_what_failed_is_hatched_in_the_timeline():
    port = Faulty(2, {(1, 0): "out of memory"})
    study, outcome, _ = run(port, 2, trials=6)
    ax = figures.timeline(outcome, study.rows()).axes[0]
    assert [bar.get_hatch() for bar in ax.patches].count("////") == 1 and len(ax.patches) == 6
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["failed"]
    assert sorted(text.get_text() for text in ax.texts) == list("012345")

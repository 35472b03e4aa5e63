"""Studies that go on, that have several figures of merit, and what shows them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from tutorial_dl.tuning import figures, report
from tutorial_dl.tuning.coordinator import Coordinator, Outcome
from tutorial_dl.tuning.drawing import parallel
from tutorial_dl.tuning.leader import Leader
from tutorial_dl.tuning.live_view import View
from tutorial_dl.tuning.simulation import SimulatedPort
from tutorial_dl.tuning.space import Space
from tutorial_dl.tuning.study import Study

SIX = Space.of({"c": {"type": "category", "choices": list("abcdef")}})
PLANE = Space({"x": FloatDistribution(-1.0, 3.0), "y": FloatDistribution(-1.0, 1.0)})


class Port(SimulatedPort):
    """Cells whose trainings fail with values of `fails`; `about` is part of each answer."""

    def __init__(self, cells, value, leaders, fails=lambda values: False, about=lambda trial: {}):
        super().__init__(cells, lambda values, fold: value(values), lambda *_: 1.0, leaders)
        self.fails, self.about = fails, about

    def send(self, cell, message):
        super().send(cell, message)
        if message["what"] == "train":
            _, (_, ended) = max(self.events, key=lambda event: event[1])[1:]
            ended |= self.about(message["trial"])
            if self.fails(message["values"]):
                ended |= {"state": "failed", "why": "no space left on the disk"}


def searched(study, value, sampler="random", cells=2, **of_port):
    """Search on a simulated clock; returns what was told."""
    leaders = [Leader(study.space, sampler, 0, i, len(study.higher)) for i in range(cells)]
    lines = []
    with study:
        port = Port(cells, value, leaders, **of_port)
        Coordinator(study, port, cells, announce=lambda text, row: lines.append(text)).run()
    return lines


def states(study):
    return sorted((row["params"]["c"], row["state"]) for row in study.rows())


ALL_DONE = [(one, "complete") for one in "abcdef"]


@pytest.mark.parametrize("more", [{"trials": 6, "retry": True}, {"trials": 8}, {"trials": 7}])
def test_a_grid_tries_failed_sets_again_once_their_cause_is_gone(tmp_path, more):
    """Two of six sets fail. With --retry, or if more trials are asked for than there are sets."""
    file = tmp_path / "study.log"
    before = Study(SIX, "grid", 6, seed=0, file=file)
    searched(before, lambda v: ord(v["c"]), "grid", fails=lambda v: v["c"] in "be")
    failed = [row["number"] for row in before.rows() if row["state"] == "failed"]
    assert [c for c, state in states(before) if state == "failed"] == ["b", "e"]

    study = Study(SIX, "grid", file=file, resume=True, **more)
    assert (study.again, study.resumed) == (2, 4)
    lines = searched(study, lambda v: ord(v["c"]), "grid")
    assert states(study) == ALL_DONE and len(lines) == 2 and lines[-1].startswith("[6/6]")
    assert sorted(row["retries"] for row in study.rows() if "retries" in row) == failed
    assert study.best.params == {"c": "a"}
    assert [c for c, state in states(before) if state == "failed"] == ["b", "e"]  # its own trials

    with Study(SIX, "grid", file=file, resume=True, **more) as again:  # the same command once more
        assert (again.again, again.resumed) == (0, 6)
    with pytest.raises(ValueError, match="a grid of this space has 6 sets"):
        Study(SIX, "grid", 9, file=file, resume=True)


def test_a_grid_takes_one_trial_more_for_each_set_that_failed(tmp_path):
    file, cut = tmp_path / "study.log", {"fails": lambda values: values["c"] == "b"}
    with pytest.raises(ValueError, match="a grid of this space has 6 sets"):
        Study(SIX, "grid", 7, file=file)
    assert not file.exists()
    Study(SIX, "grid", 6, file=file).close()  # killed before its first trial
    with pytest.raises(ValueError, match="a grid of this space has 6 sets"):
        Study(SIX, "grid", 7, file=file, resume=True)
    assert file.exists()
    for trials in (6, 7, 7):
        study = Study(SIX, "grid", trials, seed=0, file=file, resume=True)
        searched(study, lambda v: ord(v["c"]), "grid", **cut)
    assert len(study.optuna.trials) == 8  # "b" has failed three times
    with pytest.raises(ValueError, match="a grid of this space has 6 sets"):
        Study(SIX, "grid", 8, file=file, resume=True)


def test_what_fails_again_is_tried_again_and_counts_once(tmp_path):
    file, given = tmp_path / "study.log", {"fails": lambda values: values["x"] > 0}
    study = Study(PLANE, "random", 10, seed=0, file=file)
    searched(study, lambda values: values["x"], **given)
    rows = {row["number"]: row for row in study.rows()}
    failed = [row["params"] for row in rows.values() if row["state"] == "failed"]
    assert 2 < len(failed) < 10
    for _ in range(2):
        study = Study(PLANE, "random", 10, seed=0, file=file, resume=True, retry=True)
        searched(study, lambda values: values["x"], **given)
        assert len(study.rows()) == 10
        assert [row["params"] for row in study.rows() if row["state"] == "failed"] == failed
    study = Study(PLANE, "random", 10, seed=0, file=file, resume=True)
    assert len(study.finished) == 10 and study.again == 0
    study.close()


def test_what_differs_from_the_study_in_a_file_is_said(tmp_path):
    tables = {
        "rate": {"type": "float", "low": 0.001, "high": 0.1, "log": True},
        "rule": {"type": "category", "choices": ["a", "b"]},
        "size": {"type": "int", "low": 1, "high": 9, "when": {"rule": "a"}},
    }
    file, about = tmp_path / "study.log", {"merit": "val_loss"}
    about["data"] = {"batch_size": 32, "seed": 0}
    Study(Space.of(tables), "random", 3, file=file, about=about).close()

    def refused(changed=None, **options):
        with pytest.raises(ValueError) as error:
            space = Space.of(tables | (changed or {}))
            Study(space, "random", 3, file=file, resume=True, about=about | options)
        assert str(error.value).startswith(f"study {file} was begun with other options: ")
        return (
            str(error.value).split("options: ")[1].removesuffix("; use the same, or another file")
        )

    rate, size = tables["rate"], tables["size"]
    assert refused({"rate": rate | {"high": 1.0}}) == "space: rate: high was 0.1, is 1.0"
    assert refused({"rate": rate | {"log": False}}) == "space: rate: log was True, is False"
    whole = {"type": "int", "low": 1, "high": 9}
    assert refused({"size": whole}) == "space: size: when: rule was ['a'], is not given"
    choices = {"type": "category", "choices": ["a", "b", "d"]}
    assert refused({"rule": choices}) == "space: rule: choices was ['a', 'b'], is ['a', 'b', 'd']"
    assert refused({"more": size}) == "space: more is new"
    assert refused(data={"batch_size": 64, "seed": 0}) == "data: batch_size was 32, is 64"
    assert refused(merit="loss", data=None) == "merit was val_loss, is loss; data is gone"


# Several figures of merit ------------------------------------------------------------------------


def compromise(values):
    """Schaffer's function with a distance y from its front: minimise x^2 + y^2, maximise
    -(x - 2)^2 - y^2. The Pareto front is y = 0, 0 <= x <= 2: its roots add up to 2."""
    x, y = values["x"], values["y"]
    return [x * x + y * y, -((x - 2) ** 2) - y * y]


def several(sampler, trials, **more):
    merits = ["loss", "gain"]
    return Study(PLANE, sampler, trials, seed=0, maximise=(False, True), merits=merits, **more)


def test_the_front_of_a_grid_is_that_of_a_closed_form(tmp_path):
    """x is -1, 0, 1, 2, 3 and y -1, -0.5, 0, 0.5, 1. The trial at (1, 0) fails at first."""
    file = tmp_path / "study.log"
    one = {"x": 1.0, "y": 0.0}
    study = several("grid", 25, file=file)
    searched(study, compromise, "grid", fails=lambda values: values == one)
    half = [1.25, -1.25]  # y is -0.5 and 0.5
    assert [trial.values for trial in study.front] == [[0, -4], half, half, [4, 0]]
    assert study.best is None
    study = several("grid", 25, file=file, resume=True, retry=True)
    lines = searched(study, compromise, "grid")
    assert [trial.values for trial in study.front] == [[0, -4], [1, -1], [4, 0]]
    assert lines == ["[25/25] trial 25: 1, -1; x 1, y 0"]
    assert [trial.params["y"] for trial in study.front] == [0, 0, 0]


@pytest.mark.thorough(but="tpe")
@pytest.mark.parametrize("sampler", ["tpe", "bayesian", "evolutionary", "cmaes"])
def test_samplers_come_near_the_whole_front(sampler):
    """How far the roots' sum is above 2 on average, and how far the front reaches."""
    found = {}
    for name in ("random", sampler):
        study = several(name, 60)
        searched(study, compromise, name)
        loss, gain = np.array([trial.values for trial in study.front]).T
        off = np.sqrt(loss) + np.sqrt(-gain) - 2
        assert (off > -1e-9).all() and len(off) > 3
        found[name] = off.mean(), loss.min(), -gain.max()
    assert found[sampler][0] < 0.7 * found["random"][0], found
    assert max(found[sampler][1:]) < 0.3, found


def test_several_figures_are_pruned_by_no_rule():
    with pytest.raises(ValueError, match="'median' compares trials by one figure of merit"):
        several("random", 5, pruner="median")
    study = several("random", 5)
    assert study.prune(study.ask()[0], 1, [0.0, 0.0]) is False


# Notes -------------------------------------------------------------------------------------------


def test_a_note_is_said_once_though_its_numbers_differ():
    def about(trial):
        rate = f"trained with adam, learning rate {10.0**-trial:g} (--learning-rate)"
        return {"notes": [rate] + ["batch_size does not apply"] * (trial == 3)}

    lines = searched(Study(PLANE, "random", 8, seed=0), lambda v: v["x"], about=about)
    notes = [line for line in lines if line.startswith("note")]
    assert len(notes) == 2 and "learning rate 1 (" in notes[0] and "trial 3: batch" in notes[1]


# What shows a study ------------------------------------------------------------------------------

ODD = Space(
    {
        "rate": FloatDistribution(0.003, 3.0, log=True),
        "fixed": FloatDistribution(1.0, 1.0),
        "only": CategoricalDistribution(["one"]),
        "kind": CategoricalDistribution(["a", "a kind with a name that is much too long"]),
    }
)


def shown(**options):
    """A study of 12 trials, of which the third failed; parameters of a single value are in it."""
    study, random = Study(ODD, "random", 12, seed=0, **options), np.random.default_rng(0)
    for number in range(12):
        trial, values = study.ask()
        if number != 2 and len(study.higher) == 1:
            study.prune(trial, 1, values["rate"] + 1)
            study.prune(trial, 2, values["rate"])
        values = [abs(np.log(values["rate"])), random.random()][: len(study.higher)]
        study.tell(trial, *([None, "failed"] if number == 2 else [values]), seconds=1.0)
    return study


@pytest.mark.parametrize("options", [{}, {"maximise": (False, True), "merits": ["loss", "gain"]}])
def test_a_report_has_few_digits_and_fits_a_phone(options):
    import matplotlib

    before, study = dict(matplotlib.rcParams), shown(**options)
    outcome = Outcome(20.0, 0.55, 1, [], spans=[(0, i, 0, 8.0 + i, 9.0 + i) for i in range(12)])
    page = report.page(study, outcome, "A search")
    assert {**matplotlib.rcParams} == before
    assert 'name="viewport"' in page and page.count("<svg") >= 5
    words = re.sub(r"<(svg|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    digits = [one.replace(".", "").strip("0") for one in re.findall(r"[\d.]+", words)]
    assert max(map(len, digits)) <= 6
    assert ("Pareto front" in words) == bool(options) == ("best:" not in words)
    ax = figures.timeline(outcome, study.rows()).axes[0]
    assert ax.get_xlim() == (0, 20)  # in use for a part of it, as the page says
    rate, _, _, kind = figures.slices(study).axes[:4]
    assert [one.get_text() for one in rate.get_xticklabels()] == ["0.003", "0.09", "3"]
    assert len(kind.get_xticks()) == 2 and len(rate.lines[0].get_xdata()) == 11
    shares = study.importances()
    assert set(shares) == set(ODD.names) and sum(shares.values()) == pytest.approx(1)
    bars = figures.importances(study).axes[0].patches
    assert [bar.get_width() for bar in bars] == list(shares.values())


def test_the_parameter_on_which_the_figure_depends_matters():
    study = Study(PLANE, "random", 60, seed=0)
    searched(study, lambda values: values["x"])
    assert list(study.importances()) == ["x", "y"] and study.importances()["x"] > 0.8


@pytest.mark.parametrize("options", [{}, {"maximise": (False, True), "merits": ["loss", "gain"]}])
def test_a_live_view_says_in_words_what_it_shows(options):
    view = View(study := shown(**options), lambda one, display_id: one, now=lambda: 0.0)
    page, words = view._repr_html_(), repr(view)
    assert "{" not in words and ("best" in words) == ("front" not in words) == (not options)
    names = ["the newest trials", "each line is a trial"]
    for caption in [*names, *([] if options else ["result by trial", "result by epoch"])]:
        assert f"<small>{caption}" in page
    assert "nan" not in page and page.count("<div") == page.count("</div>")
    assert parallel(study).count('stroke="#E69F00"') == len(study.front)


def test_what_has_no_complete_trial_is_shown_too():
    study, outcome = Study(ODD, "random", 3, seed=0), Outcome(0.0, 0.0, 1, [])
    page = View(study, lambda one, display_id: one)._repr_html_() + report.page(study, outcome, "")
    assert "no trial was completed" in page + parallel(study) and study.importances() == {}
    assert figures.importances(study).axes

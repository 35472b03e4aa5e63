"""A search on a cluster's engines, as a notebook starts it: faults, folds, and the stop button."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tutorial_dl import tuning
from tutorial_dl.tuning.drawing import by_epoch, curve, parallel
from tutorial_dl.tuning.live_view import View
from tutorial_dl.tuning.study import Study

MODEL = f"{Path(__file__).parents[2] / 'support' / 'faulty_model.py'}:build"
RATE = {"type": "float", "low": 1e-3, "high": 1e-1, "log": True}
FAULTS = {"type": "category", "choices": ["fine", "raises", "one_raises", "one_hangs"]}
pytestmark = pytest.mark.xdist_group("cells")  # whose worker has the cluster


class Display:
    """Stands for IPython's display; a press of the stop button comes at update `stop`."""

    def __init__(self, stop=None):
        self.shown, self.stop = [], stop

    def __call__(self, view, display_id):
        self.update(view)
        return self

    def update(self, view):
        assert display_is_page(view._repr_html_())
        self.shown.append(repr(view))
        if len(self.shown) == self.stop:
            raise KeyboardInterrupt


def display_is_page(text):
    return text.count("<div") == text.count("</div>") and "<table>" in text


def test_a_search_on_engines(shared_cluster):
    """Two ranks a training; a grid of faults; then the same engines go on."""
    c, display = shared_cluster, Display()
    found = tuning.tune(
        c, {"what": FAULTS, "width": {"type": "int", "low": 8, "high": 9}}, model=MODEL,
        groups=c.n // 2, trials=8, epochs=1, merit="val_accuracy", sampler="grid", deadline=900,
        show=display,
    )  # fmt: skip
    said = {}
    for trial in found.trials:
        said.setdefault(trial["params"]["what"], []).append(trial)
    assert [trial["state"] for trial in said["fine"]] == ["complete", "complete"]
    for what, why in (
        ("raises", "RuntimeError: no such model"), ("one_raises", "RuntimeError: only odd ranks"),
        ("one_hangs", "longer than 900 s"),
    ):  # fmt: skip
        for trial in said[what]:
            assert trial["state"] == "failed" and why in trial["why"], trial
    assert found.best["what"] == "fine" and not found.outcome.lost
    assert display.shown[-1].startswith("8 of 8 trials") and "best" in display.shown[-1]
    folded = tuning.tune(
        c, {"learning_rate": RATE}, folds=2, groups=1, trials=3, epochs=1, merit="val_accuracy",
        show=Display(),
    )  # fmt: skip
    assert len(folded.trials) == 3 and all(len(trial["folds"]) == 2 for trial in folded.trials)
    assert folded.config().optimizer.learning_rate == folded.best["learning_rate"]
    last = folded.trials[-1]  # any trial's options, by its number
    config = folded.config(last["number"])
    assert config.optimizer.learning_rate == last["params"]["learning_rate"]
    with pytest.raises(ValueError, match=r"none of this number: give one of the front \(\d\)"):
        folded.config(99)
    assert folded.timeline().axes and "<polyline" in folded.plot()._repr_html_()


def test_the_stop_button_keeps_what_is_done(shared_cluster, tmp_path):
    c, file = shared_cluster, tmp_path / "study.log"
    given = dict(epochs=1, merit="val_accuracy", sampler="random", file=file)
    begun = tuning.tune(c, {"learning_rate": RATE}, trials=500, show=Display(stop=2), **given)
    assert begun.outcome.stopped == "interrupted" and 0 < len(begun.trials) < 500
    done = {trial["number"]: trial for trial in begun.trials}
    more = len(done) + 3
    found = tuning.tune(
        c, {"learning_rate": RATE}, trials=more, resume=True, show=Display(), **given
    )
    assert len(found.trials) == more and len(begun.trials) == len(done)
    assert done.items() <= {trial["number"]: trial for trial in found.trials}.items()


def test_what_is_refused_before_anything_is_trained(shared_cluster):
    c = shared_cluster
    with pytest.raises(ValueError, match="sizes is gone: all groups have as many ranks"):
        tuning.tune(c, {"learning_rate": RATE}, sizes=[2, 1], show=Display())
    with pytest.raises(ValueError, match="did you mean 'learning_rate'"):
        tuning.tune(c, {"learning_rat": RATE}, show=Display())
    with pytest.raises(ValueError, match=f"need 30 engines, the cluster has {c.n}"):
        tuning.tune(c, {"learning_rate": RATE}, groups=10, folds=3, show=Display())
    with pytest.raises(ValueError, match="did you mean 'val_accuracy'") as refused:
        tuning.tune(c, {"learning_rate": RATE}, merit="val_acuracy", show=Display())
    assert "\n" not in str(refused.value)


WITHOUT_RANKS = """
import sys
from pathlib import Path
import ipykernel.zmqshell  # tqdm takes this process for a notebook
from tutorial_dl import Layout, cluster, measure, tuning
from tutorial_dl.config import RunConfig
from tutorial_dl.tuning import notebook, on_engine, report
from tutorial_dl.tuning.coordinator import Coordinator
from tutorial_dl.tuning.leader import Leader
from tutorial_dl.tuning.simulation import SimulatedPort

space = tuning.Space.of({"learning_rate": {"type": "float", "low": 0.1, "high": 1.0}})
search = tuning.Search(space, RunConfig.of(model="softmax"), trials=3, merit="val_accuracy")
search.base.check()
search.check(1)
study = search.study()
view = notebook.View(study, lambda one, display_id: one)
leaders = [Leader(space, search.sampler, 0)]
port = SimulatedPort(1, lambda values, fold: values["learning_rate"], lambda *_: 1.0, leaders)
outcome = Coordinator(study, port, 1, announce=lambda *_: None).run()
found = notebook.Found(search, study, outcome)
found.importances(), found.config().toml(), found.plot()._repr_html_(), found.timeline()
view._repr_html_(), repr(found)
assert "mpi4py.MPI" not in sys.modules
"""


def test_a_notebook_that_searches_loads_no_mpi():
    """When its kernel is killed, MPI's shared memory would stay behind. Nothing is said in red."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_RANKS], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_the_view_of_a_study():
    """Dots for the values, a line for the best so far; failures have no value."""
    space = tuning.Space.of({"x": {"type": "float", "low": 0.0, "high": 1.0}})
    study = Study(space, "random", 4, seed=0)
    for value in (3.0, None, 1.0, 2.0):
        trial, _ = study.ask()
        study.tell(trial, value, "complete" if value else "failed", why="<no>")
    page = View(study, Display(), now=lambda: 0.0)._repr_html_()
    assert page.count("<circle") == 3 and "4 of 4 trials" in page and "failed" in page
    line = curve([3.0, 1.0, 2.0], maximise=False).split('points="')[1].split('"')[0].split()
    heights = [float(point.split(",")[1]) for point in line]
    assert heights[0] < heights[1] == heights[2]  # SVG counts downwards


def test_trials_in_training_are_curves_by_epoch():
    """Trial 0 has ended, trial 1 is in training, trial 2 has reported once only."""
    space = tuning.Space.of({"x": {"type": "float", "low": 0.0, "high": 1.0}})
    study = Study(space, "random", 4, seed=0)
    asked = [study.ask()[0] for _ in range(3)]
    assert by_epoch(study.optuna.trials) == ""
    for epoch, value in ((1, 5.0), (2, 3.0), (3, 1.0)):
        study.prune(asked[0], epoch, value)
    study.tell(asked[0], 1.0)
    for epoch, value in ((1, 4.0), (2, 3.0)):
        study.prune(asked[1], epoch, value)
    study.prune(asked[2], 1, 2.0)
    ended, runs = by_epoch(study.optuna.trials).split("<polyline")[1:]
    assert 'points="8.0,8.0 168.0,60.0 328.0,112.0"' in ended and "#E69F00" not in ended
    assert 'points="8.0,34.0 168.0,60.0"' in runs and "#E69F00" in runs and ">1</text>" in runs
    view = View(study, Display(), now=lambda: 0.0)
    assert "by epoch" in view._repr_html_()


def test_sets_are_lines_over_an_axis_per_parameter():
    """By hand: two parameters, of which one exists only sometimes; the best line comes last."""
    space = tuning.Space.of(
        {
            "x": {"type": "float", "low": 0.0, "high": 2.0},
            "c": {"type": "category", "choices": ["<a>", "b", "d"]},
            "y": {"type": "float", "low": 1.0, "high": 100.0, "log": True, "when": {"c": "b"}},
        }
    )
    sets = {5.0: {"x": 2.0, "c": "b", "y": 10.0}, 3.0: {"x": 0.0, "c": "<a>"}}
    sets[None] = {"x": 1.0, "c": "d"}
    pages = []
    for maximise in (False, True):
        study = Study(space, "random", 3, maximise=maximise)
        for value, values in sets.items():
            study.tell(study.begin(values), value, "failed" if value is None else "complete")
        pages.append(parallel(study))
    page = pages[0]
    lines = [part.split('"')[0] for part in page.split('polyline points="')[1:]]
    assert lines[0] == "48.0,18.0 144.0,83.0 240.0,83.0 336.0,18.0"
    assert lines[1] == "48.0,148.0 144.0,148.0 240.0,167.5 336.0,148.0" and len(lines) == 2
    assert "#E69F00" in page.split("polyline")[2] and "&lt;a&gt;" in page
    assert "48.0,18.0" in pages[1].split("polyline")[2]

"""Every figure: it is drawn from a few numbers, has a title, can be kept, and refuses nonsense."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from drawn import colours, titles_of
from matplotlib import rcParams
from matplotlib.figure import Figure

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting as p
from tutorial_dl.course.foundations import LeastSquares, Polynomial, descend
from tutorial_dl.course.traffic import Trip
from tutorial_dl.model_parallel import schedules

ONES, X = np.ones(2), np.linspace(0, 1, 5)
LOSS = LeastSquares.of(Polynomial(1), X, 1 + 2 * X + 0.3 * np.cos(9 * X))
RUNS = {"run": descend(LOSS, np.zeros(2), 0.1, batch_size=2, epochs=2, gradient_tolerance=None)}
THREE = LeastSquares(np.eye(3), np.ones(3))
OF_THREE = {"run": descend(THREE, np.zeros(3), 0.1, epochs=2)}
PLAN = [Trip("multiply", ("g",), ("t",)), Trip("add", ("w", "t"), ("w",))]
HISTORY = [{"val_loss": loss, "seconds": 1.0} for loss in (2.0, 1.0)]
ROWS = [
    {"model": "dense", "strategy": name, "ranks": n, "speed_up": n, "predicted": n}
    for name, n in (("serial", 1), ("synchronous", 2))
]
RESULTS = [
    {"model": "dense", "strategy": "serial", "ranks": 1,
     "history": [{"epoch": e, "val_loss": 1 / e} for e in (1, 2)]}
]  # fmt: skip
STEP = {name: X for name in ("grid", "mean", "deviation", "improvement", "x", "y")} | {"next": 0.5}
RECORDS = [("Goyal", {"steps": 14e3, "rate": 32e3}), ("Ying", {"steps": 3500, "rate": 870e3})]

FIGURES = {
    "allreduce_ladder": lambda: p.allreduce_ladder([1, 2], {"ring": ONES}, {"ring": [[1], [1]]}),
    "allreduce_times": lambda: p.allreduce_times([1, 2], {"ring": ONES}),
    "ring_film": lambda: p.ring_film(2, between=1),
    "ring_strip": lambda: p.ring_strip(2),
    "side_by_side": lambda: p.side_by_side({"x": [1, 2], "predicted": {"ring": ONES}}),
    "timetable": lambda: p.timetable(3),
    "batch_errors": lambda: p.batch_errors([1, 2], {"LARS": [[0.9], [0.8]]}, per_rank=1),
    "normalised_apart": lambda: p.normalised_apart([[0.0, 2.0], [1.0, 5.0, 6.0]], 2.0),
    "records": lambda: p.records(RECORDS),
    "share_statistics": lambda: p.share_statistics([2, 4], [ONES] * 3, [ONES] * 3),
    "stable_rates": lambda: p.stable_rates([1, 2], [[1, 2]], {}),
    "compared": lambda: p.compared([1, 2], ONES, ONES, title="a", xlabel="x", ylabel="y"),
    "guessed": lambda: p.guessed(p.regrets({"a": (ONES, ONES)}), {1: 2.0, 3: ...}),
    "descent_film": lambda: p.descent_film(LOSS, RUNS, frames=2),
    "error_factors": lambda: p.error_factors(X, X, np.square, bound=0.8),
    "fit_errors": lambda: p.fit_errors([1, 2], ONES, ONES, 0.1),
    "fits": lambda: p.fits(X, X**2, {"square": np.square}, np.square),
    "loss_curves": lambda: p.loss_curves(LOSS, RUNS),
    "map_of_cuts": lambda: p.map_of_cuts([1, 2], [1, 2], [1, 2], 3, {"a": 0}),
    "parts_of_cuts": lambda: p.parts_of_cuts({"data 2": {"data": 1.0}}, "s", "Cuts"),
    "duels": lambda: p.duels({"one": np.eye(2)}),
    "forger_film": lambda: p.forger_film(X, [("first", X, np.tanh)], -3, 3, bins=6),
    "quality_at_equal_terms": lambda: p.quality_at_equal_terms({"a": (ONES, ONES)}, 0.2),
    "beside": lambda: p.beside({"a": 1.0}, {"a": [1.0]}, "one"),
    "fused_step": lambda: p.fused_step(3),
    "step_traffic": lambda: p.step_traffic({"fused": {"state": 4}}),
    "trips": lambda: p.trips({"numpy": PLAN}, "gwt"),
    "message_times": lambda: p.message_times([8, 16], [1e-6, 2e-6], {"model": (1e-6, 1e-9)}),
    "ranks": lambda: p.ranks(["a", "b"], [(0, 1)], "two"),
    "ways_to_miss": p.ways_to_miss,
    "who_waits": lambda: p.who_waits([("one", {0: 1}), ("two", {})], 2),
    "with_faults": lambda: p.with_faults([2, 1], [(1, [2, 1])], {}),
    "gradient_check": lambda: p.gradient_check(X, X, {"all": slice(None)}),
    "hinges": lambda: p.hinges(X, np.ones((5, 3)), X),
    "many_to_few": lambda: p.many_to_few(3),
    "on_equal_terms": lambda: p.on_equal_terms({"gem": HISTORY}, 100),
    "saturated": lambda: p.saturated([1, 2], {"slow": (ONES, ONES)}, {}),
    "served": lambda: p.served([1, 2], {"one": ONES}, {}),
    "service": lambda: p.service({"one": ([(0, 0.1, 0.1, 0.2)], 1)}, until=0.3),
    "unseen": lambda: p.unseen([1, 2], {"one": ONES}, {}),
    "compared_schedules": lambda: p.compared_schedules({"GPipe": schedules.gpipe(2, 3)}),
    "schedule_so_far": lambda: p.schedule_so_far(schedules.gpipe(2, 3)),
    "commits": lambda: p.commits({"a": (np.ones(3), ONES, [0, 0])}),
    "delay_map": lambda: p.delay_map(ONES + [0, 1], np.eye(2), ONES),
    "kept_pace": lambda: p.kept_pace({"a": {1: ONES}}, ONES, ["b"]),
    "periods": lambda: p.periods([1, 2], [1, 2], [1, 2], {"a": [1, 2]}),
    "random_order": lambda: p.random_order(np.ones((2, 2)), ONES, ONES),
    "shares_of_pi": lambda: p.shares_of_pi([1], [0.5], [0.1]),
    "springs": lambda: p.springs({"a": (np.ones((2, 2, 2)), np.eye(2))}, [1, 2], {}, np.eye(2)),
    "staleness_histogram": lambda: p.staleness_histogram({0: 1}, {}),
    "mapped_circles": lambda: p.mapped_circles({"one": np.eye(2)}),
    "rounds_of_newton_schulz": lambda: p.rounds_of_newton_schulz((1.5, -0.5, 0), 2),
    "estimates": lambda: p.estimates({"one": ONES}, {"one": 0.1}),
    "grid_and_random": lambda: p.grid_and_random({"grid": np.eye(2)}, np.square),
    "process_steps": lambda: p.process_steps([STEP], "rate", "loss"),
    "regrets": lambda: p.regrets({"a": (ONES, ONES)}),
    "winners": lambda: p.winners([0.1, 1], {"one": np.array([0, 1])}, ONES, "rate"),
    "causal_work": lambda: p.causal_work(2),
    "memory_ladder": lambda: p.memory_ladder(["stage 0"], {"weights": [2048]}, [2048]),
    "ring_attention_film": lambda: p.ring_attention_film(2),
    "layer_profiles": lambda: p.layer_profiles({"a": ONES, "b": ONES}),
    "separations_by_feature": lambda: p.separations_by_feature({"floor": {"x": 0.01}}),
    "shower_histograms": lambda: p.shower_histograms({"width": {"a": X, "b": X}}),
    "shower_pictures": lambda: p.shower_pictures({"one": np.ones((2, 2, 2))}),
    "cut_products": lambda: p.cut_products(2),
    "distances": lambda: p.distances({"a": [1e-16, 1e-15]}),
    "histories": lambda: p.histories(RESULTS),
    "overlapped": lambda: p.overlapped({"alone": 1.0, "in turn": 1.5, "overlapped": 1.7}, 1.1),
    "speed_up": lambda: p.speed_up(ROWS, 2),
    "throughput": lambda: p.throughput([1, 2], [100.0, 190.0], [95.0, 150.0], cores=1),
}
NOT_DRAWN = {"Message", "rounds", *p.FIGURES["elsewhere"]}


@pytest.mark.parametrize("name", FIGURES)
def test_it_is_drawn_with_a_title_and_can_be_kept(name):
    before = dict(rcParams)
    figure = FIGURES[name]()
    assert dict(rcParams) == before, "the global style has changed"
    if isinstance(figure, style.Film):
        assert figure.frames and figure._repr_mimebundle_()["text/html"].startswith("<img")
        return
    assert isinstance(figure, style.Figure)
    assert figure.get_suptitle() or any(titles_of(figure))
    pickle.dumps(figure)  # for slides


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in FIGURES if not name.endswith("film")])
def test_it_is_a_picture(name):
    assert colours(FIGURES[name]()._repr_png_()) > 10


def test_each_name_is_offered_by_one_file():
    offered = [name for names in p.FIGURES.values() for name in names]
    assert sorted(offered) == sorted({*FIGURES, *NOT_DRAWN})
    assert set(offered) <= set(dir(p)) and p.fits is p.curves.fits
    with pytest.raises(AttributeError, match="attribute pie"):
        p.pie  # noqa: B018


def refusals(*pairs):
    return [pytest.param(call, message, id=message[:40]) for call, message in pairs]


@pytest.mark.parametrize(("call", "message"), refusals(
    (lambda: p.timetable(1), "ranks must be at least 2 to have messages, got 1"),
    (lambda: p.ring_strip(1), "at least 2 for a ring, got 1"),
    (lambda: p.ring_film(1), "at least 2 for a ring, got 1"),
    (lambda: p.allreduce_times([1], {"star": [1]}), "unknown algorithm 'star'; choose"),
    (lambda: p.allreduce_times([1, 2], {"ring": [1]}), "ring must have 2 times"),
    (lambda: p.allreduce_times([1], {"ring": [1]}, over="cores"), "got 'cores'"),
    (lambda: p.side_by_side(), "at least one panel"),
    (lambda: p.allreduce_ladder([1], {}, {}), "the same algorithms, one or more"),
    (lambda: p.allreduce_ladder([1], {"ring": [1]}, {"tree": [[1]]}), "ring and tree"),
    (lambda: p.on_equal_terms({}, 100), "no runs"),
    (lambda: p.on_equal_terms({"gem": []}, 100), "gem: no 'val_loss' .* which has no epochs"),
    (lambda: p.on_equal_terms({"gem": [{"val_loss": 1}]}, 100), "'seconds' .* has val_loss"),
    (lambda: p.normalised_apart([[0.0, 2.0], [1.0]], 2.0), "rank 1 must have at least 2 samples"),
    (lambda: p.compared([1], {"a": [1]}, {"b": [1]}, title="", xlabel="", ylabel=""),
     r"the same names; got \['a'\] and \['b'\]"),
    (lambda: p.staleness_histogram({}, {}), "no updates"),
    (lambda: p.batch_errors([1], {"LARS": [[0.9], [0.8]]}),
     r"LARS: accuracies must have shape \(1, seeds\), .*; got \(2, 1\)"),
    (lambda: p.batch_errors([1], {"LARS": [0.9]}), r"accuracies must have shape .*; got \(1,\)"),
    (lambda: p.records([*RECORDS, ("Jia", {"steps": 1.0})]), "Jia must have steps, rate; got st"),
    (lambda: p.descent_film(THREE, OF_THREE), "loss must have 2 parameters to have contours"),
    (lambda: p.loss_curves(LOSS, RUNS, by="time"), 'must be "steps" or "samples", got .time'),
    (lambda: p.descent_film(LOSS, RUNS, by="time"), 'must be "steps" or "samples", got .time'),
    (lambda: p.descent_film(LOSS, RUNS, frames=0), "at least one frame"),
    (lambda: p.who_waits([("title", {0: 3})], 3), "ranks from 0 to 2, and different"),
    (lambda: p.who_waits([("title", {-1: 0})], 3), "ranks from 0 to 2, and different"),
    (lambda: p.who_waits([("title", {1: 1})], 3), "ranks from 0 to 2, and different"),
    (lambda: p.ranks(["a", "b", "c"], [(0, 3)]), "ranks from 0 to 2, and different"),
    (lambda: p.message_times([1, 2], [1], {"model": (1, 1)}), "2 sizes, got 1 times"),
    (lambda: p.served([1], {"one": [1]}, {"three": {1: 1}}), "no prediction for three; .* for one"),
    (lambda: p.saturated([1], {"slow": ([1], [1])}, {"none": {1: 1}}), "no prediction for none"),
    (lambda: p.many_to_few(1), "workers must be at least 2, got 1"),
    (lambda: p.trips({"numpy": PLAN}, "gw"), "numpy: trips use t, which vectors must"),
    (lambda: p.beside({"b": 1.0}, {"a": [1.0]}, ""), "predicted, but not measured: b"),
    (lambda: p.step_traffic({"x": dict.fromkeys("abcdef", 1)}), "most 5 parts, got 6"),
    (lambda: p.ring_attention_film(8), "ranks must be from 2 to 7, got 8"),
    (lambda: p.causal_work(1), "ranks must be from 2 to 7, got 1"),
    (lambda: p.cut_products(5), "ranks must be from 2 to 4, got 5"),
))  # fmt: skip
def test_what_cannot_be_drawn_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Matplotlib and MPI ----------------------------------------------------------------------------


def test_what_figures_load():
    """Neither pyplot, which keeps figures alive, nor MPI: a notebook's kernel is no rank."""
    code = (
        "import sys, tutorial_dl.course.plotting as p\n"
        "assert 'matplotlib' not in sys.modules\n"
        "p.fits; assert 'matplotlib' in sys.modules\n"
        "p.fused_step(2); p.distances({'a': [1.0]}); p.causal_work(2); p.ring_attention_film(2)\n"
        "assert not {'matplotlib.pyplot', 'mpi4py.MPI'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_a_figure_of_one_panel_takes_its_data_a_title_and_axes():
    """Their caller gives no axes, though the function that draws is written with them."""
    names = list(inspect.signature(p.regrets).parameters)
    assert names == ["curves", "xlabel", "title", "ax"]
    _, (left, right) = (figure := Figure()), figure.subplots(1, 2)
    assert p.regrets({"a": (ONES, ONES)}, title="another", ax=left) is figure
    assert p.loss_curves(LOSS, RUNS, ax=right) is figure and right.get_lines()
    assert left.get_title(loc="left") == "another"
    (title,) = titles_of(p.regrets({"a": (ONES, ONES)}))
    assert re.match("How far from the minimum", title)

"""Figures of masters and workers, and of asynchronous training, show the data they are given."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import legend, line, points, row_names
from matplotlib.colors import to_hex

from tutorial_dl import figure_style as style
from tutorial_dl.course import foundations, plotting


def test_vectors_through_the_busiest_rank_are_those_of_the_messages():
    """Count the messages of both algorithms, on W ranks in a ring and on W + 1 with a master."""
    figure = plotting.many_to_few(workers=6)
    star, ring, lines = figure.axes
    for W, vectors in line(lines, "master: 2W").T:
        plan = plotting.rounds("naive", int(W) + 1)
        assert vectors == sum(0 in (m.source, m.target) for messages in plan for m in messages)
    for W, vectors in line(lines, "ring: 4(W-1)/W").T:
        plan = [m for messages in plotting.rounds("ring", int(W)) for m in messages]
        found = sum(1 / m.chunks for m in plan if m.source == 0)
        found += sum(1 / m.chunks for m in plan if m.target == 0)
        assert vectors == pytest.approx(found)
    assert [t.get_text() for t in star.texts if t.get_text()] == ["M", *"012345"]
    arrows = [len([t for t in ax.texts if not t.get_text()]) for ax in (star, ring)]
    assert arrows == [2 * 6, 6]


def test_the_order_of_service():
    rows = foundations.first_come_first_served([[0.002] * 3] * 2, [0.001] * 3)
    figure = plotting.service({"two": (rows, 2)}, until=0.01)
    (ax,) = figure.axes
    bars = {(round(b.get_y() + 0.35), round(b.get_x(), 6)): b for b in ax.patches}
    widths = {where: round(bar.get_width(), 6) for where, bar in bars.items()}
    # The master serves worker 0, worker 1, and worker 0 again; worker 1 waited a millisecond.
    assert widths == {
        (0, 2.0): 1.0, (0, 3.0): 1.0, (0, 5.0): 1.0,
        (1, 0.0): 2.0, (1, 2.0): 1.0, (1, 3.0): 2.0, (1, 5.0): 1.0,
        (2, 0.0): 2.0, (2, 2.0): 1.0, (2, 3.0): 1.0,
    }  # fmt: skip
    waits = [where for where, bar in bars.items() if bar.get_hatch()]
    assert waits == [(2, 2.0)]
    served = [to_hex(bars[0, at].get_facecolor()) for at in (2.0, 3.0, 5.0)]
    assert served[0] == served[2] != served[1]
    assert row_names(ax) == ["master", "worker 0", "worker 1"]


def test_a_master_that_is_full():
    predicted = {"slow": ([1.0, 2.0, 2.0], [1.0, 1.6, 1.875]), "fast": ([1, 2, 3], [1, 2, 3])}
    measured = {"slow": {1: 1.0, 3: 1.9}, "slow, random": {2: 1.5}}
    figure = plotting.saturated([1, 2, 3], predicted, measured, full={"slow": 2.0, "fast": 99.0})
    (ax,) = figure.axes
    assert (line(ax, "slow: regular times") == [[1, 2, 3], [1, 2, 2]]).all()
    assert (line(ax, "slow: random times") == [[1, 2, 3], [1, 1.6, 1.875]]).all()
    assert (line(ax, "slow: measured") == [[1, 3], [1.0, 1.9]]).all()
    assert (line(ax, "slow, random: measured") == [[2], [1.5]]).all()
    colours = {line.get_label(): line.get_color() for line in ax.get_lines()}
    assert colours["slow: measured"] == colours["slow: random times"]
    assert colours["slow: measured"] != colours["fast: regular times"]
    assert len(ax.get_lines()) == 4 + 2 + 1  # and one mark, because the other lies outside
    assert [(text.get_text(), text.xy) for text in ax.texts] == [("W*", (2.0, 0))]


def test_what_is_served_is_predicted_lines_and_measured_markers():
    predicted = {"one": [1.0, 2.0, 2.0], "two": [np.nan, 2.0, 4.0]}
    figure = plotting.served([1, 2, 3], predicted, {"two": {2: 1.5}}, unit="samples per second")
    (ax,) = figure.axes
    colours = {line.get_label(): line.get_color() for line in ax.get_lines()}
    assert colours["two, predicted"] == colours["two, measured"] != colours["one, predicted"]
    assert len(ax.get_lines()) == 3 and ax.get_ylabel() == "samples per second"


SLOW = [{"val_loss": v, "val_accuracy": 1 - v, "seconds": 2.0} for v in (0.4, 0.2, 0.1)]
QUICK = [{"val_loss": v, "val_accuracy": 1 - v, "seconds": 0.5} for v in (0.6, 0.3)]
RUNS = {"synchronous": SLOW, "downpour": QUICK}


def test_by_samples_and_by_seconds():
    left, right = plotting.on_equal_terms(RUNS, samples=100).axes
    assert points(left, "synchronous") == [[100, 200, 300], [0.4, 0.2, 0.1]]
    assert points(left, "downpour") == [[100, 200], [0.6, 0.3]]
    assert points(right, "synchronous") == [[2, 4, 6], [0.4, 0.2, 0.1]]  # from the first sample on
    assert points(right, "downpour") == [[0.5, 1], [0.6, 0.3]]
    assert legend(right) == [*RUNS, "the quickest run ends"]
    grey = [of for of in right.get_lines() if of.get_color() == style.GREY]
    assert [of.get_xdata()[0] for of in grey] == [1.0]  # up to the end of the quickest run
    assert left.get_yscale() == "log" and left.get_ylabel() == "validation loss"


def test_below_each_other_with_the_legend_below_both():
    figure = plotting.on_equal_terms(RUNS, samples=100, columns=1)
    above, below = figure.axes
    assert points(above, "downpour") == [[100, 200], [0.6, 0.3]]
    assert points(below, "downpour") == [[0.5, 1], [0.6, 0.3]] and below.get_ylabel()
    figure.draw_without_rendering()
    assert legend(figure) == [*RUNS, "the quickest run ends"]
    assert figure.legends[0].get_window_extent().y1 <= below.get_window_extent().y0
    assert below.get_window_extent().y1 <= above.get_window_extent().y0


def test_a_narrow_range_of_losses_has_three_labels_or_more():
    rows = [{"val_loss": loss, "seconds": 1.0} for loss in (1.4, 0.6, 0.27)]
    left, _ = plotting.on_equal_terms({"gem": rows}, 100).axes
    assert row_names(left) == ["0.3", "0.5", "0.7", "1"]


def test_seconds_have_few_labels_so_that_none_overlap():
    rows = [{"val_loss": 1.0, "seconds": 0.0237} for _ in range(8)]
    _, right = plotting.on_equal_terms({"gem": rows}, 100).axes
    assert 2 < len(right.get_xticks()) <= 6


def test_titles_are_those_given():
    left, right = plotting.on_equal_terms(RUNS, 100, titles=("one", "other")).axes
    assert (left.get_title("left"), right.get_title("left")) == ("one", "other")

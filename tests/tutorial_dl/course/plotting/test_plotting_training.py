"""Figures of training show the data they are given, and claim nothing beyond it."""

import numpy as np
import pytest
from drawn import column_names, line, row_names, texts
from matplotlib.colors import to_rgb

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting


def result(model, strategy, ranks, losses):
    history = [{"epoch": e, "val_loss": loss} for e, loss in enumerate(losses, start=1)]
    return {"model": model, "strategy": strategy, "ranks": ranks, "history": history}


def row(model, strategy, ranks, speed_up, predicted):
    return {
        "model": model, "strategy": strategy, "ranks": ranks, "speed_up": speed_up,
        "predicted": predicted,
    }  # fmt: skip


LOSSES = [2.0, 1.0, 0.4, 0.2, 0.1]
RESULTS = [
    result("dense", "serial", 1, LOSSES),
    result("dense", "synchronous", 2, [1.01 * loss for loss in LOSSES]),
    result("dense", "synchronous", 4, LOSSES),
    result("cnn", "serial", 1, LOSSES[:3]),
]
ROWS = [
    row("dense", "serial", 1, 1.0, 1.0),
    row("dense", "synchronous", 1, 1.1, 1.0),
    row("dense", "synchronous", 2, 1.5, 1.6),
    row("dense", "synchronous", 4, 0.9, 1.3),
    row("cnn", "serial", 1, 1.0, 1.0),
    row("cnn", "synchronous", 2, 1.4, 1.7),
]


# Histories -------------------------------------------------------------------------------------


def test_histories_have_a_panel_a_model_and_a_line_a_run():
    dense, cnn = plotting.histories(RESULTS).axes
    assert [entry.get_label() for entry in dense.get_lines()] == [
        "serial, 1 rank", "synchronous, 2 ranks", "synchronous, 4 ranks",
    ]  # fmt: skip
    assert (line(dense, "serial, 1 rank") == [[1, 2, 3, 4, 5], LOSSES]).all()
    assert (line(dense, "synchronous, 2 ranks")[1] == 1.01 * np.array(LOSSES)).all()
    assert (line(cnn, "serial, 1 rank")[1] == LOSSES[:3]).all()
    assert dense.get_yscale() == "log"


def test_only_runs_that_agree_are_called_the_same():
    def titles(results):
        return [ax.get_title(loc="left") for ax in plotting.histories(results).axes]

    assert titles(RESULTS) == [
        "dense: the same loss on any number of ranks",
        "cnn: loss by epoch",  # a single run has none to agree with
    ]
    off = [*LOSSES[:-1], 1.1 * LOSSES[-1]]
    assert titles([RESULTS[0], result("dense", "downpour", 4, off)]) == ["dense: loss by epoch"]
    assert titles([RESULTS[0], result("dense", "serial", 1, LOSSES[:2])]) == [
        "dense: loss by epoch"
    ]


def test_lines_on_each_other_can_all_be_seen():
    """The first run is drawn as a wide band; no two others have a marker at the same epoch."""
    losses = list(np.geomspace(2, 0.1, 40))
    runs = [result("dense", "synchronous", p, losses) for p in (1, 2, 3, 4)]
    first, *others = plotting.histories(runs).axes[0].get_lines()
    assert first.get_linewidth() > 3 * max(other.get_linewidth() for other in others)
    marked = []
    for other in others:
        start, every = other.get_markevery()
        marked.append(set(range(start, len(losses), every)))
        assert other.get_marker() != "None" and 5 <= len(marked[-1]) <= 20
    assert len(set.union(*marked)) == sum(map(len, marked))


def test_more_runs_than_colours_and_fewer_epochs_than_runs():
    runs = [result("dense", "synchronous", p, LOSSES[:2]) for p in range(1, 12)]
    figure = plotting.histories(runs)
    assert len(figure.axes[0].get_lines()) == 11 and figure._repr_png_()
    assert all(drawn.get_linewidth() > 0 for drawn in figure.axes[0].get_lines())


def test_losses_are_labelled_in_plain_numbers():
    figure = plotting.histories(RESULTS)
    figure.canvas.draw()
    y = figure.axes[0].yaxis
    labels = {text.get_text() for text in (*y.get_majorticklabels(), *y.get_minorticklabels())} - {
        ""
    }
    assert {"0.1", "0.2", "0.5", "1", "2"} <= labels


# Speed-up --------------------------------------------------------------------------------------


def test_speed_up_shows_predicted_lines_and_measured_markers():
    (ax,) = plotting.speed_up(ROWS, 2).axes
    assert (line(ax, "dense, predicted") == [[1, 2, 4], [1.0, 1.6, 1.3]]).all()
    assert (line(ax, "cnn, predicted") == [[1, 2], [1.0, 1.7]]).all()
    ranks, measured = line(ax, "dense, measured")
    assert (measured == [1.0, 1.1, 1.5, 0.9]).all()
    assert np.abs(ranks - [1, 1, 2, 4]).max() < 0.1
    aside = line(ax, "cnn, measured")[0]
    assert (np.abs(aside - [1, 2]) < 0.1).all() and (aside > ranks[[0, 2]]).all()
    ideal = line(ax, "p times as fast")
    assert (ideal[0] == ideal[1]).all()


def test_nothing_drawn_is_cut_off():
    (ax,) = plotting.speed_up([*ROWS, row("dense", "synchronous", 8, 5.0, 7.5)], 2).axes
    assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] > 7.5
    assert ax.get_xlim()[0] < 1 and ax.get_xlim()[1] > 8


def test_taking_turns_is_said_where_ranks_do():
    (ax,) = plotting.speed_up(ROWS, 2).axes
    assert texts(ax) == ["beyond 2 cores: ranks take turns"]
    assert ax.get_title(loc="left") == "Speed-up ends where the cores do"
    for cores in (4, 64):
        (ax,) = plotting.speed_up(ROWS, cores).axes
        assert texts(ax) == []
        assert ax.get_title(loc="left") == "Up to 1.5 times as fast, on 2 ranks"
    assert texts(plotting.speed_up(ROWS, 1).axes[0]) == ["beyond 1 core: ranks take turns"]


@pytest.mark.parametrize(
    ("two", "four", "title"),
    [
        (1.5, 1.2, "Speed-up ends where the cores do"),
        (1.5, 1.6, "Up to 1.6 times as fast, on 4 ranks"),
        (1.5, 1.49, "Up to 1.5 times as fast, on 2 ranks"),
        (1.1, 0.8, "Up to 1.1 times as fast, on 2 ranks"),
        (1.02, 0.9, "No speed-up here: one rank was as fast as several"),
        (0.7, 0.9, "No speed-up here: one rank was as fast as several"),
    ],
)
def test_the_title_says_what_was_measured(two, four, title):
    rows = [
        ROWS[0],
        row("dense", "synchronous", 2, two, 2),
        row("dense", "synchronous", 4, four, 2),
    ]
    assert plotting.speed_up(rows, 2).axes[0].get_title(loc="left") == title


def test_panels_may_lie_below_each_other_for_a_narrow_page():
    beside, below = plotting.histories(RESULTS), plotting.histories(RESULTS, columns=1)
    assert beside.get_figwidth() == 2 * below.get_figwidth()
    assert [len(ax.get_lines()) for ax in below.axes] == [len(ax.get_lines()) for ax in beside.axes]


def test_the_legend_of_speed_ups_lies_outside():
    figure = plotting.speed_up(ROWS, 2)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().y1 <= figure.axes[0].get_window_extent().y0
    assert "p times as fast" in [text.get_text() for text in legend.get_texts()]


# Samples per second, and the parts of a step ---------------------------------------------------


def sum_of(containers):
    return [bar for container in containers for bar in container]


def test_throughput_stands_bar_beside_bar():
    (ax,) = plotting.throughput([1, 2, 4], [100e3, 190e3, 9e3], [95e3, 150e3, 8e3], cores=2).axes
    predicted, measured = ax.containers
    assert [bar.get_height() for bar in predicted] == [100e3, 190e3, 9e3]
    assert [bar.get_height() for bar in measured] == [95e3, 150e3, 8e3]
    for left, right in zip(predicted, measured, strict=True):
        assert left.get_x() + left.get_width() < right.get_x()
    assert column_names(ax) == ["1 rank", "2 ranks", "4 ranks"]
    assert {"100k", "190k", "95k", "150k", "9000", "8000"} <= set(texts(ax))
    assert "more ranks than\nthe 2 cores" in texts(ax)
    (ax,) = plotting.throughput([1, 2], [1.0, 2.0], [1.0, 2.0], cores=2).axes
    assert not any("more ranks" in text for text in texts(ax))


# The mean of means, distances, and the window --------------------------------------------------


def test_equal_weights_stay_on_a_logarithmic_axis():
    (ax,) = plotting.distances({"a": [1e-3, 1e-2], "b": [0.0, 1e-15]}).axes
    assert (line(ax, "a") == [[1, 2], [1e-3, 1e-2]]).all()
    zero, other = line(ax, "b")[1]
    assert 0 < zero < np.finfo(float).eps and other == 1e-15
    assert not ax.texts  # it would lie under markers


def test_the_bars_of_overlap_are_what_was_measured():
    took = {"alone": 1e-3, "in turn": 1.5e-3, "overlapped": 1.75e-3}
    (ax,) = plotting.overlapped(took, 1.25e-3).axes
    assert [bar.get_width() for bar in ax.patches] == [1.0, 1.5, 1.75]  # ms
    assert row_names(ax) == list(took)
    (ideal,) = ax.collections
    assert (ideal.get_segments()[0][:, 0] == 1.25).all()
    assert ax.get_xlim()[1] > 1.75


@pytest.mark.parametrize("ranks", [2, 3, 4, 9])
def test_the_window_shows_who_works_where(ranks):
    """Each rank works in its own row, then in its slice of all rows, then in its row again."""

    def rank_of(ax, x, y):
        (cell,) = [p for p in ax.patches if p.get_xy() == (x, y)]
        pale = np.array(cell.get_facecolor()[:3])
        solid = [0.45 * np.array(to_rgb(c)) + 0.55 for c in style.COLOURS]
        return int(np.argmin([np.abs(pale - s).max() for s in solid]))

    many = len(style.COLOURS)
    writes, updates, copies = plotting.fused_step(ranks).axes
    for row_ in range(ranks):
        for column in range(ranks):
            assert rank_of(writes, column, row_) == row_ % many
            assert rank_of(updates, column, row_) == column % many
            assert rank_of(copies, column, row_) == row_ % many
    assert texts(updates).count("$s$") == ranks
    assert f"$g_{ranks - 1}$" in texts(writes)
    assert sum(texts(ax).count("barrier") for ax in (writes, updates, copies)) == 2

"""Figures of models that ranks divide: cuts, split layers, shards, and schedules of pipelines."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import row_names, texts
from matplotlib.colors import to_hex, to_rgba
from matplotlib.container import BarContainer

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting
from tutorial_dl.course.plotting import sharding
from tutorial_dl.model_parallel import Positions, ScheduleError, check, schedules, simulate

PARTS = {
    "data 2": {"computing": 3.0, "bubble": 0.0, "data": 2.0, "tensor": 0.0},
    "tensor 2": {"computing": 3.0, "bubble": 0.0, "data": 0.0, "tensor": 1.0},
}


def test_bars_end_at_the_sum_of_their_parts():
    ax = plotting.parts_of_cuts(PARTS, "s", "Two cuts", [5.5, 4.5], (6.0, "limit")).axes[0]
    bars = {b.get_label(): b for b in ax.containers if isinstance(b, BarContainer)}
    assert list(bars) == ["computing", "data", "tensor"]  # no cut has a bubble
    ends = [bar.get_x() + bar.get_width() for bar in bars["tensor"]]
    assert ends == [5.0, 4.0]
    points, line = ax.get_lines()
    assert list(points.get_xdata()) == [5.5, 4.5] and list(line.get_xdata()) == [6.0, 6.0]
    assert row_names(ax) == list(PARTS)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first is at the top
    assert ax.get_xlim()[1] > 6


def test_cuts_are_points_and_named_ones_have_their_names():
    memory, seconds = [10.0, 100.0, 40.0], [8.0, 7.0, 30.0]
    figure = plotting.map_of_cuts(memory, seconds, [2, 2, 8], 80, {"best": 0, "slow": 2})
    ax = figure.axes[0]
    shown = {line.get_label(): np.column_stack(line.get_data()).tolist() for line in ax.get_lines()}
    assert shown["tensor 2"] == [[10, 8], [100, 7]] and shown["tensor 8"] == [[40, 30]]
    assert any(list(line.get_xdata()) == [80, 80] for line in ax.get_lines())
    names = {text.get_text(): getattr(text, "xy", None) for text in ax.texts}
    assert names["best"] == (10, 8) and names["slow"] == (40, 30)
    assert "over 80 GB" in names


def squares(ax):
    """(row, column) -> (colour, words) of the pairs that are not empty."""
    words = {t.get_position(): t.get_text() for t in ax.texts}
    found = {}
    for patch in ax.patches:
        colour = to_hex(patch.get_facecolor()).upper()
        if colour != sharding.EMPTY:
            x, y = patch.get_xy()
            found[y, x] = colour, words[x + 0.5, y + 0.5]
    return found


def test_the_film_ends_with_every_pair_computed_once():
    with style.panels(1, 2) as (_, panels):
        ring, scores = panels[0]
        for step, _ in enumerate(sharding._turns(ring, scores, 3)):
            found = squares(scores)
            assert len(found) == 3 * (step + 1)
            for rank in range(3):  # as in context.py: the block came from `step` ranks to the left
                block = (rank - step) % 3
                assert found[rank, block] == (style.colour(block), f"{step}")
    assert plotting.ring_attention_film(2).frames == 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_causal_work_is_that_of_the_pairs(ranks):
    in_order, zigzag = plotting.causal_work(ranks).axes
    for ax, order in ((in_order, "in order"), (zigzag, "zigzag")):
        positions = Positions(4 * ranks, ranks, order)
        of_rank = [sum(int(words) == r for _, words in squares(ax).values()) for r in range(ranks)]
        assert of_rank == [
            sum(len(positions.pairs(r, other, True)) for other in range(ranks))
            for r in range(ranks)
        ]
    assert zigzag.get_title(loc="left").endswith(", ".join([f"{2 * ranks + 1}"] * ranks))


def test_the_ladder_has_bars_and_lines():
    measured = {"weights": [2048, 1024], "gradients": [1024, 1024], "state": [4096, 512]}
    ax = plotting.memory_ladder(["stage 0", "stage 1"], measured, [7168, 2600]).axes[0]
    assert [patch.get_width() for patch in ax.patches] == [2, 1, 1, 1, 4, 0.5]
    assert [line.get_xdata()[0] for line in ax.get_lines()] == [7, 2600 / 1024]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_a_rank_needs_has_its_colour(ranks):
    figure = plotting.cut_products(ranks)
    for ax, cuts in zip(figure.axes, (2, 3, 3), strict=True):
        colours = [to_hex(patch.get_facecolor()).upper() for patch in ax.patches]
        for rank in range(ranks):  # W and y; x, W and the term; h, B and the term
            assert colours.count(style.colour(rank).upper()) == cuts
    by_columns, by_rows, _ = figure.axes
    assert texts(by_rows).count("+") == ranks - 1
    # A product fits: as many columns on the left as rows on the right, and both have one height.
    x, *slices = by_columns.patches
    assert sum(patch.get_width() for patch in slices[:ranks]) > x.get_width()
    assert {patch.get_height() for patch in slices[:ranks]} == {x.get_width()}


def test_schedules_have_one_scale_and_one_legend():
    shown = {"GPipe": schedules.gpipe(2, 3), "ZB-H1": simulate(schedules.zb_h1(2, 3), 2, 2, 2)}
    figure = plotting.compared_schedules(shown)
    above, below = figure.axes
    assert above.get_title(loc="left") == "GPipe: bubble 25 %"
    assert above.get_xlim() == below.get_xlim() == (0, 20)  # 3 x 6 + 2
    assert len(figure.legends) == 1 and above.get_xlabel() == ""
    assert texts(above).count("2") == texts(below).count("2") == 6


def so_far(*lists):
    made = schedules.of(lists)
    with pytest.raises(ScheduleError) as caught:
        check(made)
    return plotting.schedule_so_far(made, caught.value).axes[0]


def framed(ax):
    """(x, y, colour) of boxes that are not filled."""
    boxes = [p for p in ax.patches if not p.get_fill() or p.get_facecolor()[3] == 0]
    return [(round(p.get_x()), round(p.get_y() + 0.4), p.get_edgecolor()) for p in boxes]


def test_a_wrong_action_is_red_and_those_that_wait_are_grey():
    ax = so_far("F0 F1 B0 W0 B1 W1", "F0 B0 W0 W1 F1 B1")
    assert ax.get_title(loc="left") == "as far as it runs: rank 1 goes wrong"
    assert {"W1", "B1 waits"} <= set(texts(ax))
    assert framed(ax) == [(6, 0, to_rgba(style.GREY)), (4, 1, to_rgba(style.RED))]


def test_what_is_missing_has_a_question_mark():
    ax = so_far("F0 F1 B0 W0 B1", "F0 B0 W0 F1 B1 W1")
    assert texts(ax)[-1] == "?" and len(framed(ax)) == 1


def test_a_deadlock_stops_every_rank():
    ax = so_far("F0 B0 W0 F1 B1 W1", "F0 F1 B0 W0 B1 W1")
    assert ax.get_title(loc="left") == "as far as it runs: deadlock"
    assert {"B0 waits", "F1 waits"} <= set(texts(ax))


def test_a_right_one_has_its_time():
    ax = plotting.schedule_so_far(schedules.zb_h1(3, 4)).axes[0]
    assert ax.get_title(loc="left") == "14 units of time, bubble 14 %" and framed(ax) == []

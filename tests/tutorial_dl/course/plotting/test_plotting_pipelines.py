"""Figures of pipelines show schedules as they run, and where a wrong one stops."""

import pytest

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting
from tutorial_dl.model_parallel import ScheduleError, check, schedules, simulate


def texts(ax):
    return [text.get_text() for text in ax.texts]


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
    from matplotlib.colors import to_rgba

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


def test_bubbles_are_lines_and_markers():
    predicted = {"GPipe": [0.3, 0.2], "ZB-H1": [0.1, 0.05]}
    ax = plotting.bubbles([2, 4], predicted).axes[0]
    assert [list(line.get_ydata()) for line in ax.get_lines()] == [[0.3, 0.2], [0.1, 0.05]]
    ax = plotting.bubbles([2, 4], predicted, {"GPipe": [0.35, 0.21], "ZB-H1": [0.2, 0.1]}).axes[0]
    assert [line.get_linestyle() for line in ax.get_lines()] == ["-", "None", "--", "None"]
    assert [list(line.get_ydata()) for line in ax.get_lines()][1] == [0.35, 0.21]

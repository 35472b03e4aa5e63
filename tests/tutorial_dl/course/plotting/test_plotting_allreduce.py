"""Figures of allreduces show the messages of numba_kernels/allreduce/schedules.py."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import legend, pictures_of

from tutorial_dl.course import plotting

LADDER = (
    "naive", "tree", "ring", "recursive_doubling", "rabenseifner", "mpi", "staged", "shared_memory",
)  # fmt: skip


def arrows(ax):
    """(x, y, x end, y end) of all arrows with a head."""
    return [
        (*note.xyann, *note.xy)
        for note in ax.texts
        if note.arrow_patch is not None and note.arrowprops["arrowstyle"] == "-|>"
    ]


def test_the_timetable_shows_every_message_at_its_time():
    figure = plotting.timetable(ranks=4)
    short, long = figure.axes[:3], figure.axes[3:6]
    assert [ax.get_title("left") for ax in short] == [
        "naive: 6 latencies", "tree: 4 latencies", "ring: 6 latencies",
    ]  # fmt: skip
    assert [ax.get_title("left") for ax in long] == [
        "naive: 6 vectors", "tree: 4 vectors", "ring: 1.5 vectors",
    ]  # fmt: skip
    # Only the ring goes round: rank 3 of naive sends straight to rank 0.
    assert arrows(short[0])[2] == (3, 2, 0, 3) and (3, 2, 0, 3) not in arrows(short[2])
    assert sorted(arrows(short[1])) == sorted(
        [(1, 0, 0, 1), (3, 0, 2, 1), (2, 1, 0, 2), (0, 2, 2, 3), (0, 3, 1, 4), (2, 3, 3, 4)]
    )
    for ax, step in ((short[2], 1), (long[2], 0.25)):  # in every round one ends on every rank
        ends = sorted((end, x) for _, _, x, end in arrows(ax))
        assert ends == [(step * k, rank) for k in range(1, 7) for rank in range(4)]
    assert max(end for *_, end in arrows(long[2])) == pytest.approx(1.5)
    low, high = short[0].get_ylim()
    assert low > high  # time runs down


def test_two_ranks_have_no_way_round_the_back():
    ring = plotting.timetable(ranks=2).axes[2]
    assert sorted(arrows(ring)) == sorted([(0, 0, 1, 1), (1, 0, 0, 1), (0, 1, 1, 2), (1, 1, 0, 2)])


def digits(ax):
    """The texts in the tiles of a table, as rank -> chunk -> digits."""
    ranks = len(ax.get_xticks())
    words = [["" for _ in range(ranks)] for _ in range(ranks)]
    for text in sorted(ax.texts, key=lambda text: text.get_position()[0]):
        x, y = text.get_position()
        words[round(x)][round(y)] += text.get_text()
    return words


def test_the_strip_of_the_ring():
    figure = plotting.ring_strip(ranks=3)
    tables = [ax for ax in figure.axes if ax.axison]
    assert len(tables) == 5 and [ax.get_title("left") for ax in tables] == [
        "before", "add, step 1", "add, step 2", "copy, step 3", "copy, step 4",
    ]  # fmt: skip
    assert digits(tables[0]) == [["001"] * 3, ["010"] * 3, ["100"] * 3]
    # numba_kernels/allreduce/ring.py has this table: ranks 0, 1, 2 add chunks 1, 2, 0.
    assert digits(tables[1]) == [
        ["001", "101", "001"], ["010", "010", "011"], ["110", "100", "100"],
    ]  # fmt: skip
    for rank in range(3):
        assert digits(tables[2])[rank][rank] == "111"
    assert digits(tables[4]) == [["111"] * 3] * 3


def test_times_predicted_beside_measured():
    sizes = np.array([64, 4096, 2**20])
    predicted = {"naive": np.array([1e-6, 2e-6, 9e-4]), "ring": np.array([3e-6, 4e-6, 5e-4])}
    measured = {"ring": np.array([[3e-6, 5e-6, 4e-6], [6e-6, 6e-6, 9e-6], [1e-3, 2e-3, 3e-3]])}
    bound = ("cores", np.array([1e-8, 1e-6, 1e-3]))
    figure = plotting.allreduce_times(sizes, predicted, measured, bound, title="message")
    (ax,) = figure.axes
    assert ax.get_title("left") == "message"
    drawn = [line for line in ax.lines if len(line.get_xdata()) == 3]
    naive, ring, limit, medians = (line.get_ydata() for line in drawn)
    np.testing.assert_array_equal(naive, predicted["naive"])
    np.testing.assert_array_equal(ring, predicted["ring"])
    np.testing.assert_array_equal(limit, [np.nan, 1e-6, 1e-3])  # from where the bandwidth counts
    np.testing.assert_array_equal(medians, [4e-6, 6e-6, 2e-3])
    bars = ax.collections[0].get_segments()
    np.testing.assert_allclose(
        [bar[:, 1] for bar in bars], [[3e-6, 4e-6], [6e-6] * 2, [1e-3, 2e-3]]
    )
    low, high = ax.get_ylim()
    assert low < 1e-6 and high > 2e-3  # the axis shows all points
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert [ax.xaxis.get_major_formatter()(n) for n in sizes] == ["64", "4 Ki", "1 Mi"]
    assert ax.get_xlabel() == "vector (bytes)"


def test_the_ladder_has_a_panel_an_algorithm_and_marks_the_crossover():
    sizes = np.array([2**12, 2**16, 2**20])
    predicted = {name: np.array([1e-5, 2e-5, 3e-4]) * (1 + i) for i, name in enumerate(LADDER)}
    # Medians are 10%, 30% and 50% above the line.
    factors = np.array([[1.1, 1, 1.2], [1.3, 1.2, 1.4], [1.5, 1.4, 1.6]])
    measured = {name: seconds[:, None] * factors for name, seconds in predicted.items()}
    crossing = ("recursive_doubling", "rabenseifner", 2.0**14)
    figure = plotting.allreduce_ladder(sizes, predicted, measured, crossing)
    panels = [ax for ax in figure.axes if ax.axison]
    titles = [ax.get_title("left") or ax.get_title() for ax in panels]
    assert titles == [f"{name}\noff by 30%" for name in LADDER]
    for ax, name in zip(panels, LADDER, strict=True):
        drawn = [line.get_ydata() for line in ax.lines if len(line.get_xdata()) == 3]
        greys, (line, medians) = drawn[: len(LADDER)], drawn[len(LADDER) :]
        np.testing.assert_array_equal(greys, list(predicted.values()))
        np.testing.assert_array_equal(line, predicted[name])
        np.testing.assert_allclose(medians, predicted[name] * [1.1, 1.3, 1.5])
        words = {
            "recursive_doubling": "left of the dotted line\nfaster than rabenseifner",
            "rabenseifner": "right of the dotted line\nfaster than recursive_doubling",
        }
        assert ax.get_xlabel() == words.get(name, "") and not ax.texts  # words hide no data
        marks = [line.get_xdata()[0] for line in ax.lines if len(line.get_xdata()) == 2]
        assert marks == [2.0**14] * (name in words)


def test_a_ladder_without_a_crossover():
    seconds = {"ring": np.array([1e-5])}
    figure = plotting.allreduce_ladder([1024], seconds, {"ring": np.array([[1e-5]])})
    (ax,) = figure.axes
    assert not ax.get_xlabel() and "off by 0%" in ax.get_title("left") + ax.get_title()


def test_panels_share_one_legend():
    line = {"x": [2, 4], "over": "ranks", "title": "one"}
    figure = plotting.side_by_side(
        line | {"predicted": {"ring": [1e-6, 2e-6]}}, line | {"predicted": {"tree": [1e-6, 1e-3]}}
    )
    assert [ax.get_xlabel() for ax in figure.axes] == ["ranks"] * 2
    assert legend(figure) == ["ring", "tree"]
    assert figure.legends[0].get_title().get_text() == "predicted"
    assert not any(ax.get_legend() for ax in figure.axes)
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_the_film_of_the_ring_moves_and_ends_with_the_sum():
    pictures = pictures_of(plotting.ring_film(ranks=2, between=2))
    assert len(pictures) > 4
    first, last = pictures[0], pictures[-1]
    assert np.array_equal(first[2, 2], [255, 255, 255])
    # Stripes fill half of each tile at first, and all of it at the end.
    coloured = [(np.ptp(p, axis=2) > 40).sum() for p in (first, last)]
    assert coloured[1] == pytest.approx(2 * coloured[0], rel=0.05)

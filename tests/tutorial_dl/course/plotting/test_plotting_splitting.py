"""Figures of split layers: each rank's parts have its colour, and bytes are those given."""

import pytest
from matplotlib.colors import to_hex

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_a_rank_needs_has_its_colour(ranks):
    figure = plotting.cut_products(ranks)
    for ax, cuts in zip(figure.axes, (2, 3, 3), strict=True):
        colours = [to_hex(patch.get_facecolor()).upper() for patch in ax.patches]
        for rank in range(ranks):  # W and y; x, W and the term; h, B and the term
            assert colours.count(style.colour(rank).upper()) == cuts
    by_columns, by_rows, _ = figure.axes
    assert [t.get_text() for t in by_rows.texts].count("+") == ranks - 1
    # A product fits: as many columns on the left as rows on the right, and both have one height.
    x, *slices = by_columns.patches
    assert sum(patch.get_width() for patch in slices[:ranks]) > x.get_width()
    assert {patch.get_height() for patch in slices[:ranks]} == {x.get_width()}


def test_ranks_without_a_colour_are_refused():
    with pytest.raises(ValueError, match="ranks must be from 2 to 4, got 5"):
        plotting.cut_products(5)


def test_bytes_that_travel():
    lines = {"layers": [1024, 4096], "batch": [8192, 8192]}
    ax = plotting.travelled([4, 16], lines, {"layers": [1024, 4096], "batch": [8000, 8192]}).axes[0]
    assert [list(line.get_ydata()) for line in ax.get_lines()][3] == [8000, 8192]
    assert "4 KiB" in [label.get_text() for label in ax.get_yticklabels()]

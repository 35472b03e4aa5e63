"""Figures of divided memory and sequences show what the library computes."""

import subprocess
import sys

import pytest
from matplotlib.colors import to_hex

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting
from tutorial_dl.course.plotting import sharding
from tutorial_dl.model_parallel import Positions


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
    with pytest.raises(ValueError, match="ranks must be from 2 to 7, got 8"):
        plotting.ring_attention_film(8)


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
    with pytest.raises(ValueError, match="ranks must be from 2 to 7, got 1"):
        plotting.causal_work(1)


def test_the_ladder_has_bars_and_lines():
    measured = {"weights": [2048, 1024], "gradients": [1024, 1024], "state": [4096, 512]}
    ax = plotting.memory_ladder(["stage 0", "stage 1"], measured, [7168, 2600]).axes[0]
    assert [patch.get_width() for patch in ax.patches] == [2, 1, 1, 1, 4, 0.5]
    assert [line.get_xdata()[0] for line in ax.get_lines()] == [7, 2600 / 1024]


def test_memory_of_scores():
    ax = plotting.score_memory([1, 2], [4096, 1024], [5120, 1536]).axes[0]
    assert [list(line.get_ydata()) for line in ax.get_lines()] == [[4, 1], [5, 1.5]]


def test_no_figure_starts_mpi():
    """A notebook's kernel is no rank; if MPI starts there, a file is left when it is killed."""
    code = (
        "import sys; from tutorial_dl import plotting; plotting.causal_work(2)\n"
        "plotting.ring_attention_film(2); assert 'mpi4py.MPI' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

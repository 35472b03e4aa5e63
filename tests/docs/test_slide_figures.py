"""Figures on slides: type of 18 points and more, and words that leave the page are named."""

import io

import pytest
from matplotlib.text import Text
from PIL import Image

import figures
from tutorial_dl import figure_style


@pytest.fixture
def ax():
    with figure_style.axes() as ax:
        ax.plot([0, 1])
        yield ax


def test_small_type_is_enlarged_and_the_picture_has_the_size(ax):
    ax.text(0.2, 0.5, "small", size=5)
    ax.set_title("large", size=14)
    data, flaws = figures.png(ax.figure, 700, 300)
    assert Image.open(io.BytesIO(data)).size == (1400, 600) and flaws == []
    sizes = {text.get_text(): text.get_fontsize() for text in ax.figure.findobj(Text)}
    assert min(sizes.values()) == sizes["small"] == 9 and sizes["large"] == 14
    # 9 points of 1/72 inch, in pixels of a slide, of which 1280 are 13.33 inches
    assert pytest.approx(18) == 9 / 72 * figure_style.SLIDE_DPI / 1280 * (40 / 3) * 72


def test_words_are_made_to_fit(ax):
    ax.set_xticks(range(30), [f"{1000 * at}" for at in range(30)])
    ax.set_title(
        "a title that is much too long for a figure as small as this one, or any other of its kind"
    )
    ax.set_ylabel("a label of the axis that is much, much longer than the axis itself")
    _, flaws = figures.png(ax.figure, 700, 400)
    assert flaws == []
    assert ax.get_title(loc="left").replace("\n", " ").startswith("a title that is much too long")
    labels = [tick.label1.get_text() for tick in ax.xaxis.get_major_ticks()]
    assert labels[0] == "0" and 2 < sum(map(bool, labels)) < 10
    assert {int(label) // 1000 for label in labels if label} <= {*range(0, 30, 4)}


def test_what_does_not_fit_is_named(ax):
    ax.text(0.5, 0.5, "one")
    ax.text(0.5, 0.5, "two\nlines")
    words = ax.text(0.9, 0.1, "far to the right, where there is nothing any more")
    words.set_in_layout(False)
    _, flaws = figures.png(ax.figure, 700, 400)
    assert flaws == [
        "'far to the right, where there is nothing any more' leaves the figure",
        "'one' and 'two lines' lie over each other",
    ]


def test_counts_are_labelled_by_whole_numbers():
    with figure_style.panels(1, 2) as (figure, ((counts, measured),)):
        counts.plot([1, 2, 3], [0.5, 1, 2])
        measured.plot([1.5, 2, 3], [0.5, 1, 2])
    figures.png(figure, 1100, 500)
    shown = [tick for tick in counts.get_xticks() if 1 <= tick <= 3]
    assert shown == [1, 2, 3]
    assert any(tick % 1 for tick in measured.get_xticks())


def curve_and_legend(*curve, **look):
    with figure_style.axes() as ax:
        ax.plot(curve, label="a curve", **look)
        ax.set(title="curves", ylim=(0, 1.2))
        ax.legend(loc="upper right")
    _, flaws = figures.png(ax.figure, 700, 400)
    return ax, ax.get_legend().get_window_extent(), flaws


@pytest.mark.thorough
def test_a_legend_moves_away_from_curves_or_is_named():
    ax, box, flaws = curve_and_legend(0, 0.1, 1, 1, 1)
    middle = (ax.bbox.x0 + ax.bbox.x1) / 2
    assert flaws == [] and box.x1 < middle
    ax, box, flaws = curve_and_legend(0.2, 0.1, 0.2, 0.1, 0)  # it stays
    assert flaws == [] and box.x0 > middle
    *_, flaws = curve_and_legend(*[0, 1.2] * 40)
    assert flaws == ["the legend of panel 'curves' lies over a curve"]
    *_, flaws = curve_and_legend(*[0, 1.2] * 40, marker="o", linestyle="")  # none below it
    assert flaws == []


@pytest.mark.parametrize("entries", [1, 12])
def test_a_title_is_broken_before_a_legend_beside_it(entries):
    words = "a title that is longer than its panel but not than the figure"
    with figure_style.axes() as ax:
        for number in range(entries):
            ax.plot([0, 1], label=f"a curve with a long name: {number}")
        ax.set_title(words)
        figure_style.legend_beside(ax)
    _, flaws = figures.png(ax.figure, 1100, 500)
    title = next(one for one in ax.figure.findobj(Text) if one.get_text().startswith("a title"))
    assert flaws == [] and (title.get_text() == words) == (entries == 1)
    if entries > 1:
        assert title.get_window_extent().x1 <= ax.get_legend().get_window_extent().x0


def test_numbers_that_stay_outside_the_axes_do_not_count(ax):
    ax.set_xticks([0, 0.5, 1, 90], ["0", "0.5", "1", "90"])
    ax.set_xlim(0, 1)
    assert figures.png(ax.figure, 700, 400)[1] == []


def test_a_legend_that_is_too_wide_gets_fewer_columns(ax):
    names = [f"a long entry, number {number}" for number in range(6)]
    handles = [ax.plot([0, 1], label=name)[0] for name in names]
    ax.figure.legend(handles, names, loc="outside lower center", ncols=6, title="entries")
    assert figures.png(ax.figure, 1100, 500)[1] == []
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    assert legend.get_title().get_text() == "entries"


def test_legends_that_fill_narrow_panels_become_one_below_them():
    with figure_style.panels(1, 3) as (figure, (panels,)):
        for ax in panels:
            ax.plot([0, 1], label="predicted")
            ax.plot([1, 0], label="measured a hundred times")
            ax.legend()
    figures.png(figure, 1100, 500)
    assert [ax.get_legend() for ax in panels] == [None] * 3
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["predicted", "measured a hundred times"]
    assert not any(ax.bbox.overlaps(legend.get_window_extent()) for ax in panels)

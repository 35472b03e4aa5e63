"""Figures of one master and many workers show the data they are given."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex

from tutorial_dl.course import foundations, plotting


def of(ax, label):
    """The data of the one line with this legend entry, shape (2, points)."""
    (found,) = [drawn for drawn in ax.get_lines() if drawn.get_label() == label]
    return np.array(found.get_data(), float)


def test_vectors_through_the_busiest_rank_are_those_of_the_messages():
    """Count the messages of both algorithms, on W ranks in a ring and on W + 1 with a master."""
    figure = plotting.many_to_few(workers=6)
    star, ring, lines = figure.axes
    for W, vectors in of(lines, "master: 2W").T:
        plan = plotting.rounds("naive", int(W) + 1)
        assert vectors == sum(0 in (m.source, m.target) for messages in plan for m in messages)
    for W, vectors in of(lines, "ring: 4(W-1)/W").T:
        plan = [m for messages in plotting.rounds("ring", int(W)) for m in messages]
        found = sum(1 / m.chunks for m in plan if m.source == 0)
        found += sum(1 / m.chunks for m in plan if m.target == 0)
        assert vectors == pytest.approx(found)
    assert [t.get_text() for t in star.texts if t.get_text()] == ["M", *"012345"]
    arrows = [len([t for t in ax.texts if not t.get_text()]) for ax in (star, ring)]
    assert arrows == [2 * 6, 6]
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="workers must be at least 2, got 1"):
        plotting.many_to_few(1)


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
    assert [text.get_text() for text in ax.get_yticklabels()] == ["master", "worker 0", "worker 1"]


def test_times_of_exchanges():
    figure = plotting.exchange_times([10, 1000], [[0.001, 0.002, 0.009], [0.004]], lambda n: 1 + n)
    (ax,) = figure.axes
    n, milliseconds = of(ax, "predicted")
    assert np.isclose([n[0], n[-1]], [10, 1000]).all() and (milliseconds == 1e3 * (1 + n)).all()
    (bars,) = ax.containers
    assert np.allclose(bars.lines[0].get_data(), [[10, 1000], [2.0, 4.0]])  # medians, ms
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_a_master_that_is_full():
    predicted = {"slow": ([1.0, 2.0, 2.0], [1.0, 1.6, 1.875]), "fast": ([1, 2, 3], [1, 2, 3])}
    measured = {"slow": {1: 1.0, 3: 1.9}, "slow, random": {2: 1.5}}
    figure = plotting.saturated([1, 2, 3], predicted, measured, full={"slow": 2.0, "fast": 99.0})
    (ax,) = figure.axes
    assert (of(ax, "slow: regular times") == [[1, 2, 3], [1, 2, 2]]).all()
    assert (of(ax, "slow: random times") == [[1, 2, 3], [1, 1.6, 1.875]]).all()
    assert (of(ax, "slow: measured") == [[1, 3], [1.0, 1.9]]).all()
    assert (of(ax, "slow, random: measured") == [[2], [1.5]]).all()
    colours = {line.get_label(): line.get_color() for line in ax.get_lines()}
    assert colours["slow: measured"] == colours["slow: random times"]
    assert colours["slow: measured"] != colours["fast: regular times"]
    assert len(ax.get_lines()) == 4 + 2 + 1  # and one mark, because the other lies outside
    assert [(text.get_text(), text.xy) for text in ax.texts] == [("W*", (2.0, 0))]
    with pytest.raises(ValueError, match="no prediction for none; there is one for slow, fast"):
        plotting.saturated([1, 2, 3], predicted, {"none": {1: 1.0}})
    assert set(plotting.FIGURES["parameter_server"]) <= set(dir(plotting))

"""Timelines of known runs, and their files for other programs."""

import json
import subprocess
import sys
from itertools import pairwise

import clock
import numpy as np
import pytest
from commands_here import run_command
from trace_format import check_format

from numba_kernels import launch
from numba_kernels.spans import SUMS
from tutorial_dl import timeline
from tutorial_dl.training import timeline_figure as plotting
from tutorial_dl.training.span_kinds import KINDS, flat, kind, share_out

# Meaning ---------------------------------------------------------------------------------------


def random_spans(rng, begin, end, depth=0):
    """Random nested spans, in the order in which they begin."""
    names = ["gradient", "data", "reduce", "allreduce", "wait", "update", "mine"]
    times = np.sort(rng.integers(begin, end + 1, 2 * rng.integers(0, 4)))
    found = []
    for low, high in times.reshape(-1, 2).tolist():
        found.append((names[rng.integers(len(names))], low, high))
        if depth < 3:
            found += random_spans(rng, low, high, depth + 1)
    return found


def innermost(spans, time):
    """The kind of span to show at [time, time + 1): the innermost one.

    Within a communicating span, other communicating spans belong to it.
    """
    shown = None
    for name, begin, end in spans:
        if begin <= time < end:
            both = shown and kind(name) == kind(shown) == "communicating"
            shown = shown if both else name
    return shown


@pytest.mark.parametrize("seed", range(20))
def test_flat_and_shares(seed):
    spans = random_spans(np.random.default_rng(seed), 10, 90)
    pieces = flat(spans)
    assert all(a[2] <= b[1] for a, b in pairwise(pieces)) and all(b < e for _, b, e in pieces)
    by_time = {t: innermost(spans, t) for t in range(0, 100)}
    assert by_time == {
        t: next((n for n, b, e in pieces if b <= t < e), None) for t in range(0, 100)
    }
    for first, last in ((0, 100), (20, 45)):
        count = dict.fromkeys(KINDS, 0)
        for t in range(first, last):
            count[kind(by_time[t] or "mine")] += 1
        shares = share_out(pieces, first, last)
        assert shares == pytest.approx({k: n / (last - first) for k, n in count.items()})


def test_kinds():
    assert {kind(n) for n in ("data", "gradient", "update", "mine")} == {"computing"}
    names = ("reduce", "reduce + update", "hand out", "allreduce", "barrier", "sum forward")
    assert {kind(n) for n in names} == {"communicating"}
    assert {kind(n) for n in ("wait", "wait (message)")} == {"waiting"}


def taken(rank, spans, begin=0, end=1000, **more):
    return {
        "rank": rank, "node": "a", "begin": begin, "end": end, "spans": spans, "lost": 0,
        "others": 0, "clock": [], "wall": 0,
    } | more  # fmt: skip


def test_clocks_are_put_right():
    """Rank 1's clock is ahead by 500 at its time 10,000, by 700 at 30,000, and linearly between."""
    line = [[10_000, 500, 3], [30_000, 700, 2]]
    whole = timeline.gather(
        [
            taken(1, [["x", 20_000, 25_000]], 10_000, 30_000, node="b", clock=line),
            taken(0, [["x", 19_400, 24_350]], 9_400, 29_300, clock=[[0, 0, 0], [9, 0, 0]]),
        ]
    )
    first, second = whole.rows
    assert (first.rank, second.rank) == (0, 1)
    assert (first.begin, second.begin) == (0, 100)
    assert second.spans == first.spans == [("x", 10_000, 14_950)]
    assert whole.notes() == ["the clocks of nodes agree within 0.0 us"]
    # Without a comparison, the time of day is used.
    whole = timeline.gather(
        [taken(0, [["x", 5, 6]], wall=100), taken(1, [["x", 25, 26]], 20, 1020, node="b", wall=80)]
    )
    assert whole.rows[0].spans == whole.rows[1].spans == [("x", 5, 6)]
    assert whole.notes() == ["nodes are aligned by their time of day, which may differ by some ms"]
    # Ranks of one node have one clock, whatever their time of day.
    whole = timeline.gather([taken(0, [], wall=100), taken(1, [], 10, 1010, wall=80)])
    assert [row.begin for row in whole.rows] == [0, 10] and whole.notes() == []


def test_what_is_gathered():
    for wrong in ([], [taken(0, []), taken(0, [])]):
        with pytest.raises(ValueError, match="expected one recording per rank, got those of ranks"):
            timeline.gather(wrong)
    with pytest.raises(ValueError, match="nothing has been recorded"):
        timeline.Timeline().figure()
    with pytest.raises(ValueError, match="limit must be a whole number, at least 1, got 0"):
        timeline.Timeline(0)
    notes = timeline.gather([taken(2, [["x", 1, 2]], lost=7, others=3)]).notes()
    assert notes == [
        "rank 2: the first 7 spans are missing, the last 1 were kept",
        "rank 2: 3 spans of other threads are left out",
    ]


# The Trace Event Format ------------------------------------------------------------------------


def test_chrome_trace():
    spans = [["gradient", 1_234, 5_678], ["wait", 2_001, 5_678], ["mine", 6_000, 6_000]]
    whole = timeline.gather(
        [taken(0, spans), taken(3, spans, clock=[]), taken(1, spans, lost=2, node="b")]
    )
    trace = json.loads(json.dumps(whole.chrome(), allow_nan=False))
    rows = check_format(trace)
    assert set(rows) == {(0, 0), (1, 1), (0, 3)}
    assert {len(events) for events in rows.values()} == {3}
    event = next(e for e in trace["traceEvents"] if e["ph"] == "X")
    assert event == {
        "name": "gradient", "cat": "computing", "ph": "X", "ts": 1.234, "dur": 4.444, "pid": 0,
        "tid": 0,
    }  # fmt: skip
    assert trace["otherData"]["notes"] == whole.notes() != []
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"]
             if e["name"] == "thread_name"}  # fmt: skip
    assert names == {(0, 0): "rank 0", (1, 1): "rank 1", (0, 3): "rank 3"}


# The figure ------------------------------------------------------------------------------------


def steps_of(rank, steps, **more):
    """Steps of 5 ms: 1 ms of data, 2 of gradient, 2 of reduce + update, of which half is a wait."""
    spans = []
    for step in range(steps):
        b = 5_000_000 * step
        spans += [
            ["data", b, b + 1_000_000], ["gradient", b + 1_000_000, b + 3_000_000],
            ["reduce + update", b + 3_000_000, b + 5_000_000],
            ["wait", b + 3_000_000, b + 4_000_000],
        ]  # fmt: skip
        if step % 10 == 9:
            spans[-1][2] -= 500_000
            spans[-2][2] -= 500_000
            spans.append(["validation", b + 4_500_000, b + 5_000_000])
    return taken(rank, spans, 0, 5_000_000 * steps, **more)


def texts(ax):
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize(("ranks", "steps"), [(1, 2), (4, 100), (16, 2500)])
def test_figure(ranks, steps):
    whole = timeline.gather([steps_of(rank, steps) for rank in range(ranks)])
    figure = whole.figure()
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.get_yticklabels()] == [f"rank {r}" for r in range(ranks)]
    first, last = ax.get_xlim()
    assert first >= 0 and last <= 5 * steps
    if steps > 8:  # four whole steps in the middle of an epoch
        assert 20 <= last - first <= 21 and abs(first + last - 5 * steps) < 2 * 10 * 5
        low, high = np.ceil(first / 5), np.floor(last / 5)
        assert high - low == 4 and all(step % 10 != 9 for step in range(int(low), int(high)))
        assert f"({100 * (last - first) / (5 * steps):.2g} % of the recording)" in ax.get_title(
            "left"
        )
    labels = [t.get_text() for t in figure.legends[0].get_texts()]
    assert labels[:4] == ["data", "gradient", "reduce + update", "wait"]
    shares = [t for t in texts(ax) if "%" in t]
    assert len(shares) == ranks
    for text in shares:
        found = [float(part.strip(" %")) for part in text.split("/")]
        np.testing.assert_allclose(found, [60, 20, 20], atol=1.5)
    bars = [p for c in ax.collections for p in c.get_paths()]
    assert 4 * ranks * (2 if steps == 2 else 4) <= len(bars) <= 40 * ranks
    figure.canvas.draw()


def test_figure_of_everything_at_once():
    whole = timeline.gather([steps_of(rank, 2500) for rank in range(2)])
    with clock.seconds("a figure of 25 000 spans"):
        figure = whole.figure("all")
        figure.canvas.draw()
    (ax,) = figure.axes
    assert ax.get_xlim() == (0, 12_500) and "shares of every 62.5 ms" in ax.get_xlabel()
    # Each kind covers as much of the row as of the time.
    height = {}
    areas = [area.get_paths()[0].vertices[:, 1] for area in ax.collections]
    assert min(y.min() for y in areas) == pytest.approx(-0.38), "one on the other, to the top"
    names = [t.get_text() for t in figure.legends[0].get_texts()]
    for name, area in zip(names, ax.collections[: len(names)], strict=True):
        x, y = area.get_paths()[0].vertices.T
        height[name] = abs(np.dot(x[:-1], y[1:]) - np.dot(x[1:], y[:-1])) / 2 / (12_500 * 0.76)
    expected = {
        "data": 0.2,
        "gradient": 0.4,
        "reduce + update": 0.2,
        "wait": 0.19,
        "validation": 0.01,
    }
    for name, share in expected.items():
        assert height[name] == pytest.approx(share, rel=0.001), name


def test_windows_and_gaps():
    whole = timeline.gather([taken(0, [["x", 2_000_000, 4_000_000]], 0, 10_000_000)])
    (ax,) = whole.figure((3, 5)).axes
    assert ax.get_xlim() == (3, 5)
    assert [path.get_extents().x0 for c in ax.collections for path in c.get_paths()] == [3, 4]
    for wrong in ((5, 3), (-1, 2), (3, 11)):
        with pytest.raises(
            ValueError, match="window must be two times in ms, in order, between 0 and 10"
        ):
            whole.figure(wrong)
    assert timeline.gather([taken(0, [])]).figure().axes, "no span at all"


def test_waiting_is_seen_without_colours():
    assert {bool(look.get("hatch")) for name, look in plotting.LOOKS.items() if "wait" in name} == {
        True
    }
    own = [json.dumps(plotting.LOOKS[name]) for name in ("gradient", "allreduce", *SUMS)]
    assert len(set(own)) == 4, "sums within a gradient look like nothing else"
    spans = [[f"mine {i}", 10 * i, 10 * i + 9] for i in range(30)]
    looks = plotting._looks([name for name, _, _ in spans] + ["gradient", "update"])
    distinct = {json.dumps(look) for name, look in looks.items()}
    assert len(distinct) >= 20


# The command line ------------------------------------------------------------------------------


@pytest.mark.thorough
def test_command_line(tmp_path):
    words = ("train", "-n", "2", "--epochs", "1", "--quiet", "--timeline")
    for name, begins in (("a.json", b'{"traceEvents":['), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")):
        done = run_command(*words, name, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / name).read_bytes().startswith(begins)
    trace = json.loads((tmp_path / "a.json").read_text())
    assert set(check_format(trace)) == {(0, 0), (0, 1)}
    names = {e["name"] for e in trace["traceEvents"] if e["ph"] == "X"}
    assert {"data", "gradient", "reduce + update", "wait", "validation"} <= names
    start = [launch.find_mpiexec(), "-n", "2", sys.executable, "-m", "tutorial_dl", "train"]
    done = subprocess.run(
        [*start, *words[3:], "b.json"], cwd=tmp_path, timeout=600, env=launch.rank_environment(2)
    )
    assert done.returncode == 0
    assert set(check_format(json.loads((tmp_path / "b.json").read_text()))) == {(0, 0), (0, 1)}

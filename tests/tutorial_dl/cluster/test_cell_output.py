"""The output of a cell's ranks, laid out like that of one program: no engines are needed."""

from __future__ import annotations

import re

import pytest
from cell_messages import lines, message, output_of, png, shown, text

from tutorial_dl.cluster import cell_layout, cell_output
from tutorial_dl.cluster.cell_layout import layout, lines_of
from tutorial_dl.cluster.cell_output import DISPLAYS, FIRST, MOST, Output, Screen

# Folding and order ---------------------------------------------------------------------------


ERROR = text("careful\n", "stderr")
RED, OFF = "\x1b[31m", "\x1b[0m"


def result(said: str) -> dict:
    return shown("execute_result", text=said)


@pytest.mark.parametrize(
    "messages, expected",
    [
        # Equal output is folded, and ranks are in order, whichever was the first to print.
        (
            {"r2": ["b\n"], "r0": ["a\n"], "r1": ["a\n"], "r3": ["a\n"]},
            ["ranks 0, 1, 3: a", "rank 2:        b"],
        ),
        ({"r1": ["b\nc\n"], "r0": ["a\n"]}, ["rank 0: a", "rank 1: b", "rank 1: c"]),
        ({"r0": ["a\nb\n"], "r1": ["a\nb\n"]}, ["ranks 0, 1: a", "ranks 0, 1: b"]),
        ({"r0": [], "r1": []}, []),
        # Lines of a rank stay together.
        (
            {"r0": ["[1 0]\n[0 1]\n"], "r1": ["[1 0]\n[0 2]\n"]},
            ["rank 0: [1 0]", "rank 0: [0 1]", "rank 1: [1 0]", "rank 1: [0 2]"],
        ),
        # What one rank prints after the others follows.
        (
            {"r0": ["1\n2\n", "total 7\n"], "r1": ["1\n2\n"], "r2": ["1\n2\n"], "r3": ["alone\n"]},
            ["ranks 0-2: 1", "ranks 0-2: 2", "rank 0:    total 7", "rank 3:    alone"],
        ),
        # Rank 1 has printed the beginning of a line that the others have printed.
        (
            {"r0": ["one\ntwo\n"], "r1": ["one\ntw"], "r2": ["one\ntwo\nthr"]},
            ["ranks 0-2:  one", "ranks 0, 2: two", "rank 2:     thr"],
        ),
        (
            {"r0": ["one\ntwo\n"], "r1": ["one\ntX"]},
            ["rank 0: one", "rank 0: two", "rank 1: one", "rank 1: tX"],
        ),
        # stderr has a label of its own, and stdout goes on in its line after it.
        (
            {"r0": ["a\n", ERROR, "b\n"], "r1": ["a\n"]},
            ["ranks 0, 1: a", "rank 0 stderr: careful", "rank 0:     b"],
        ),
        (
            {"r0": ["begun", ERROR, ", done\n"]},
            ["rank 0: begun, done", "rank 0 stderr: careful"],
        ),
        # Results come last and are folded.
        (
            {"r0": [result("3"), "late\n"], "r1": ["x\n", result("3")], "r2": [result("[1,\n 2]")]},
            [
                *("rank 0:     late", "rank 1:     x", "ranks 0, 1: 3"),
                *("rank 2:     [1,", "rank 2:      2]"),
            ],
        ),
        # Colours do not reach the labels.
        (
            {"r0": [f"{RED}one\ntwo{OFF} three\n", ERROR, "four\n"]},
            [
                *(f"rank 0: {RED}one{OFF}", f"rank 0: {RED}two{OFF} three"),
                *("rank 0 stderr: careful", "rank 0: four"),
            ],
        ),
    ],
)
def test_lines_and_labels(messages, expected):
    assert lines(**messages) == expected


def test_the_other_groupings():
    messages = {"r0": ["a\n", shown(text="F"), "b\n"], "r1": ["a\n", shown(text="F"), "b\n"]}
    assert lines(**messages) == ["ranks 0, 1: a", "ranks 0, 1: F", "ranks 0, 1: b"]
    assert lines("type", **messages) == ["ranks 0, 1: a", "ranks 0, 1: b", "ranks 0, 1: F"]
    by_engine = [f"rank {rank}: {said}" for rank in (0, 1) for said in "aFb"]
    assert lines("engine", **messages) == by_engine


# What a terminal does -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (["10%\r20%\r", "30%\n"], ["30%"]),
        (["10%\r"], ["10%"]),  # it stays until something is written
        (["windows\r\n", "next\r\n"], ["windows", "next"]),
        (["1/2\b\b\b2/2\n"], ["2/2"]),
        (["a\n\nb\n"], ["a", "", "b"]),
        (["bar\r", "   \r"], []),  # a bar that was removed
        (["\x1b[2Kline\x1b[K\n"], ["line"]),
        (
            ["outer 0\n", "\rinner 1", "\x1b[A", "\router 1", "\n\rinner 2\n"],
            ["outer 1", "inner 2"],
        ),
        (["cut in \x1b[", "31mred\x1b[0m\n"], ["cut in \x1b[31mred\x1b[0m"]),
        (["ab\r\x1b[", "2Kcd\n"], ["cd"]),
        (["\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n"], ["link"]),
    ],
)
def test_carriage_returns_and_their_like(written, seen):
    assert lines(r0=written) == [f"rank 0: {line}".rstrip() for line in seen]


def test_bars_of_tqdm_leave_a_line_each():
    tqdm = pytest.importorskip("tqdm").tqdm
    output = Output([0])

    class File:
        def write(self, said):
            output.receive(0, text(said))

        def flush(self):
            pass

    for _ in tqdm(range(5), file=File(), mininterval=0, desc="epochs"):
        for _ in tqdm(range(5), file=File(), mininterval=0, desc="batches", leave=False):
            pass
    [line] = lines_of(layout(output.snapshot()))
    assert line.startswith("rank 0: epochs: 100%|") and "5/5" in line


# Long output --------------------------------------------------------------------------------


def test_a_thousand_lines_are_cut_with_a_count():
    printed = "".join(f"line {i}\n" for i in range(1000))
    got = lines(r0=[printed], r1=[printed])
    half = cell_layout.LINES // 2
    assert got[:half] == [f"ranks 0, 1: line {i}" for i in range(half)]
    assert got[half] == f"ranks 0, 1: ... {1000 - 2 * half} lines more; c.output(0) has them"
    assert got[half + 1 :] == [f"ranks 0, 1: line {i}" for i in range(1000 - half, 1000)]
    assert output_of(r1=[printed]).text(1) == printed.rstrip("\n")


def test_ranks_that_differ_share_the_lines_that_are_shown():
    got = lines(r0=["line 0\n"], r1=["".join(f"line {i}\n" for i in range(1000))])
    assert got[0] == "ranks 0, 1: line 0"
    assert "rank 1:     ... 900 lines more; c.output(1) has them" in got  # the rank that has all
    printed = {f"r{k}": ["".join(f"{i} of {k}\n" for i in range(1000))] for k in range(8)}
    got = lines(**printed)
    assert cell_layout.LINES <= len(got) <= cell_layout.LINES + 8
    each = cell_layout.LINES // 8
    assert [line for line in got if "more" in line] == [
        f"rank {k}: ... {1000 - each} lines more; c.output({k}) has them" for k in range(8)
    ]


def test_memory_is_bounded_and_the_count_stays_right(monkeypatch):
    monkeypatch.setattr(cell_output, "MOST", 100_000)
    output = Output([0])
    for first in range(0, 50_000, 100):
        output.receive(0, text("".join(f"{i:09d}\n" for i in range(first, first + 100))))
    kept = output.text(0)
    assert 50_000 <= len(kept) <= 110_000
    assert kept.startswith("000000000\n") and kept.endswith("\n000049999")
    [(where, gone)] = re.findall(r"^(\.\.\. ([\d,]+) lines, which were not kept)$", kept, re.M)
    assert int(gone.replace(",", "")) + len(kept.splitlines()) - 1 == 50_000, where
    [more] = [line for line in lines_of(layout(output.snapshot())) if "more" in line]
    assert f"... {50_000 - cell_layout.LINES:,} lines more" in more


def test_a_stream_goes_on_in_its_line_whatever_is_dropped():
    """stderr has begun a line, and stdout prints so much that lines around it are not kept."""
    screen = Screen()
    screen.write("stdout", "first\n" * FIRST)
    screen.write("stderr", "begun")
    for _ in range(2 * MOST // 60):
        screen.write("stdout", "y" * 59 + "\n")
    screen.write("stderr", " and ended\n")
    [shown] = screen.parts()
    assert [row.text for row in shown.rows if row.name == "stderr"] == ["begun and ended"]
    assert shown.rows[FIRST].name == "note" and not shown.partial


def test_a_very_long_line_is_cut():
    [line] = lines(r0=["x" * 1_000_000 + "\n"])
    assert len(line) < 2_100 and line.endswith("characters more")
    output = Output([0])
    for _ in range(1000):
        output.receive(0, text("x" * 1000))
    kept = "x" * cell_output.WIDTH
    assert output.text(0) == f"{kept}... {1_000_000 - cell_output.WIDTH:,} characters more"


def test_displays_beyond_a_limit_are_counted():
    got = lines(r0=[shown(text=f"figure {i}") for i in range(DISPLAYS + 3)])
    assert got[-1] == "rank 0: ... 3 more displays, which were not kept"
    assert len(got) == DISPLAYS + 1


# Figures ------------------------------------------------------------------------------------


def test_figures_of_ranks_form_a_grid():
    figures = {
        f"r{k}": [f"before {k}\n", shown(png=png(f"figure {k}"), text="<Figure>"), "after\n"]
        for k in range(3)
    }
    before, grid, after = layout(output_of(**figures).snapshot())
    assert lines_of([before]) == [f"rank {k}: before {k}" for k in range(3)]
    assert lines_of([after]) == ["ranks 0-2: after"]
    page = grid.data["text/html"]
    assert re.findall(r"<figcaption.*?>(.*?)</figcaption>", page) == [
        "rank 0:",
        "rank 1:",
        "rank 2:",
    ]
    assert re.findall(r"base64,(.*?)'", page) == [png(f"figure {k}") for k in range(3)]
    assert "auto-fit" in page and page.count("max-width:100%") == 3  # adapts to the page
    assert grid.data["text/plain"].splitlines() == [f"rank {k}: <Figure>" for k in range(3)]


def test_four_figures_are_in_pairs():
    figures = {f"r{k}": [shown(png=png(f"figure {k}"))] for k in range(4)}
    [grid] = layout(output_of(**figures).snapshot())
    outer, first, second = grid.data["text/html"].split("<div style='display:grid")[1:]
    assert [part.count("<figure") for part in (outer, first, second)] == [0, 2, 2]


def test_equal_figures_are_shown_once_and_whole():
    same = {f"r{k}": [shown(png=png("same"), text=f"<Figure at {k}>")] for k in range(4)}
    label, figure = layout(output_of(**same).snapshot())
    assert lines_of([label]) == ["ranks 0-3:"]
    assert figure.data["image/png"] == png("same") and "text/html" not in figure.data
    label, figure = layout(output_of(r0=["x\n"], r1=[shown(png=png("one"))]).snapshot())
    assert lines_of([label]) == ["rank 0: x", "rank 1:"] and figure.data["image/png"] == png("one")


def test_a_table_is_shown_once_with_its_label():
    """Keras prints model.summary() in a notebook as several pieces of HTML."""
    pieces = ["<pre>Model</pre>", "<pre>Total params: 5</pre>"]
    table = {f"r{k}": [shown(html=each, text="Total") for each in pieces] for k in range(4)}
    label, *summary = layout(output_of(**table).snapshot())
    assert lines_of([label]) == ["ranks 0-3:"]
    assert [bundle.data["text/html"] for bundle in summary] == pieces
    # After a figure of other ranks, or a line, the label comes again.
    table["r0"].insert(1, "x\n")
    assert lines_of(layout(output_of(**table).snapshot())[2:3]) == ["rank 0:    x", "ranks 0-3:"]


def test_what_fits_no_grid_is_shown_one_after_the_other():
    widgets = {f"r{k}": [shown(**{"application/x": {"k": k}, "text": "W"})] for k in range(2)}
    bundles = layout(output_of(**widgets).snapshot())
    assert [list(bundle.data) for bundle in bundles] == 2 * [
        ["text/plain"],
        ["application/x", "text/plain"],
    ]
    assert lines_of(bundles[::2]) == ["rank 0:", "rank 1:"]


def test_a_display_is_updated_and_cleared_as_in_a_notebook():
    update = shown("update_display_data", name="bar", text="2")
    assert lines(r0=[shown(name="bar", text="1"), "x\n", update]) == ["rank 0: 2", "rank 0: x"]
    assert lines(r0=["a\n", message("clear_output", wait=False), "b\n"]) == ["rank 0: b"]
    waits = message("clear_output", wait=True)
    assert lines(r0=["a\n", waits]) == ["rank 0: a"]
    assert lines(r0=["a\n", waits, "b\n"], r1=["c\n"]) == ["rank 0: b", "rank 1: c"]

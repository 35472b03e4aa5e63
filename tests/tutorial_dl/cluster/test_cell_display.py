"""How the output of a cell is shown: in a terminal, and in a notebook, where it is replaced."""

from __future__ import annotations

import pytest
from cell_messages import output_of, shown, text

from tutorial_dl.cluster import cell_display
from tutorial_dl.cluster.cell_output import DISPLAYS, Output


def test_a_terminal_shows_whole_lines_as_they_come(capsys):
    output, page = Output([0, 1]), cell_display.Terminal()
    output.receive(0, text("early\n"))
    page.follow(output, stream=True, groupby="order")
    output.receive(1, text("10%\r20%\r"))
    page.update()
    assert capsys.readouterr().out == "rank 0: early\n"
    output.receive(1, text("100%\nnot en"))
    output.receive(0, text("bad\n", "stderr"))
    output.receive(1, text("ded"))
    page.update()
    said = capsys.readouterr()
    assert said.out == "rank 1: 100%\n" and said.err == "rank 0: bad\n"
    for rank in (1, 0):
        output.receive(rank, shown("execute_result", text="5"))
    page.end()
    assert capsys.readouterr().out == "rank 1: not ended\nranks 0, 1: 5\n"


def test_a_terminal_loses_no_line(capsys):
    """Streams that take turns in a line, output that is cleared, and displays beyond the limit."""
    output, page = Output([0]), cell_display.Terminal()
    page.follow(output, True, "order")

    def prints(*said):
        for name, words in said:
            output.receive(0, text(words, name))
            page.update()
        return capsys.readouterr()

    shown = prints(("stdout", "Working: "), ("stderr", "err\n"), ("stdout", "done\n"))
    assert shown == ("rank 0: Working: done\n", "rank 0: err\n")
    assert prints(("stdout", "1\n2\n3\n")).out.count("\n") == 3
    output.receive(0, {"header": {"msg_type": "clear_output"}, "content": {}})
    assert prints(("stdout", "a\nb\n")).out == "rank 0: a\nrank 0: b\n"
    display = {"data": {"text/plain": "shown"}, "metadata": {}}
    for _ in range(DISPLAYS + 2):
        output.receive(0, {"header": {"msg_type": "display_data"}, "content": display})
    assert prints(("stdout", "after\n")).out.count("shown") == DISPLAYS
    output.receive(0, {"header": {"msg_type": "display_data"}, "content": display})
    assert prints(("stdout", "more")).out == ""
    note = "... 3 more displays, which were not kept"
    assert output.printed(0, "stdout") == f"a\nb\n{note}\nafter\nmore"
    page.end()
    assert capsys.readouterr().out == f"rank 0: {note}\nrank 0: more\n"


def test_colours_and_statuses_stay_within_a_terminals_line(capsys, monkeypatch):
    output, page = Output([0]), cell_display.Terminal()
    monkeypatch.setattr(page, "shows_status", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    page.follow(output, stream=True, groupby="order")
    output.receive(0, text("\x1b[31mred\nplain\n"))
    page.update()
    page.status("12 s: rank 0\ncomputes and computes")
    said = capsys.readouterr()
    assert said.out == "rank 0: \x1b[31mred\x1b[0m\nrank 0: plain\n"
    assert said.err == "\r\x1b[K12 s: rank 0; compu"  # one column is left for the cursor


def test_a_terminal_that_does_not_stream_shows_all_at_the_end(capsys):
    output, page = output_of(r0=["a\n"], r1=["a\n"]), cell_display.Terminal()
    page.follow(output, stream=False, groupby="order")
    page.update()
    assert capsys.readouterr().out == ""
    page.end()
    assert capsys.readouterr().out == "ranks 0, 1: a\n"


class Frontend:
    """The outputs of a notebook's cell, as a front end keeps them."""

    def __init__(self, monkeypatch, alone: bool = True):
        self.shown: dict[str, dict] = {}
        self.messages, self._clears = 0, False
        monkeypatch.setattr(cell_display, "publish_display_data", self.publish)
        monkeypatch.setattr(cell_display, "clear_output", self.clear)
        monkeypatch.setattr(cell_display, "alone", lambda: alone)
        monkeypatch.setattr(cell_display, "OFTEN", 0.0)

    def publish(self, data, metadata, transient, update):
        self.messages += 1
        if self._clears:
            self.shown, self._clears = {}, False
        name = transient["display_id"]
        assert (name in self.shown) == update
        self.shown[name] = data

    def clear(self, wait):
        self._clears = wait
        self.shown = self.shown if wait else {}

    def text(self) -> list[str]:
        return [data["text/plain"] for data in self.shown.values() if data]


@pytest.fixture
def notebook(monkeypatch):
    return Frontend(monkeypatch)


def following(output: Output, stream: bool = True) -> cell_display.Notebook:
    page = cell_display.Notebook()
    page.follow(output, stream, "order")
    return page


def update(page: cell_display.Notebook) -> None:
    page._next = 0.0  # as if some time had passed
    page.update()


def test_a_notebook_has_one_text_that_is_replaced(notebook):
    output = Output([0, 1])
    page = following(output)
    update(page)
    assert notebook.messages == 0
    output.receive(1, text("b\n"))
    update(page)
    output.receive(0, text("a\n"))
    update(page)
    assert notebook.text() == ["rank 0: a\nrank 1: b"] and notebook.messages == 2
    page.end()
    assert notebook.messages == 2  # nothing had changed


def test_a_status_is_below_the_text_and_leaves_nothing(notebook):
    output = Output([0])
    page = following(output)
    page.status("2 s: rank 0 computes")
    assert notebook.text() == ["2 s: rank 0 computes"]
    output.receive(0, text("a\n"))
    update(page)
    assert notebook.text() == ["rank 0: a\n2 s: rank 0 computes"]
    page.end()
    assert notebook.text() == ["rank 0: a"]


@pytest.mark.parametrize("alone", [True, False])
def test_a_status_with_no_output_leaves_nothing(monkeypatch, alone):
    frontend = Frontend(monkeypatch, alone)
    page = following(Output([0]))
    page.status("2 s: rank 0 computes")
    page.end()
    # Other outputs of the same cell of the notebook must not be cleared: this one has no data.
    assert [*frontend.shown.values()] == ([] if alone else [{}])


def test_figures_that_become_one_leave_no_gap(notebook):
    output = Output([0, 1])
    page = following(output)
    output.receive(0, shown(**{"application/x": 1, "text": "W"}))
    output.receive(1, shown(**{"application/x": 2, "text": "W"}, name="it"))
    update(page)
    assert len(notebook.text()) == 4
    output.receive(1, shown("update_display_data", name="it", **{"application/x": 1, "text": "W"}))
    page.end()
    assert notebook.text() == ["ranks 0, 1:", "W"]


def test_a_notebook_that_does_not_stream_shows_one_output(notebook):
    output = output_of(r0=["a\n"])
    page = following(output, stream=False)
    update(page)
    assert notebook.messages == 0
    page.end()
    assert notebook.text() == ["rank 0: a"] and notebook.messages == 1


def test_updates_are_few(monkeypatch):
    """A server drops output above a rate, and a page that changes all the time is not readable."""
    frontend = Frontend(monkeypatch)
    monkeypatch.setattr(cell_display, "OFTEN", 1000.0)
    output = Output([0])
    page = following(output)
    for i in range(1000):
        output.receive(0, text(f"{i}\n"))
        page.update()
    assert frontend.messages == 1
    page.end()
    assert frontend.messages == 2 and frontend.text()[0].splitlines()[-1] == "rank 0: 999"

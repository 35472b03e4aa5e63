"""`Screen`: what one rank has printed, as a terminal would show it; a bounded part of it is kept.

A carriage return lets a line be overwritten (progress bars), a backspace erases a character, and
"cursor up" goes back to an earlier line (nested bars of tqdm). Colours stay in the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

CONTROL = re.compile(
    r"(\n|\r|\x08+|\x1b\[\d*[AJK]"  # new line, return, backspaces; cursor up, erase
    r"|\x1b\[[0-9;?]*[@-IL-Za-ln-z`]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x07)"  # shown by nobody
)
UNFINISHED = re.compile(r"\x1b(\[[0-9;?]*|\][^\x07\x1b]*\x1b?)?\Z")
FIRST, MOST = 200, 2_000_000  # lines at the beginning that are kept; characters that are kept
WIDTH = 5_000  # characters of a line that are kept
REACH = 50  # lines that "cursor up" can go back


class Row(NamedTuple):
    """A line: the stream's name and the text; or, with the name "", the number of lines dropped."""

    name: str
    text: str


class Line:
    """A line that may still change."""

    __slots__ = ("name", "text", "width")

    def __init__(self, name: str):
        self.name, self.text, self.width = name, "", 0

    def set(self, text: str) -> None:
        self.text, self.width = text, len(text)

    def add(self, text: str) -> None:
        self.width += len(text)
        self.text = (self.text + text)[:WIDTH]

    def row(self) -> Row:
        more = self.width - len(self.text)
        return Row(self.name, f"{self.text}... {more:,} characters more" if more else self.text)


class Cursor:
    """Where a stream writes: `at` is an index of its last lines, or their number: a new one."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.at, self.replace, self.rest = 0, False, ""

    def line(self) -> Line | None:
        return self.lines[self.at] if self.at < len(self.lines) else None


class Screen:
    """The lines that a rank has printed to stdout and stderr, in the order in which they began."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.gone = 0  # lines dropped after the first ones
        self._size = 0
        self._cursors: dict[str, Cursor] = {}

    def write(self, name: str, text: str) -> None:
        """Add what a stream, "stdout" or "stderr", got."""
        cursor = self._cursors.setdefault(name, Cursor())
        text, cursor.rest = cursor.rest + text, ""
        if cut := UNFINISHED.search(text):  # the rest of it comes with the next text
            text, cursor.rest = text[: cut.start()], text[cut.start() :]
        for number, piece in enumerate(CONTROL.split(text)):
            if number % 2 == 0:
                if piece:
                    self._put(name, cursor, piece)
            elif piece == "\n":
                self._end(name, cursor)
            elif piece == "\r":
                cursor.replace = True
            elif piece[0] == "\x08":
                if (line := cursor.line()) and not cursor.replace:
                    line.set(line.text[: -len(piece)])
            elif piece[-1] == "A" and piece[0] == "\x1b":
                cursor.at = max(0, cursor.at - int(piece[2:-1] or 1))
            elif piece[-1] in "JK" and (cursor.replace or piece[2:-1] == "2"):
                for line in cursor.lines[cursor.at :][: None if piece[-1] == "J" else 1]:
                    line.set("")

    def _put(self, name: str, cursor: Cursor, text: str) -> None:
        line = cursor.line() or self._new(name, cursor)
        if cursor.replace:
            line.set("")
            cursor.replace = False
        line.add(text)

    def _new(self, name: str, cursor: Cursor) -> Line:
        line = Line(name)
        self.lines.append(line)
        cursor.lines.append(line)
        return line

    def _end(self, name: str, cursor: Cursor) -> None:
        line = cursor.line() or self._new(name, cursor)
        cursor.at += 1
        cursor.replace = cursor.line() is not None
        if len(cursor.lines) > 2 * REACH:
            cursor.at -= REACH
            del cursor.lines[:REACH]
        self._size += len(line.text) + 1
        if self._size > MOST:
            last = FIRST + (len(self.lines) - FIRST) // 2
            self.gone += max(0, last - FIRST)
            del self.lines[FIRST:last]
            self._size = sum(len(each.text) + 1 for each in self.lines)

    def rows(self) -> tuple[list[Row], int]:
        """All lines, and how many of the last ones are not ended by a newline yet.

        White lines at the end, such as those of a bar that was removed, are left out.
        """
        rows = [line.row() for line in self.lines]
        if self.gone:
            rows.insert(FIRST, Row("", str(self.gone)))
        while rows and not rows[-1].text.strip():
            rows.pop()
        opened = [each.line() for each in self._cursors.values()]
        partial = bool(rows) and any(line is self.lines[-1] for line in opened if line)
        return rows, int(partial and len(rows) == len(self.lines) + bool(self.gone))

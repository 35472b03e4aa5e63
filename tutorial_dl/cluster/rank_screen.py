"""`Screen`: what one rank has printed, as a notebook would show it; a bounded part of it is kept.

A carriage return lets a line be overwritten (progress bars), a backspace erases a character, and
"cursor up" goes back to an earlier line (nested bars of tqdm). Colours stay in the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

CONTROL = re.compile(
    r"(\n|\r|\x08+|\x1b\[\d*[AK]"  # new line, return, backspaces; cursor up, erase the line
    r"|\x1b\[[0-9;?]*[@-JL-Za-ln-z`]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x07)"  # shown by nobody
)
UNFINISHED = re.compile(r"\x1b(\[[0-9;?]*|\][^\x07\x1b]*\x1b?)?\Z")
FIRST, MOST = 200, 2_000_000  # lines at the beginning that are kept; characters that are kept
WIDTH = 5_000  # characters of a line that are kept
REACH = 50  # lines that "cursor up" can go back


class Row(NamedTuple):
    """A line of a stream; or, with the name "", how many lines were dropped, as `more`."""

    name: str
    text: str
    more: int = 0  # characters that were dropped

    def whole(self) -> str:
        if not self.name:
            return f"... {self.more:,} lines, which were not kept"
        return f"{self.text}... {self.more:,} characters more" if self.more else self.text


class Stream:
    """Where a stream writes: its last lines, by number, and which of them, from 0, is written."""

    def __init__(self) -> None:
        self.lines: list[int] = []
        self.at, self.up, self.replace, self.rest = 0, 0, False, ""


class Screen:
    """The lines that a rank has printed to stdout and stderr, in the order in which they began."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._gone = self._size = 0  # lines dropped after the first ones; characters kept
        self._streams: dict[str, Stream] = {}

    def write(self, name: str, text: str) -> None:
        """Add what a stream, "stdout" or "stderr", got."""
        stream = self._streams.setdefault(name, Stream())
        text, stream.rest = stream.rest + text, ""
        if cut := UNFINISHED.search(text):  # the rest of it comes with the next text
            text, stream.rest = text[: cut.start()], text[cut.start() :]
        for number, piece in enumerate(CONTROL.split(text)):
            if number % 2 == 0:
                if piece:
                    row = self._row(stream)
                    self._set(name, stream, "" if stream.replace else row.text, piece, row.more)
            elif piece == "\n":
                self._end(name, stream)
            elif piece == "\r":
                stream.replace = True
            elif piece[0] == "\x08" and not stream.replace and self._row(stream).name:
                self._set(name, stream, self._row(stream).text[: -len(piece)])
            elif piece[-1] == "A" and piece[0] == "\x1b":
                stream.at = max(0, stream.at - int(piece[2:-1] or 1))
                stream.up = max(stream.up, len(stream.lines) - stream.at)
            elif (
                piece[-1] == "K" and (stream.replace or piece[2] == "2") and self._row(stream).name
            ):
                self._set(name, stream, "")

    def _index(self, number: int) -> int:
        return number if number < FIRST else number - self._gone

    def _row(self, stream: Stream) -> Row:
        if stream.at < len(stream.lines):
            return self._rows[self._index(stream.lines[stream.at])]
        return Row("", "")

    def _set(self, name: str, stream: Stream, before: str, new: str = "", more: int = 0) -> None:
        """Set the text of the stream's line, or of a new one."""
        more = max(0, more * bool(before) + len(before) + len(new) - WIDTH)
        row = Row(name, (before + new)[:WIDTH], more)
        stream.replace = stream.replace and not new
        if stream.at < len(stream.lines):
            self._rows[self._index(stream.lines[stream.at])] = row
        else:
            stream.lines.append(len(self._rows) + self._gone)
            self._rows.append(row)

    def _end(self, name: str, stream: Stream) -> None:
        if stream.at == len(stream.lines):
            self._set(name, stream, "")
        self._size += len(self._row(stream).text) + 1
        stream.at += 1
        stream.replace = stream.at < len(stream.lines)
        if len(stream.lines) > 2 * REACH:
            stream.at -= REACH
            del stream.lines[:REACH]
        if self._size > MOST:
            last = FIRST + (len(self._rows) - FIRST) // 2
            self._gone += max(0, last - FIRST)
            del self._rows[FIRST:last]
            self._size = sum(len(row.text) + 1 for row in self._rows)

    def rows(self) -> tuple[list[Row], int, int]:
        """All lines; how many of the last are not ended by a newline yet; how many may change.

        White lines at the end, such as those of a bar that was removed, are left out.
        """
        rows = list(self._rows)
        if self._gone:
            rows.insert(FIRST, Row("", "", self._gone))
        while rows and rows[-1].name and not rows[-1].text.strip():
            rows.pop()
        last = len(self._rows) + self._gone - 1
        begun = [each.lines[each.at] for each in self._streams.values()
                 if each.at < len(each.lines)]  # fmt: skip
        whole = len(rows) == len(self._rows) + bool(self._gone)
        ups = (each.up for each in self._streams.values())
        return rows, int(whole and last in begun), max(len(begun), *ups, 0)

"""`Screen`: what one rank has printed, as a notebook would show it; a bounded part of it is kept.

A carriage return lets a line be overwritten (progress bars), a backspace erases a character, and
"cursor up" goes back to an earlier line (nested bars of tqdm). Colours stay in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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


class Text(NamedTuple):
    """Lines printed one after the other.

    The last `partial` ones have not ended yet. `numbers` are those of the lines, which ascend over
    all that a rank prints in a cell. By stream, `changing` has the number from which on its lines
    may still change, because the rank goes on with one, or goes back to it for a progress bar.
    """

    rows: list[Row]
    partial: int = 0
    numbers: Sequence[int] = ()
    changing: Mapping[str, int] = {}


class Stream:
    """Where a stream writes: its last lines, by number, and which of them, from 0, is written."""

    def __init__(self) -> None:
        self.lines: list[int] = []
        self.at, self.up, self.replace, self.rest = 0, 0, False, ""

    def forget(self, first: int, last: int) -> None:
        """Lines [first, last) have been dropped. A stream that was in one begins a new line."""
        gone = [first <= line < last for line in self.lines]
        self.at -= sum(gone[: self.at])
        self.lines = [line for line, dropped in zip(self.lines, gone, strict=True) if not dropped]
        self.up = min(self.up, len(self.lines))
        self.replace = self.replace and self.at < len(self.lines)


class Screen:
    """The lines that a rank has printed to stdout and stderr, in the order in which they began."""

    def __init__(self, numbers: Iterator[int]) -> None:
        """`numbers` gives each line its number."""
        self._numbers = numbers
        self._rows: list[Row] = []
        self._named: list[int] = []  # their numbers
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
            self._named.append(next(self._numbers))

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
            del self._rows[FIRST:last], self._named[FIRST:last]
            for each in self._streams.values():
                each.forget(FIRST, FIRST + self._gone)
            self._size = sum(len(row.text) + 1 for row in self._rows)

    def rows(self) -> Text:
        """All lines, without white ones at the end, such as those of a bar that was removed."""
        rows, numbers = list(self._rows), list(self._named)
        open_, changing = set(), {}
        for name, stream in self._streams.items():
            first = max(0, min(stream.at, len(stream.lines) - stream.up))
            for line in stream.lines[first : first + 1]:
                changing[name] = numbers[self._index(line)]
            for line in stream.lines[stream.at : stream.at + 1]:
                open_.add(numbers[self._index(line)])
        if self._gone:
            rows.insert(FIRST, Row("", "", self._gone))
            numbers.insert(FIRST, numbers[FIRST] - 1)  # that of the last of them
        whole = len(rows)
        while rows and rows[-1].name and not rows[-1].text.strip():
            rows.pop()
        partial = int(len(rows) == whole > 0 and numbers[-1] in open_)
        return Text(rows, partial, numbers[: len(rows)], changing)

"""`Output`: what the ranks of a cell have shown, as a notebook would show it; a part is kept.

The client's thread calls `receive`; the notebook's main thread takes `snapshot`s and shows them
(cell_layout.py says how, cell_display.py does it). Each rank has a `Screen` of lines and displays.
A carriage return lets a line be overwritten (progress bars), a backspace erases a character, and
"cursor up" goes back to an earlier line (nested bars of tqdm). Colours stay in the text.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterable
from typing import NamedTuple

from .protocol import VALUE

CONTROL = re.compile(
    r"(\n|\r|\x08+|\x1b\[\d*[AK]"  # new line, return, backspaces; cursor up, erase the line
    r"|\x1b\[[0-9;?]*[@-JL-Za-ln-z`]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x07)"  # shown by nobody
)
UNFINISHED = re.compile(r"\x1b(\[[0-9;?]*|\][^\x07\x1b]*\x1b?)?\Z")
FIRST, MOST = 200, 2_000_000  # lines at the beginning that are kept; characters that are kept
WIDTH = 5_000  # characters of a line that are kept
REACH = 50  # lines that "cursor up" can go back
DISPLAYS = 50  # figures and the like that are kept; the later ones are only counted


class Row(NamedTuple):
    """A line of "stdout" or "stderr"; or a "note" that `lines` lines, or displays, were dropped."""

    name: str
    text: str
    more: int = 0  # characters that were dropped
    lines: int = 1

    def whole(self) -> str:
        return f"{self.text}... {self.more:,} characters more" if self.more else self.text


class Rich(NamedTuple):
    """Something displayed: a figure, a table, or (`result`) the value of the last expression."""

    data: dict  # by MIME type
    metadata: dict
    result: bool = False
    name: str | None = None  # display_id, by which an engine replaces it

    def same(self) -> str:
        """Equal for displays to be shown once: the text beside a figure may have an address."""
        shown = {kind: each for kind, each in self.data.items() if kind != "text/plain"}
        return json.dumps([shown or self.data, self.result], sort_keys=True)

    @property
    def rows(self) -> list[Row]:
        """Its text."""
        text = self.data.get("text/plain", "")
        return [Row("stdout", line) for line in "".join(text).splitlines()]


class Text(NamedTuple):
    """Lines printed one after the other; `partial`: the last one has not ended yet."""

    rows: list[Row]
    partial: bool = False


Part = Text | Rich


class Item:
    """A place of the screen; what it shows may change until it is `printed` in a terminal."""

    def __init__(self, shows: Row | Rich):
        self.shows, self.printed = shows, False

    @property
    def is_line(self) -> bool:
        return isinstance(self.shows, Row)

    def is_white(self) -> bool:
        return self.is_line and not self.shows.text.strip()


class Stream:
    """Where a stream writes: its last lines, and which of them, from 0, is written."""

    def __init__(self) -> None:
        self.lines: list[Item] = []
        self.at, self.up, self.replace, self.rest = 0, 0, False, ""

    def here(self) -> list[Item]:
        """The line that is written, if it has begun."""
        return self.lines[self.at : self.at + 1]

    def changing(self) -> list[Item]:
        """Lines that may still change: the stream goes on with one, or goes back to a bar."""
        return self.lines[max(0, min(self.at, len(self.lines) - self.up)) :]


class Screen:
    """Lines that a rank has printed, in the order in which they began, and its displays."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._streams: dict[str, Stream] = {}
        self._size = 0  # characters kept
        self._clears = False  # before something more is shown
        self._notes: dict[str, Item] = {}  # by what they count

    def write(self, name: str, text: str) -> None:
        """Add what a stream, "stdout" or "stderr", got."""
        self._begin()
        stream = self._streams.setdefault(name, Stream())
        text, stream.rest = stream.rest + text, ""
        if cut := UNFINISHED.search(text):  # the rest of it comes with the next text
            text, stream.rest = text[: cut.start()], text[cut.start() :]
        empty = Row(name, "")
        for number, piece in enumerate(CONTROL.split(text)):
            row = next((item.shows for item in stream.here()), None)
            if number % 2 == 0:
                if piece:
                    self._set(stream, empty if stream.replace else row or empty, piece)
            elif piece == "\n":
                self._end(stream, row or empty)
            elif piece == "\r":
                stream.replace = True
            elif piece[0] == "\x08" and row and not stream.replace:
                self._set(stream, row._replace(text=row.text[: -len(piece)]))
            elif piece[-1] == "A" and piece[0] == "\x1b":
                stream.at = max(0, stream.at - int(piece[2:-1] or 1))
                stream.up = max(stream.up, len(stream.lines) - stream.at)
            elif piece[-1] == "K" and row and (stream.replace or piece[2] == "2"):
                self._set(stream, empty)

    def _begin(self) -> None:
        if self._clears:
            Screen.__init__(self)

    def _set(self, stream: Stream, row: Row, new: str = "") -> None:
        """Set the stream's line, or begin a new one."""
        text = row.text + new
        row = row._replace(text=text[:WIDTH], more=row.more + max(0, len(text) - WIDTH))
        stream.replace = stream.replace and not new
        for item in stream.here():
            item.shows = row
            return
        stream.lines.append(Item(row))
        self._items.append(stream.lines[-1])

    def _end(self, stream: Stream, row: Row) -> None:
        if not stream.here():
            self._set(stream, row)
        self._size += len(row.text) + 1
        stream.at += 1
        stream.replace = stream.at < len(stream.lines)
        if len(stream.lines) > 2 * REACH:
            stream.at -= REACH
            del stream.lines[:REACH]
        if self._size > MOST:
            self._shorten()

    def _shorten(self) -> None:
        """Drop lines in the middle, apart from those that streams can reach."""
        lines = [item for item in self._items if item.is_line and item.shows.name != "note"]
        middle = lines[FIRST : FIRST + (len(lines) - FIRST) // 2]
        drop = {*middle}.difference(*(stream.lines for stream in self._streams.values()))
        if drop:
            note = self._note("lines", len(drop), self._items.index(middle[0]))
            note.printed &= all(item.printed for item in drop)
            self._items = [item for item in self._items if item not in drop]
        self._size = sum(len(item.shows.text) + 1 for item in self._items if item.is_line)

    def _note(self, what: str, more: int, place: int) -> Item:
        """Say in a line that more lines, or displays, were not kept."""
        if what not in self._notes:
            note = self._notes[what] = Item(Row("note", "", lines=0))
            note.printed = place < len(self._items)  # lines that were there may have been printed
            self._items.insert(place, note)
        note = self._notes[what]
        count = note.shows.lines + more
        note.shows = Row("note", f"... {count:,} {what}, which were not kept", lines=count)
        return note

    def show(self, rich: Rich) -> None:
        self._begin()
        if not rich.result and sum(not item.is_line for item in self._items) >= DISPLAYS:
            self._note("more displays", 1, len(self._items))
            return
        self._streams.clear()  # what is printed next comes below it
        self._items.append(Item(rich))

    def update(self, name: str | None, data: dict, metadata: dict) -> None:
        """Replace the displays of this name."""
        for item in self._items:
            if not item.is_line and item.shows.name == name:
                item.shows = item.shows._replace(data=data, metadata=metadata)

    def clear(self, wait: bool) -> None:
        """Show nothing of what was; `wait`: only once there is something more."""
        self._clears = True
        if not wait:
            self._begin()

    def parts(self) -> list[Part]:
        """All it shows, without white lines before a display and at the end (a removed bar)."""
        parts: list[Part] = []
        being_written = [item for stream in self._streams.values() for item in stream.here()]
        for is_line, group in itertools.groupby(self._items, lambda item: item.is_line):
            if not is_line:
                parts += [item.shows for item in group]
                continue
            items = list(group)
            partial = items[-1] in being_written and not items[-1].is_white()
            if items := without_white_end(items):
                parts.append(Text([item.shows for item in items], partial))
        return parts

    def take(self, ended: bool) -> list[Row | Rich]:
        """What a terminal has to print now, apart from results: what will not change any more.

        `ended`: the cell has, so nothing will change.
        """
        changes = {item for stream in self._streams.values() for item in stream.changing()}
        changes.update(self._notes.values())
        items = without_white_end(self._items) if ended else self._items
        new = [item for item in items if not item.printed and (ended or item not in changes)]
        new = [item for item in new if item.is_line or not item.shows.result]
        for item in new:
            item.printed = True
        return [item.shows for item in new]


def without_white_end(items: list[Item]) -> list[Item]:
    last = len(items)
    while last and items[last - 1].is_white():
        last -= 1
    return items[:last]


class Output:
    """The output of a cell on `ranks`; `changes` grows with everything that arrives."""

    def __init__(self, ranks: Iterable[int]):
        self._screens = {rank: Screen() for rank in ranks}
        self._values: dict[int, list] = {}
        self._lock = threading.Lock()
        self.changes = 0

    def receive(self, rank: int, message: dict) -> None:
        """Take a message that an engine has published."""
        content, kind = message["content"], message["header"]["msg_type"]
        name = (content.get("transient") or {}).get("display_id")
        screen = self._screens[rank]
        with self._lock:
            if kind == VALUE:
                self._values[rank] = message["buffers"]
            elif kind == "stream":
                screen.write(content["name"], content["text"])
            elif kind in ("display_data", "execute_result"):
                result = kind == "execute_result"
                screen.show(Rich(content["data"], content["metadata"] or {}, result, name))
            elif kind == "update_display_data":
                screen.update(name, content["data"], content["metadata"] or {})
            elif kind == "clear_output":
                screen.clear(bool(content.get("wait")))
            else:
                return
            self.changes += 1

    def snapshot(self) -> dict[int, list[Part]]:
        """What each rank has shown, in the order in which it did."""
        with self._lock:
            return {rank: screen.parts() for rank, screen in self._screens.items()}

    def take(self, ended: bool) -> list[tuple[int, Row | Rich]]:
        """(rank, what a terminal has to print now), apart from results; see `Screen.take`."""
        with self._lock:
            return [(k, each) for k, one in self._screens.items() for each in one.take(ended)]

    def text(self, rank: int) -> str:
        """All that a rank has printed, and its displays and result as text."""
        return "\n".join(row.whole() for part in self.snapshot()[rank] for row in part.rows)

    def printed(self, rank: int, name: str) -> str:
        """All that a rank has printed to "stdout" or "stderr"."""
        texts = [part for part in self.snapshot()[rank] if isinstance(part, Text)]
        rows = [row for part in texts for row in part.rows if row.name in (name, "note")]
        text = "".join(f"{row.whole()}\n" for row in rows)
        ended = not (texts and texts[-1].partial and texts[-1].rows[-1].name == name)
        return text if ended else text[:-1]

    def take_values(self) -> dict[int, list]:
        """The buffers that ranks have published as VALUE, which are not kept any longer."""
        with self._lock:
            values, self._values = self._values, {}
        return values

"""`Output`: what the ranks of one cell have shown, collected from the messages of their engines.

The client's thread calls `receive`; the notebook's main thread takes `snapshot`s of it and shows
them (cell_layout.py says how, cell_display.py does it).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from .rank_screen import Row, Screen

DISPLAYS = 50  # figures and the like that are kept per rank; the later ones are only counted


class Rich(NamedTuple):
    """Something displayed: a figure, a table, or (`result`) the value of the last expression."""

    data: dict  # by MIME type
    metadata: dict
    result: bool = False
    name: str | None = None  # display_id, by which an engine replaces it

    def same(self) -> tuple[dict, bool]:
        """Equal for displays to be shown once: the text beside a figure may have an address."""
        shown = {kind: each for kind, each in self.data.items() if kind != "text/plain"}
        return shown or self.data, self.result


class Text(NamedTuple):
    """Lines printed one after the other; the last `partial` ones have not ended yet."""

    rows: list[Row]
    partial: int = 0


Part = Text | Rich


class Output:
    """The output of a cell on `ranks`; `changes` grows with everything that arrives."""

    def __init__(self, ranks: Iterable[int]):
        self._parts: dict[int, list[Screen | Rich]] = {rank: [] for rank in ranks}
        self._left_out = dict.fromkeys(self._parts, 0)
        self._clear: set[int] = set()  # ranks that show nothing more of before once they show more
        self._lock = threading.Lock()
        self._taken: dict[int, tuple[int, list[Part]]] = {}
        self._changed = dict.fromkeys(self._parts, 0)
        self.changes = 0
        self._arrived: list[tuple[int, str, str | Rich]] | None = None

    def receive(self, rank: int, message: dict) -> None:
        """Take a message that an engine has published."""
        content, kind = message["content"], message["header"]["msg_type"]
        with self._lock:
            if kind == "stream":
                self._write(rank, content["name"], content["text"])
            elif kind in ("display_data", "execute_result"):
                name = (content.get("transient") or {}).get("display_id")
                result = kind == "execute_result"
                self._show(rank, Rich(content["data"], content["metadata"] or {}, result, name))
            elif kind == "update_display_data":
                self._update(rank, content)
            elif kind == "clear_output":
                if content.get("wait"):
                    self._clear.add(rank)
                else:
                    self._parts[rank].clear()
            else:
                return
            self.changes += 1
            self._changed[rank] += 1

    def _write(self, rank: int, name: str, text: str) -> None:
        parts = self._begin(rank)
        if not parts or not isinstance(parts[-1], Screen):
            parts.append(Screen())
        parts[-1].write(name, text)
        if self._arrived is not None:
            self._arrived.append((rank, name, text))

    def _show(self, rank: int, rich: Rich) -> None:
        parts = self._begin(rank)
        if not rich.result and sum(isinstance(each, Rich) for each in parts) >= DISPLAYS:
            self._left_out[rank] += 1
            return
        parts.append(rich)
        if self._arrived is not None:
            self._arrived.append((rank, "", rich))

    def _begin(self, rank: int) -> list[Screen | Rich]:
        if rank in self._clear:
            self._clear.remove(rank)
            self._parts[rank].clear()
        return self._parts[rank]

    def _update(self, rank: int, content: dict) -> None:
        name = (content.get("transient") or {}).get("display_id")
        parts = self._parts[rank]
        for place, each in enumerate(parts):
            if isinstance(each, Rich) and each.name == name:
                parts[place] = each._replace(
                    data=content["data"], metadata=content["metadata"] or {}
                )

    def stream(self) -> None:
        """Note from now on what arrives, for `arrived`; it begins with what has arrived before."""
        with self._lock:
            self._arrived = []
            for rank, parts in self._parts.items():
                for part in parts:
                    if isinstance(part, Rich):
                        self._arrived.append((rank, "", part))
                        continue
                    rows, partial = part.rows()
                    for number, row in enumerate(rows):
                        end = "" if number >= len(rows) - partial else "\n"
                        self._arrived.append((rank, row.name or "stdout", row.text + end))

    def arrived(self) -> list[tuple[int, str, str | Rich]]:
        """(rank, stream, text or Rich) of what has arrived since the last call."""
        with self._lock:
            arrived, self._arrived = self._arrived or [], []
        return arrived

    def snapshot(self) -> dict[int, list[Part]]:
        """What each rank has shown, in the order in which it did."""
        with self._lock:
            for rank, parts in self._parts.items():
                changed = self._changed[rank]
                if self._taken.get(rank, (-1,))[0] != changed:
                    frozen = [Text(*p.rows()) if isinstance(p, Screen) else p for p in parts]
                    if left_out := self._left_out[rank]:
                        said = f"... {left_out} more displays, which were not kept"
                        frozen.append(Text([Row("stdout", said)]))
                    frozen = [p for p in frozen if isinstance(p, Rich) or p.rows]
                    self._taken[rank] = changed, frozen
            return {rank: self._taken[rank][1] for rank in self._parts}

    def text(self, rank: int) -> str:
        """All that a rank has printed, and its displays and result as text."""
        lines = []
        for part in self.snapshot()[rank]:
            if isinstance(part, Rich):
                lines += as_text(part).splitlines()
            else:
                lines += [row.text if row.name else dropped(int(row.text)) for row in part.rows]
        return "\n".join(lines)


def as_text(rich: Rich) -> str:
    text = rich.data.get("text/plain", "")
    return "".join(text) if isinstance(text, list) else str(text)


def dropped(lines: int) -> str:
    return f"... {lines:,} lines, which were not kept"

"""`Output`: what the ranks of one cell have shown, collected from the messages of their engines.

The client's thread calls `receive`; the notebook's main thread takes `snapshot`s of it and shows
them (cell_layout.py says how, cell_display.py does it).
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable
from typing import NamedTuple

from .protocol import VALUE
from .rank_screen import Row, Screen, Text

DISPLAYS = 50  # figures and the like that are kept per rank; the later ones are only counted


class Rich(NamedTuple):
    """Something displayed: a figure, a table, or (`result`) the value of the last expression."""

    data: dict  # by MIME type
    metadata: dict
    result: bool = False
    name: str | None = None  # display_id, by which an engine replaces it
    number: int = -1  # as of lines (`Text`)

    def same(self) -> str:
        """Equal for displays to be shown once: the text beside a figure may have an address."""
        shown = {kind: each for kind, each in self.data.items() if kind != "text/plain"}
        return json.dumps([shown or self.data, self.result], sort_keys=True)


Part = Text | Rich


class Output:
    """The output of a cell on `ranks`; `changes` grows with everything that arrives."""

    def __init__(self, ranks: Iterable[int]):
        self._parts: dict[int, list[Screen | Rich]] = {rank: [] for rank in ranks}
        self._numbers = {rank: itertools.count() for rank in self._parts}
        self._left_out = dict.fromkeys(self._parts, 0)
        self._clear: set[int] = set()  # ranks that show nothing more of before once they show more
        self._values: dict[int, list] = {}
        self._lock = threading.Lock()
        self.changes = 0

    def receive(self, rank: int, message: dict) -> None:
        """Take a message that an engine has published."""
        content, kind = message["content"], message["header"]["msg_type"]
        with self._lock:
            if kind == VALUE:
                self._values[rank] = message["buffers"]
            elif kind == "stream":
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

    def _write(self, rank: int, name: str, text: str) -> None:
        parts = self._begin(rank)
        if not parts or not isinstance(parts[-1], Screen):
            parts.append(Screen(self._numbers[rank]))
        parts[-1].write(name, text)

    def _show(self, rank: int, rich: Rich) -> None:
        parts = self._begin(rank)
        if not rich.result and sum(isinstance(each, Rich) for each in parts) >= DISPLAYS:
            self._left_out[rank] += 1
            return
        parts.append(rich._replace(number=next(self._numbers[rank])))

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

    def snapshot(self) -> dict[int, list[Part]]:
        """What each rank has shown, in the order in which it did."""
        with self._lock:
            return {rank: self._frozen(rank) for rank in self._parts}

    def _frozen(self, rank: int) -> list[Part]:
        frozen = [p.rows() if isinstance(p, Screen) else p for p in self._parts[rank]]
        if left_out := self._left_out[rank]:
            said = f"... {left_out} more displays, which were not kept"
            frozen.append(Text([Row("stdout", said)]))
        return [part for part in frozen if isinstance(part, Rich) or part.rows]

    def text(self, rank: int) -> str:
        """All that a rank has printed, and its displays and result as text."""
        lines: list[str] = []
        for part in self.snapshot()[rank]:
            if isinstance(part, Rich):
                lines += as_text(part).splitlines()
            else:
                lines += [row.whole() for row in part.rows]
        return "\n".join(lines)

    def printed(self, rank: int, name: str) -> str:
        """All that a rank has printed to "stdout" or "stderr"."""
        shown = self.snapshot()[rank]
        texts = [part for part in shown if isinstance(part, Text) and part.numbers]
        rows = [row for part in texts for row in part.rows if row.name in (name, "")]
        text = "".join(f"{row.whole()}\n" for row in rows)
        ended = not (texts and texts[-1].partial and texts[-1].rows[-1].name == name)
        return text if ended else text[:-1]

    def take_values(self) -> dict[int, list]:
        """The buffers that ranks have published as VALUE, which are not kept any longer."""
        with self._lock:
            values, self._values = self._values, {}
        return values


def as_text(rich: Rich) -> str:
    text = rich.data.get("text/plain", "")
    return "".join(text) if isinstance(text, list) else str(text)

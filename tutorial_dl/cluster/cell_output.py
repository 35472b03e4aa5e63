"""`Output`: what the ranks of one cell have shown, collected from the messages of their engines.

The client's thread calls `receive`; the notebook's main thread takes `snapshot`s of it and shows
them (cell_layout.py says how, cell_display.py does it).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from .protocol import VALUE
from .rank_screen import Part, Rich, Row, Screen, Text


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
        parts = self.snapshot()[rank]
        rows = [row for part in parts for row in (part.rows if is_text(part) else part.rows())]
        return "\n".join(row.whole() for row in rows)

    def printed(self, rank: int, name: str) -> str:
        """All that a rank has printed to "stdout" or "stderr"."""
        texts = [part for part in self.snapshot()[rank] if is_text(part)]
        rows = [row for part in texts for row in part.rows if row.name in (name, "note")]
        text = "".join(f"{row.whole()}\n" for row in rows)
        ended = not (texts and texts[-1].partial and texts[-1].rows[-1].name == name)
        return text if ended else text[:-1]

    def take_values(self) -> dict[int, list]:
        """The buffers that ranks have published as VALUE, which are not kept any longer."""
        with self._lock:
            values, self._values = self._values, {}
        return values


def is_text(part: Part) -> bool:
    return isinstance(part, Text)

"""One line that says how far a cluster is, while it starts: in a terminal and in a notebook."""

from __future__ import annotations

import sys
import time

from IPython import get_ipython

EVERY = 0.5  # seconds between two looks at the clock; a new text shows at once


class Progress:
    """Shows a text and the seconds so far on one line, which `clear` takes away again.

    Where the output goes to a file it is silent: a line that is written over makes no sense there.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._width, self._text, self._next = 0, "", 0.0
        shell = type(get_ipython()).__name__
        self._shows = shell == "ZMQInteractiveShell" or getattr(sys.stdout, "isatty", bool)()

    def update(self, text: str) -> None:
        now = time.monotonic()
        if not self._shows or (text == self._text and now < self._next):
            return
        self._text, self._next = text, now + EVERY
        self._write(f"{text}, {now - self._began:.0f} s")

    def clear(self) -> None:
        if self._width:
            self._write("")
            print("\r", end="", flush=True)

    def _write(self, line: str) -> None:
        print("\r" + line.ljust(self._width), end="", flush=True)
        self._width = len(line)

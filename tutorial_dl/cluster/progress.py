"""A one-line progress display while a cluster starts, in a terminal or a notebook."""

from __future__ import annotations

import sys
import time

from IPython import get_ipython

EVERY = 0.5  # seconds between updates of the elapsed time; a new text shows at once


class Progress:
    """Shows a text and the elapsed seconds on one line, which `clear` removes again.

    It shows nothing if output goes to a file, where a line can't be overwritten.
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

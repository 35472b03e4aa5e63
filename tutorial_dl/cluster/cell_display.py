"""Show the output of a cell while it runs: in a notebook in place, in a terminal line by line."""

from __future__ import annotations

import shutil
import sys
import time
import uuid

from IPython import get_ipython
from IPython.display import clear_output, publish_display_data

from .cell_layout import Bundle, colours, layout, lines_of
from .cell_output import CONTROL, Output, Rich, Row

OFTEN = 0.3  # seconds between two updates of a notebook
RATE = 500_000  # bytes per second; Jupyter's server drops output above twice that
MAGICS = ("%%px", "%%mpi")


def page() -> Page:
    """A new page, as it is right for this process."""
    return Notebook() if getattr(get_ipython(), "kernel", None) is not None else Terminal()


class Page:
    """Shows an `Output`, and below it a status while the cell runs.

    Attributes:
        output: What to show; None while the cell has not begun.
        stream: Whether to show it while the cell runs, or at the end only.
        groupby: As in `layout`.
    """

    def __init__(self) -> None:
        self.output: Output | None = None
        self.stream, self.groupby = True, "order"
        self._said: set[str] = set()

    def follow(self, output: Output, stream: bool, groupby: str) -> None:
        """Begin to show this output."""
        self.output, self.stream, self.groupby = output, stream, groupby

    def update(self) -> None:
        """Show what has arrived since the last update, unless that was a moment ago."""

    def status(self, text: str) -> None:
        """Show this text, which may have several lines, in place of the one before; "": none."""

    def shows_status(self) -> bool:
        """Whether there is a place for a status, from which it can be removed again."""
        return True

    def say_once(self, why: str, text: str) -> None:
        """Print this text on stderr, unless one was for the same reason."""
        if text and why not in self._said:
            self._said.add(why)
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Show the whole output, and no status."""


class Notebook(Page):
    """Outputs below a notebook's cell that are replaced in place."""

    def __init__(self) -> None:
        super().__init__()
        self._status = ""
        self._shown: list[tuple[str, Bundle]] = []  # name and content of each output
        self._seen: tuple = (0, "")
        self._next = 0.0

    def status(self, text: str) -> None:
        self._status = text
        self.update()

    def update(self) -> None:
        now = time.monotonic()
        changes = self.output.changes if self.output is not None and self.stream else 0
        if (changes, self._status) == self._seen or now < self._next:
            return
        self._seen = changes, self._status
        bundles = self._bundles() if self.stream else []
        if self._status and bundles and bundles[-1].data.keys() == {"text/plain"}:
            text = bundles.pop().data["text/plain"]
            bundles.append(Bundle({"text/plain": f"{text}\n{self._status}"}))
        elif self._status:
            bundles.append(Bundle({"text/plain": self._status}))
        sent = self._show(bundles)
        took = time.monotonic() - now
        self._next = now + max(OFTEN, 10 * took, sent / RATE)

    def _bundles(self) -> list[Bundle]:
        return [] if self.output is None else layout(self.output.snapshot(), self.groupby)

    def end(self) -> None:
        self._status = ""
        bundles = self._bundles()
        if len(bundles) < len(self._shown) and alone():
            # What is not shown is not kept in the notebook either.
            clear_output(wait=bool(bundles))
            self._shown = []
        self._show(bundles)

    def _show(self, bundles: list[Bundle]) -> int:
        """Display these bundles in place of those shown; returns about how many bytes were sent."""
        sent = 0
        # Without data: JupyterLab would show an empty text as a blank strip.
        bundles = bundles + [Bundle({})] * (len(self._shown) - len(bundles))
        for place, bundle in enumerate(bundles):
            update = place < len(self._shown)
            if update and self._shown[place][1] == bundle:
                continue
            name = self._shown[place][0] if update else uuid.uuid4().hex
            publish_display_data(
                bundle.data, bundle.metadata, transient={"display_id": name}, update=update
            )
            self._shown[place : place + 1] = [(name, bundle)]
            sent += sum(len(each) for each in bundle.data.values() if isinstance(each, str))
        return sent


def alone() -> bool:
    """Whether all that the notebook's cell shows comes from one cell of ours."""
    request = get_ipython().kernel.get_parent("shell") or {}
    return request.get("content", {}).get("code", "").lstrip().startswith(MAGICS)


class Terminal(Page):
    """Whole lines as they come, each with its rank; results at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._status = ""

    def shows_status(self) -> bool:
        return getattr(sys.stderr, "isatty", bool)()

    def status(self, text: str) -> None:
        if text != self._status and self.shows_status():
            # A line that the terminal wraps could not be removed again.
            line = "; ".join(text.splitlines())[: shutil.get_terminal_size().columns - 1]
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            self._status = text

    def update(self) -> None:
        if self.output is not None and self.stream:
            self._print(ended=False)

    def _print(self, ended: bool) -> None:
        for rank, shown in self.output.take(ended):
            for row in [shown] if isinstance(shown, Row) else shown.rows:
                self.status("")
                line = colours(CONTROL.sub("", row.whole()), {}, row.name)  # they end with the line
                stream = sys.stderr if row.name == "stderr" else sys.stdout
                print(f"rank {rank}: {line}", file=stream, flush=True)

    def end(self) -> None:
        self.status("")
        if self.output is None:
            return
        parts = self.output.snapshot()
        if self.stream:
            self._print(ended=True)
            parts = {
                rank: [part for part in shown if isinstance(part, Rich) and part.result]
                for rank, shown in parts.items()
            }
        for line in lines_of(layout(parts, self.groupby)):
            print(line, flush=True)
        self.output = None

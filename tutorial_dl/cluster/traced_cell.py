"""%%mpi --trace: what every rank does during one cell, drawn below it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from IPython.display import display

SECONDS = 60.0  # that engines may take to begin or end; the first time they import Numba

_recording = None  # on an engine: the one that runs


def _begin() -> None:
    """Runs on an engine."""
    global _recording
    from tutorial_dl.training import timeline

    _end()  # one that a cell without an end has left
    _recording = timeline.record().start()


def _end() -> dict | None:
    """Runs on an engine: what it has recorded."""
    global _recording
    running, _recording = _recording, None
    return None if running is None else running.stop().taken


@contextmanager
def drawn(cells, ranks: list[int]) -> Iterator[None]:
    """Record what engines do inside, and draw it at the end, also of a cell that fails.

    Ranks that are blocked or lost have no row.
    """
    from tutorial_dl.training import timeline

    cells.check(ranks)
    cells.client[ranks].apply_async(_begin).get(timeout=SECONDS)
    try:
        yield
    finally:
        back = [rank for rank in ranks if rank not in cells.now or not cells.now[rank].pending()]
        back = [] if cells.lost() else back
        if back:
            taken = cells.client[back].apply_async(_end).get(timeout=SECONDS)
            whole = timeline.gather(taken)
            display(whole)
            for note in whole.notes():
                print(note)

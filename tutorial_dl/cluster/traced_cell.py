"""%%mpi --trace: record every rank's activity during one cell and draw it below the cell."""

from collections.abc import Iterator
from contextlib import contextmanager

from IPython.display import display

SECONDS = 60.0  # longest wait for engines to begin or end; the first time they import Numba

_recording = None  # on an engine: the recording in progress


def _begin() -> None:
    """Begin to record; runs on an engine."""
    global _recording
    from tutorial_dl.training import timeline

    _end()  # a recording left by a cell that never ended
    _recording = timeline.record().start()


def _end() -> dict | None:
    """End and return the recording; runs on an engine."""
    global _recording
    running, _recording = _recording, None
    return None if running is None else running.stop().taken


@contextmanager
def drawn(cells, ranks: list[int]) -> Iterator[None]:
    """Record the engines inside the block and draw the timeline at its end, also after a failure.

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

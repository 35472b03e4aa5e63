"""Timelines of what every rank does: spans of time, as a figure and as a trace for Perfetto.

Training, the same on every rank; after `fit` rank 0 has the spans of all ranks:

    from tutorial_dl import Trainer, timeline
    seen = timeline.Timeline()
    Trainer(model, dataset, timeline=seen).fit(2)
    if rank == 0:
        seen.save("train.json")     # open it at https://ui.perfetto.dev, or chrome://tracing
        seen.save("train.png")      # or .svg, .pdf; seen.figure() in a notebook

Your own spans, anywhere (each costs 0.1 us while nothing records):

    with timeline.span("load"):
        ...
    for batch in timeline.each("data", batches):
        ...

Any code, without a Trainer. On each rank (MPI and a Team are used if present, but not needed):

    with timeline.record() as recording:        # or recording = timeline.record().start() ...
        ...                                     # ... recording.stop()
    recording.taken                             # a dict of plain numbers, lists and texts

and in the process that has gathered the ranks' dicts (it needs no MPI):

    whole = timeline.gather([taken of rank 0, taken of rank 1, ...])    # a Timeline
    whole.figure();  whole.chrome();  whole.shares();  whole.notes()
    whole.save("cell.json");  a notebook shows `whole` as its figure

While a rank records, every collective of a Team is a span named after its call ("allreduce"), with
a span "wait" inside it; a synchronous step has "gradient" and "reduce + update", which is one pass
through memory. Time outside all spans is the user's own code, which counts as computing.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from numba_kernels.spans import each, span
from numba_kernels.trace.recording import LIMIT, Recording

from ..options import check_timeline
from .span_kinds import Row, flat, kind, share_out

__all__ = ["Timeline", "each", "gather", "record", "span"]


class Record(Recording):
    """A context manager that records what this process does; `taken` is the result.

    Args:
        limit: Number of spans (and of waits in compiled code) to keep; the last ones are kept.
        rank: The row in the figure; None: this process's MPI rank.
        node: Name of its node; None: the host's name.
    """

    def __init__(self, limit: int = LIMIT, rank: int | None = None, node: str | None = None):
        super().__init__(limit)
        if rank is None:
            mpi = sys.modules.get("mpi4py.MPI")
            in_use = mpi and mpi.Is_initialized() and not mpi.Is_finalized()
            rank = mpi.COMM_WORLD.rank if in_use else 0
        self.rank = rank
        self.node = socket.gethostname() if node is None else node
        self.taken: dict | None = None

    def stop(self) -> Record:
        super().stop()
        self.taken = {
            "rank": self.rank,
            "node": self.node,
            "begin": self.begin,  # ns of the node's monotonic clock, as for the spans
            "end": self.end,
            "spans": [list(each) for each in self.spans],  # [name, begin, end]
            "lost": self.lost,
            "others": self.others,
            "clock": [],  # [time, ahead of rank 0, error], if nodes have compared clocks
            "wall": time.time_ns() - time.perf_counter_ns(),  # time of day = clock + wall
        }
        return self


record = Record  # the name that users call


def gather(taken: Sequence[dict]) -> Timeline:
    """The timeline of ranks with the recordings `taken` (see `Record.stop`), in any order.

    Nodes that did not compare their clocks are aligned by their time of day, and `notes` says so.

    Raises:
        ValueError: If a rank occurs twice, or there is none.
    """
    whole = Timeline()
    whole.ranks = sorted(taken, key=lambda rank: rank["rank"])
    numbers = [rank["rank"] for rank in whole.ranks]
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"expected one recording per rank, got those of ranks {numbers}")
    return whole


class Timeline:
    """The spans of all ranks. Give an empty one to a Trainer, or let `gather` make one.

    Attributes:
        ranks: One dict per rank, as from `record`. After `fit`, rank 0 has those of all ranks for
            the last fit, and other ranks have their own, as has every rank if `fit` failed.
        limit: Spans that each rank keeps (see `record`).
    """

    def __init__(self, limit: int = LIMIT):
        self.limit = Recording(limit).limit  # raises ValueError if it is invalid
        self.ranks: list[dict] = []

    @contextmanager
    def over(self, team, complete=lambda: True) -> Iterator[None]:
        """Record what happens inside, on all ranks of `team`; collective, as Trainer.fit is.

        If `complete()` is false at the end, because ranks are lost, each keeps its own spans only.
        """
        from numba_kernels.team.bytes import collect
        from numba_kernels.trace.clocks import compare_clocks

        number = next(i for i, ranks in enumerate(team.nodes) if team.rank in ranks)
        node = f"node {number} ({socket.gethostname()})"
        first = compare_clocks(team)
        recording = record(self.limit, team.rank, node).start()
        try:
            yield
        except BaseException:
            self.ranks = [recording.stop().taken]  # other ranks' can't be collected any more
            raise
        own = recording.stop().taken
        if not complete():
            self.ranks = [own]
            return
        own["clock"] = [first, compare_clocks(team)]
        texts = collect(team, json.dumps(own).encode())
        self.ranks = [own] if texts is None else [json.loads(text) for text in texts]

    # Results

    @property
    def rows(self) -> list[Row]:
        """Every rank's spans on a common clock, in ns since the first recording began."""
        if not self.ranks:
            raise ValueError("nothing has been recorded: give this timeline to a Trainer first")
        rows = []
        for rank in self.ranks:
            ahead = (lambda t, w=rank["wall"]: -w) if self._by_wall() else _ahead(rank["clock"])
            row = Row(**{name: rank[name] for name in Row._fields})
            rows.append(_moved(row, ahead))
        first = min(row.begin for row in rows)
        return [_moved(row, lambda time: first) for row in rows]

    def shares(self) -> list[dict]:
        """One dict per rank: "rank", and the fractions "computing", "communicating", "waiting"."""
        return [
            {"rank": row.rank} | share_out(flat(row.spans), row.begin, row.end) for row in self.rows
        ]

    def notes(self) -> list[str]:
        """Notes on the spans: which are missing, and how well clocks agree."""
        notes = []
        for rank in self.ranks:
            who = f"rank {rank['rank']}"
            if rank["lost"]:
                notes.append(
                    f"{who}: the first {rank['lost']} spans are missing, the last "
                    f"{len(rank['spans'])} were kept"
                )
            if rank["others"]:
                notes.append(f"{who}: {rank['others']} spans of other threads are left out")
        if self._by_wall():
            notes.append("nodes are aligned by their time of day, which may differ by some ms")
        error = max((each[2] for rank in self.ranks for each in rank["clock"]), default=0)
        if error:
            notes.append(f"the clocks of nodes agree within {error / 1000:.1f} us")
        return notes

    def _by_wall(self) -> bool:
        compared = all(rank["clock"] for rank in self.ranks)
        return not compared and len({rank["node"] for rank in self.ranks}) > 1

    def chrome(self) -> dict:
        """The JSON object in Trace Event Format, which Perfetto and chrome://tracing open.

        A node is a "process", a rank is a "thread" of it. Each span is one event of phase "X"
        (complete), with its begin `ts` and its duration `dur` in microseconds; metadata, phase "M",
        name the rows. https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
        (Google, 2016)
        """
        rows, events = self.rows, []
        nodes = list(dict.fromkeys(row.node for row in rows))
        for pid, node in enumerate(nodes):
            events.append(_metadata("process_name", pid, {"name": node}))
            events.append(_metadata("process_sort_index", pid, {"sort_index": pid}))
        for row in rows:
            place = {"pid": nodes.index(row.node), "tid": row.rank}
            events.append(_metadata("thread_name", **place, args={"name": f"rank {row.rank}"}))
            events.append(_metadata("thread_sort_index", **place, args={"sort_index": row.rank}))
            events += [_complete(*each, place) for each in row.spans]
        notes = {"notes": self.notes()}
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": notes}

    def figure(self, window: tuple[float, float] | str = "auto"):
        """One row per rank, over time; see `plotting.spans`."""
        from .timeline_figure import spans

        return spans(self, window)

    def save(self, path) -> None:
        """Write the trace (.json) or the figure (.png, .svg, .pdf); ValueError for other names."""
        path = Path(path)
        check_timeline(path)
        if path.suffix.lower() == ".json":
            path.write_text(json.dumps(self.chrome(), separators=(",", ":")) + "\n")
        else:
            self.figure().savefig(path, bbox_inches="tight")

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return self.figure()._repr_mimebundle_() if self.ranks else {}

    def __repr__(self) -> str:
        spans = sum(len(rank["spans"]) for rank in self.ranks)
        return f"Timeline({len(self.ranks)} rank{'s'[: len(self.ranks) != 1]}, {spans} spans)"


def _complete(name: str, begin: int, end: int, place: dict) -> dict:
    times = {"ts": begin / 1000, "dur": (end - begin) / 1000}
    return {"name": name, "cat": kind(name), "ph": "X"} | times | place


def _metadata(name: str, pid: int, args: dict, tid: int = 0) -> dict:
    return {"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args}


def _moved(row: Row, by) -> Row:
    """The row with `by(time)` subtracted from all its times."""
    spans = [(name, begin - by(begin), end - by(end)) for name, begin, end in row.spans]
    times = {"begin": row.begin - by(row.begin), "end": row.end - by(row.end)}
    return row._replace(spans=spans, **times)


def _ahead(clock: list[list[int]]):
    """A function of time: how far a rank's clock is ahead, in ns, by linear interpolation."""
    if not clock:
        return lambda time: 0
    (first, at_first, _), (last, at_last, _) = clock[0], clock[-1]
    drift = (at_last - at_first) / max(1, last - first)
    return lambda time: at_first + round(drift * (time - first))

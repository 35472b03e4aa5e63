"""Spans as JSON in the Trace Event Format, which Perfetto and chrome://tracing open.

A node is a "process", a rank is a "thread" of it. Each span is one event of phase "X" (complete),
with its begin `ts` and its duration `dur` in microseconds; metadata, phase "M", name the rows.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Google, 2016)
"""

from __future__ import annotations

from collections.abc import Sequence

from .span_kinds import Row, kind


def trace(rows: Sequence[Row], notes: Sequence[str] = ()) -> dict:
    """The JSON object; it includes `notes`, which Perfetto shows under "Info and stats"."""
    nodes = list(dict.fromkeys(row.node for row in rows))
    events = []
    for pid, node in enumerate(nodes):
        events.append(_metadata("process_name", pid, {"name": node}))
        events.append(_metadata("process_sort_index", pid, {"sort_index": pid}))
    for row in rows:
        pid, tid = nodes.index(row.node), row.rank
        events.append(_metadata("thread_name", pid, {"name": f"rank {row.rank}"}, tid))
        events.append(_metadata("thread_sort_index", pid, {"sort_index": tid}, tid))
        events += [
            {
                "name": name,
                "cat": kind(name),
                "ph": "X",
                "ts": begin / 1000,
                "dur": (end - begin) / 1000,
                "pid": pid,
                "tid": tid,
            }
            for name, begin, end in row.spans
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"notes": list(notes)}}


def _metadata(name: str, pid: int, content: dict, tid: int = 0) -> dict:
    return {"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": content}

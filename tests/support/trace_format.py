"""A check of the Trace Event Format."""


def check_format(trace):
    """Check keys, types and phases, and that events of a thread nest."""
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    rows, named = {}, set()
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid", "tid"} <= set(event)
        assert type(event["pid"]) is type(event["tid"]) is int and type(event["name"]) is str
        if event["ph"] == "M":
            value = event["args"]["sort_index" if "sort_index" in event["name"] else "name"]
            assert type(value) is (int if "sort_index" in event["name"] else str)
            kinds = ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            assert event["name"] in kinds
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ph"] == "X" and type(event["cat"]) is str
        for key in ("ts", "dur"):
            assert isinstance(event[key], int | float) and 0 <= event[key] < 1e12
        begin = round(1000 * event["ts"])
        assert abs(begin / 1000 - event["ts"]) < 1e-6, "whole nanoseconds"
        end = begin + round(1000 * event["dur"])
        rows.setdefault((event["pid"], event["tid"]), []).append((begin, end))
    for (pid, tid), events in rows.items():
        assert {("process_name", pid, 0), ("thread_name", pid, tid)} <= named
        open_ends = []
        for begin, end in sorted(events, key=lambda e: (e[0], -e[1])):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], "they overlap, and don't nest"
            open_ends.append(end)
    return rows

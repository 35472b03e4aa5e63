"""Which cases of a test belong to `make test`, and which to `make test-all` alone.

    @pytest.mark.thorough                      all of them to `make test-all`
    @pytest.mark.thorough(but="3-window")      all but this one

`but` has the name of a case, or a list of names: what stands in brackets behind the test's name.
"""

from __future__ import annotations

UNKNOWN: dict[str, set[str]] = {}  # {test: names in its marker that none of its cases has}


def unmark_cases(items) -> None:
    """Take the marker from the cases that it names, so that `-m "not thorough"` selects them."""
    for item in items:
        mark = item.get_closest_marker("thorough")
        if mark is None or "but" not in mark.kwargs:
            continue
        but = mark.kwargs["but"]
        names = {but} if isinstance(but, str) else {*but}
        UNKNOWN.setdefault(item.nodeid.split("[")[0], {*names}).discard(item.callspec.id)
        if item.callspec.id in names:
            item.own_markers.remove(mark)

"""Which cases of a test belong to `make test`, and which to `make test-all` alone.

    @pytest.mark.thorough                      all of them to `make test-all`
    @pytest.mark.thorough(but="3-window")      all but this one

`but` has the name of a case, or a list of names: what stands in brackets after the test's name.
"""

from __future__ import annotations

UNKNOWN: dict[str, set[str]] = {}  # {test: words of its marker that name no case}


def unmark_cases(items) -> None:
    """Take the marker from the cases that it names, so that `-m "not thorough"` selects them."""
    for item in items:
        mark = item.get_closest_marker("thorough")
        if mark is None or not (mark.args or mark.kwargs):
            continue
        names = mark.kwargs.get("but", [])
        names = {names} if isinstance(names, str) else {*names}
        case = item.callspec.id if hasattr(item, "callspec") else ""
        misspelt = {*map(str, mark.args), *mark.kwargs} - {"but"}
        test = item.nodeid.split("[")[0]
        UNKNOWN.setdefault(test, names | misspelt).discard(case)
        if case in names:
            item.own_markers.remove(mark)

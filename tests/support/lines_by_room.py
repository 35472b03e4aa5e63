"""Counts the lines of Python in each room of the packages; as a script, prints the table.

`BUDGETS` says how many lines rooms may have; `test_rooms.py` fails where one has a tenth more.
Rooms in `ABOVE` have not come down to their budgets yet: they may shrink, but not grow.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import fill

ROOT = Path(__file__).parents[2]
PACKAGES = ("numba_kernels", "tutorial_dl")
BUDGETS = {  # a room, several, or a file of tutorial_dl
    "numba_kernels": 12000,
    "course": 6000,
    "model_parallel": 4900,
    "cluster": 4400,
    "replica": 4000,
    "tuning": 3200,
    "simulate": 850,
    "runtime": 3000,
    "data": 3000,
    "training": 2700,
    "interop horovod layers": 2200,
    "cli config options": 2800,
    "strategies": 1400,
    "bench": 600,
    "layout": 800,
    "models checkpoint quality (files)": 2200,
}
ABOVE = {  # the most lines that these may have until they are within their budgets
    "numba_kernels": 14730,
    "course": 7300,
    "model_parallel": 5820,
    "cluster": 5760,
    "replica": 6300,
    "tuning": 4920,
    "runtime": 3700,
    "data": 3360,
    "training": 3420,
    "interop horovod layers": 2960,
    "cli config options": 3850,
    "strategies": 2350,
    "layout": 1100,
    "models checkpoint quality (files)": 2650,
}


def counted() -> dict[str, Counter[str]]:
    """By package, the lines of each room with its folders; "(files)" are those beside the rooms."""
    found = {}
    for package in PACKAGES:
        rooms = found[package] = Counter()
        for file in (ROOT / package).rglob("*.py"):
            parts = file.relative_to(ROOT / package).parts
            rooms[parts[0] if len(parts) > 1 else "(files)"] += lines_of(file)
    return found


def lines_of(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def by_budget() -> dict[str, int]:
    """The lines of what each of `BUDGETS` covers."""
    rooms = counted()
    ours = rooms["tutorial_dl"]
    for name in ("config", "options"):  # files that have a budget elsewhere
        ours[name] = lines_of(ROOT / "tutorial_dl" / f"{name}.py")
        ours["(files)"] -= ours[name]
    whole = {"numba_kernels": rooms["numba_kernels"].total()}
    return {names: whole.get(names) or sum(ours[n] for n in names.split()) for names in BUDGETS}


def lines_by_room() -> str:
    """The total, and per package its lines and those of its rooms, the largest first."""
    table, total = [], 0
    for package, rooms in counted().items():
        entries = ", ".join(f"{room}\N{NO-BREAK SPACE}{n:,}" for room, n in rooms.most_common())
        table.append(fill(f"{package} {rooms.total():,}: {entries}", 96, subsequent_indent="  "))
        total += rooms.total()
    head = f"lines by room: {total:,}; budget {sum(BUDGETS.values()):,}"
    return "\n".join([head, *table]).replace("\N{NO-BREAK SPACE}", " ")


if __name__ == "__main__":
    print(lines_by_room())

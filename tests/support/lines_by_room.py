"""Counts the lines of Python in each room of the packages; as a script, prints the table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import fill

ROOT = Path(__file__).parents[2]
PACKAGES = ("numba_kernels", "tutorial_dl")


def lines_by_room() -> str:
    """The total, and per package its lines and those of its rooms, the largest first.

    A room includes the folders in it. Files beside the rooms count as "(files)".
    """
    table, total = [], 0
    for package in PACKAGES:
        rooms = Counter()
        for file in (ROOT / package).rglob("*.py"):
            parts = file.relative_to(ROOT / package).parts
            rooms[parts[0] if len(parts) > 1 else "(files)"] += file.read_bytes().count(b"\n")
        entries = ", ".join(f"{room}\N{NO-BREAK SPACE}{n:,}" for room, n in rooms.most_common())
        table.append(fill(f"{package} {rooms.total():,}: {entries}", 96, subsequent_indent="  "))
        total += rooms.total()
    return "\n".join([f"lines by room: {total:,}", *table]).replace("\N{NO-BREAK SPACE}", " ")


if __name__ == "__main__":
    print(lines_by_room())

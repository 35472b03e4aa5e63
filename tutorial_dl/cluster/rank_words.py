"""Ranks in words, and what waiting ranks wait for: "ranks 0-2 wait in barrier for rank 3"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine_hooks import Doing


def fold(numbers: Iterable[int]) -> str:
    """Format numbers in ascending order, three or more in a row as a range: "0, 1, 4-7"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    return ", ".join(word for part in parts for word in part)


def ranks(numbers: Iterable[int]) -> str:
    """Format ranks as "rank 3", "ranks 0, 2" or "ranks 0-3"."""
    numbers = set(numbers)
    return f"rank{'s'[: len(numbers) != 1]} {fold(numbers)}"


def missing(answers: Mapping[int, Doing]) -> dict[int, list[int]]:
    """The ranks that each waiting rank waits for, by rank; no entry for ranks that do not wait.

    A rank that waits for messages does not know who is late. But no rank of its team that waits in
    the same call is, so the others are.
    """
    waiting = {rank: doing for rank, doing in answers.items() if doing.waits}
    found = {}
    for rank, doing in waiting.items():
        together = {other for other, each in waiting.items() if each.meeting() == doing.meeting()}
        absent = doing.team if doing.missing is None else doing.missing
        found[rank] = sorted(set(absent) - together)
    return found


def waits(answers: Mapping[int, Doing]) -> list[str]:
    """A sentence for each group of ranks that wait in the same call for the same ranks."""
    groups: dict[str, list[int]] = {}
    for rank, absent in missing(answers).items():
        groups.setdefault(waits_in(answers[rank], absent), []).append(rank)
    return [f"{ranks(group)} wait{'s'[: len(group) == 1]} {what}" for what, group in groups.items()]


def waits_in(doing: Doing, absent: Iterable[int]) -> str:
    """What follows "wait" or "waiting": "in barrier for rank 3"."""
    absent = list(absent)
    return f"in {doing.waits}{f' for {ranks(absent)}' if absent else ''}"

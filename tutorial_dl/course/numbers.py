"""The numbers on slides: measured by commands of the project, and kept with date and machine."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from numba_kernels.bench.timing import machine

SECONDS = 900  # a command may take so long


class Number(NamedTuple):
    """A number: the command whose JSON it is taken from, what it is, and how it is taken."""

    command: str
    what: str
    of: Callable[[dict | list], str]


# Each writes JSON to the file that is put in place of FILE.
COMMANDS = {
    "kernels": "numba_kernels bench all -n 2 --seconds 40 --json FILE",
    "training": "tutorial_dl run --report REPORT --json FILE",
}


def ratio(what: str, **wanted) -> Callable[[dict], str]:
    """Takes "2.3" from the row of a benchmark: the peer's time over ours."""

    def of(result: dict) -> str:
        wanted["what"] = what
        fitting = [one for one in result["rows"] if all(one.get(k) == v for k, v in wanted.items())]
        return f"{max(one['ratio'] for one in fitting):.1f}"

    return of


NUMBERS = {
    "allreduce_1mib": Number(
        "kernels",
        "allreduce of 1 MiB, MPI's time over ours",
        ratio("allreduce, full cycle", bytes=2**20),
    ),
    "allreduce_64mib": Number(
        "kernels",
        "allreduce of 64 MiB, MPI's time over ours",
        ratio("allreduce, full cycle", bytes=2**26),
    ),
}


def measure(names=tuple(NUMBERS)) -> dict:
    """Run the commands that the numbers need.

    Returns {"date", "machine", "numbers": {name: text}, "commands": {name: command line}}.

    Raises:
        RuntimeError: a command failed; has the last line that it wrote.
    """
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in {NUMBERS[each].command for each in names}:
            file = Path(folder, f"{name}.json")
            words = [
                {"FILE": str(file), "REPORT": str(Path(folder, "report.html"))}.get(word, word)
                for word in COMMANDS[name].split()
            ]
            done = subprocess.run(
                [sys.executable, "-m", *words], capture_output=True, text=True, timeout=SECONDS
            )
            if done.returncode:
                said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
                raise RuntimeError(f"python -m {COMMANDS[name]}: {said[0]}")
            results[name] = json.loads(file.read_text())
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "numbers": {name: NUMBERS[name].of(results[NUMBERS[name].command]) for name in names},
        "commands": {name: f"python -m {COMMANDS[NUMBERS[name].command]}" for name in names},
    }

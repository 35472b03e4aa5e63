"""`python slides/measure.py FILE`: measures the numbers on slides, in some minutes.

They are what commands of the project write, and are kept with date and machine.
"""

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
TRAIN = (
    "tutorial_dl train -n {ranks} --model dense --data digits --epochs 20 --batch-size {batch} "
    "--base-batch-size 32 --batch-rule linear --warm-up 5 --optimizer momentum "
    "--learning-rate 0.02 --json FILE"
)
DIGITS = {32: 1, 256: 2, 1024: 2}  # batch size: ranks
# Each writes JSON to the file that is put in place of FILE.
COMMANDS = {
    "allreduce": "numba_kernels bench allreduce -n 2 --seconds 30 --json FILE",
    **{f"digits_{batch}": TRAIN.format(ranks=p, batch=batch) for batch, p in DIGITS.items()},
}


class Number(NamedTuple):
    """A number: what it is, the command whose JSON it is taken from, and how it is taken."""

    what: str
    command: str
    of: Callable[[dict], str]


def times_as_fast(what: str, size: int) -> Callable[[dict], str]:
    """Takes the peer's time over ours, as in "2.3", from the rows of a benchmark of this size."""

    def of(result: dict) -> str:
        rows = [one for one in result["rows"] if (one["what"], one["bytes"]) == (what, size)]
        return f"{max(one['ratio'] for one in rows):.1f}"

    return of


def seconds(result: dict) -> str:
    return f"{result['seconds']:.2g}"


def accuracy(result: dict) -> str:
    return f"{result['val_accuracy']:.1%}"


CYCLE = "allreduce, full cycle"
NUMBERS = {
    "allreduce_1mib": Number(
        "allreduce of 1 MiB: MPI's time over ours", "allreduce", times_as_fast(CYCLE, 2**20)
    ),
    "allreduce_64mib": Number(
        "allreduce of 64 MiB: MPI's time over ours", "allreduce", times_as_fast(CYCLE, 2**26)
    ),
}
for _batch in DIGITS:
    _of, _name = f"20 epochs of digits in batches of {_batch}", f"digits_{_batch}"
    NUMBERS[f"{_name}_seconds"] = Number(f"{_of}: seconds", _name, seconds)
    NUMBERS[f"{_name}_accuracy"] = Number(f"{_of}: validation accuracy", _name, accuracy)


def measure() -> dict:
    """Run the commands that the numbers need.

    Returns {"date", "machine", "numbers": {name: text}, "about": {name: what it is}, "commands":
    {name: command line}}.

    Raises:
        RuntimeError: A command failed; has the last line that it wrote.
    """
    results = {name: output_of(command) for name, command in COMMANDS.items()}
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "numbers": {name: one.of(results[one.command]) for name, one in NUMBERS.items()},
        "about": {name: one.what for name, one in NUMBERS.items()},
        "commands": {name: f"python -m {COMMANDS[one.command]}" for name, one in NUMBERS.items()},
    }


def output_of(command: str) -> dict:
    """The JSON that a command writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        words = [str(file) if word == "FILE" else word for word in command.split()]
        done = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, timeout=SECONDS
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
            raise RuntimeError(f"python -m {command}: {said[0]}")
        return json.loads(file.read_text())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python slides/measure.py FILE")
    try:
        made = measure()
        Path(sys.argv[1]).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    except (RuntimeError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{len(made['numbers'])} numbers in {sys.argv[1]}")

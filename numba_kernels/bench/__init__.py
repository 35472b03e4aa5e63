"""`python -m numba_kernels bench`: times this package against alternatives, in one run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from .. import launch
from .plot import check as check_plot
from .plot import draw

# The parts of each kind: (file, number of starts of its ranks, its share of --seconds).
KINDS = {
    "allreduce": (("allreduce", 3, 1.0),),
    "predictions": (("predictions", 3, 0.8),),
    "step": (("step", 3, 0.4),),
    "parameter-server": (("parameter_server", 3, 1.0),),
    "optimizers": (("optimizers", 1, 0.6),),
}
ALONE = "optimizers"  # measured on one rank
FULL = 2  # --full multiplies the number of starts by this
SECONDS, FULL_SECONDS = 20.0, 120.0  # time to measure, for all starts of a kind together


def main(words: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        words: arguments of the command; those of this process if None.

    Returns:
        The exit status: 0, or 2 after an error.
    """
    parser = argparse.ArgumentParser(
        prog="python -m numba_kernels",
        description="Kernels for distributed deep learning: measure them on this machine.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    bench = commands.add_parser(
        "bench", help="time the kernels against alternatives, interleaved, and print medians"
    )
    bench.add_argument("what", choices=[*KINDS, "all"], help="what to measure")
    bench.add_argument("-n", "--ranks", type=int, default=2, help="number of ranks (default 2)")
    bench.add_argument("--json", metavar="FILE", help="write the rows as JSON; - prints them")
    bench.add_argument(
        "--plot",
        metavar="FILE",
        help="draw the rows as .png, .svg or .pdf (default: beside the --json FILE)",
    )
    bench.add_argument(
        "--full",
        action="store_true",
        help="measure more sizes, with more starts: takes minutes, not seconds",
    )
    bench.add_argument(
        "--seconds",
        type=float,
        help=f"seconds of measuring per kind (default {SECONDS:g}, with --full {FULL_SECONDS:g})",
    )
    options = parser.parse_args(words)
    if options.seconds is None:
        options.seconds = FULL_SECONDS if options.full else SECONDS
    try:
        plot = check_options(options)
        result = measure(options)
        if options.json and options.json != "-":
            Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    except (ValueError, launch.LaunchError, OSError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from .rows import table

    print(json.dumps(result) if options.json == "-" else table(result))
    if plot:
        try:
            draw(result, plot)
        except ImportError as error:
            print(f"no plot in {plot}: {error} (pip install matplotlib)", file=sys.stderr)
    return 0


def check_options(options) -> Path | None:
    """Check the options before minutes are spent on measuring.

    Returns:
        The file to draw to; None for no drawing.

    Raises:
        ValueError: if an option is wrong.
    """
    launch.check_ranks(options.ranks)
    if not 0 < options.seconds < 3600:
        raise ValueError(f"--seconds must be above 0 and below 3600, got {options.seconds}")
    if options.what in ("allreduce", "predictions", "all") and options.ranks < 2:
        raise ValueError(f"-n must be at least 2 to measure an allreduce, got {options.ranks}")
    if options.what == "parameter-server" and options.ranks < 2:
        raise ValueError(
            f"-n must be at least 2 for a parameter server with a worker, got {options.ranks}"
        )
    file = check_file(options.json) if options.json and options.json != "-" else None
    if options.plot:
        return check_plot(check_file(options.plot))
    return file and file.with_suffix(".png")


def check_file(name: str) -> Path:
    """Check that a file called `name` can be created.

    Returns:
        Its path.

    Raises:
        ValueError: if `name` is a folder, or its folder does not exist.
    """
    path = Path(name)
    if path.is_dir():
        raise ValueError(f"{name} is a folder; it must be a file")
    if not path.parent.is_dir():
        raise ValueError(f"{name}: there is no folder {path.parent}")
    return path


def measure(options) -> dict:
    """Measure everything that the options ask for.

    Returns:
        The object that --json writes: {"machine", "load", "seconds", "starts", "rows"}. "load" is
        the load average of the last minute, before measuring began: above 1, all times are those
        of a busy machine. "starts" is the number of starts of each part.
    """
    from .timing import machine

    began, rows, starts = time.monotonic(), [], {}
    load = round(os.getloadavg()[0], 1)
    for kind in KINDS if options.what == "all" else [options.what]:
        ranks = 1 if kind == ALONE else options.ranks
        for part, times, share in KINDS[kind]:
            starts[part] = times * (FULL if options.full else 1)
            seconds = options.seconds * share / starts[part]
            rows += all_starts(part, ranks, starts[part], seconds, options.full)
    took = round(time.monotonic() - began, 1)
    facts = {"machine": machine(), "load": load, "seconds": took, "starts": starts}
    return facts | {"rows": rows}


def all_starts(part: str, ranks: int, times: int, seconds: float, full: bool) -> list[dict]:
    """Start the ranks `times` times, and measure for `seconds` each time."""
    from .rows import merge

    return merge([one_run(part, ranks, seconds, full) for _ in range(times)])


def one_run(part: str, ranks: int, seconds: float, full: bool) -> list[dict]:
    """Start the ranks once, and measure for `seconds`.

    Args:
        part: a module with a function `rows`: in this package, or by its full name in another.
        ranks: number of ranks.
        seconds: time to measure, in seconds.
        full: measure more sizes.

    Returns:
        The rows of this start.

    Raises:
        ValueError: if the ranks end with a status other than 0.
    """
    one_thread = dict.fromkeys(launch.THREAD_VARIABLES, "1")
    limit = 120 + 5 * seconds  # allows for imports, compilation and slow alternatives
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        call = f"one_start{(part, str(file), seconds, full)}"
        code = f"from numba_kernels.bench import one_start; {call}"
        done = launch.run_ranks(ranks, ["-c", code], env=one_thread, timeout=limit)
        if done.returncode:
            raise ValueError(f"bench {part} on {ranks} ranks ended with {done.returncode}")
        return json.loads(file.read_text())


def one_start(part: str, file: str, seconds: float, full: bool) -> None:
    """Measure for `seconds`, on every rank of a start; rank 0 writes the rows to `file`."""
    from mpi4py import MPI

    from .timing import pin

    pin(MPI.COMM_WORLD.rank)
    rows = import_module(part if "." in part else f".{part}", __name__).rows(seconds, full)
    if MPI.COMM_WORLD.rank == 0:
        Path(file).write_text(json.dumps(rows))

"""`python -m numba_kernels bench`: ours and what a user would take instead, in one run."""

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

# What is measured, in parts: (file, how often its ranks are started anew, its part of --seconds).
KINDS = {
    "allreduce": (("allreduce", 3, 1.0),),
    "predictions": (("predictions", 3, 0.8),),
    "step": (("step", 3, 0.4),),
    "parameter-server": (("parameter_server", 3, 1.0),),
    "optimizers": (("optimizers", 1, 0.6),),
}
ALONE = "optimizers"  # is measured on one rank
FULL = 2  # times as many starts
SECONDS, FULL_SECONDS = 20.0, 120.0  # of measuring, for all starts of a kind together


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m numba_kernels",
        description="Kernels for distributed deep learning: measure them here.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    bench = commands.add_parser("bench", help="ours against its peers, interleaved, medians")
    bench.add_argument("what", choices=[*KINDS, "all"])
    bench.add_argument("-n", "--ranks", type=int, default=2, help="ranks to start (default 2)")
    bench.add_argument("--json", metavar="FILE", help="write the rows there; - prints them")
    bench.add_argument(
        "--plot",
        metavar="FILE",
        help="draw them there, .png, .svg or .pdf (default: beside the --json FILE)",
    )
    bench.add_argument(
        "--full", action="store_true", help="more sizes and starts: minutes, not seconds"
    )
    bench.add_argument(
        "--seconds",
        type=float,
        help=f"of measuring, for each of them (default {SECONDS:g}, with --full {FULL_SECONDS:g})",
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
    """Where to draw, if at all; ValueError for what can't be done, before minutes are spent."""
    launch.check_ranks(options.ranks)
    if not 0 < options.seconds < 3600:
        raise ValueError(f"--seconds {options.seconds}: more than 0, less than 3600 is right")
    if options.what in ("allreduce", "predictions", "all") and options.ranks < 2:
        raise ValueError("an allreduce on 1 rank does nothing: -n 2 or more is right")
    if options.what == "parameter-server" and options.ranks < 2:
        raise ValueError("a parameter server on 1 rank has no worker: -n 2 or more is right")
    file = check_file(options.json) if options.json and options.json != "-" else None
    if options.plot:
        return check_plot(check_file(options.plot))
    return file and file.with_suffix(".png")


def check_file(name: str) -> Path:
    """The path called `name` if a file can be written there; ValueError otherwise."""
    path = Path(name)
    if path.is_dir():
        raise ValueError(f"{name} is a folder: the name of a file is right")
    if not path.parent.is_dir():
        raise ValueError(f"{name}: there is no folder {path.parent}")
    return path


def measure(options) -> dict:
    """What --json writes: {"machine", "load", "seconds", "starts", "rows"}.

    "load" is how many processes wanted a core in the minute before: above 1, ours and the peers'
    times are those of a busy machine. "starts" is how often the ranks of each part were started.
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
    """Start the ranks anew several times, each time measuring for `seconds`."""
    from .rows import merge

    return merge([one_run(part, ranks, seconds, full) for _ in range(times)])


def one_run(part: str, ranks: int, seconds: float, full: bool) -> list[dict]:
    """Start the ranks, and measure for `seconds`: the rows of this start.

    part: a module with a function `rows`, in this package, or by its full name in another one
    """
    one_thread = dict.fromkeys(launch.THREAD_VARIABLES, "1")
    limit = 120 + 5 * seconds  # for importing, compiling, and peers that are slow
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        call = f"one_start{(part, str(file), seconds, full)}"
        code = f"from numba_kernels.bench import one_start; {call}"
        done = launch.run_ranks(ranks, ["-c", code], env=one_thread, timeout=limit)
        if done.returncode:
            raise ValueError(f"bench {part} on {ranks} ranks ended with {done.returncode}")
        return json.loads(file.read_text())


def one_start(part: str, file: str, seconds: float, full: bool) -> None:
    """What every rank of a start does: measure for `seconds`; rank 0 writes the rows to `file`."""
    from mpi4py import MPI

    from .timing import pin

    pin(MPI.COMM_WORLD.rank)
    rows = import_module(part if "." in part else f".{part}", __name__).rows(seconds, full)
    if MPI.COMM_WORLD.rank == 0:
        Path(file).write_text(json.dumps(rows))

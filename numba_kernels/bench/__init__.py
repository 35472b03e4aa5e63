"""`python -m numba_kernels bench`: measure these kernels and their alternatives in one run."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from .. import launch
from .plot import ENDINGS, figure_of

# name: parts, each (file, how many times its ranks are started, its fraction of --seconds).
KINDS = {
    "allreduce": (("allreduce", 3, 1.0),),
    "step": (("step", 3, 0.4),),
    "parameter-server": (("parameter_server", 3, 1.0),),
    "optimizers": (("optimizers", 1, 0.6),),
}
ALONE = "optimizers"  # measured on one rank
MOVED = ("between-nodes", "predictions")  # to the repository's folder benchmarks
FULL = 2  # factor of --full on the number of starts
SECONDS, FULL_SECONDS = 20.0, 120.0  # of measuring, for all starts of a kind together


def main(words: list[str] | None = None) -> int:
    """Run the command line; return its exit status: 0, or 2 after an error."""
    parser = argparse.ArgumentParser(
        prog="python -m numba_kernels", description="Kernels for distributed deep learning."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    bench = commands.add_parser(
        "bench", help="Measure the kernels and their alternatives, interleaved, and show medians."
    )
    kinds = f"The kernels to measure: {', '.join(KINDS)} or all."
    bench.add_argument("what", metavar="KIND", help=kinds)
    bench.add_argument("-n", "--ranks", type=int, default=2, help="Ranks to start (default 2).")
    bench.add_argument("--json", metavar="FILE", help="Write the rows to FILE; - prints them.")
    plot = "Plot the rows to FILE, .png, .svg or .pdf (default: beside the --json FILE)."
    bench.add_argument("--plot", metavar="FILE", help=plot)
    full = "Measure more sizes, with more starts; takes minutes instead of seconds."
    bench.add_argument("--full", action="store_true", help=full)
    seconds = f"Seconds to measure each kind (default {SECONDS:g}, with --full {FULL_SECONDS:g})."
    bench.add_argument("--seconds", type=float, help=seconds)
    words_of_all = "Compile kernels once for all who use this environment; see docs/clusters.md."
    for_all = commands.add_parser("compile", help=words_of_all)
    folder = "Keep them in FOLDER, for all who set NUMBA_KERNELS_PREPARED=FOLDER."
    for_all.add_argument("--into", metavar="FOLDER", help=folder)
    needs = "What needs them: python train.py ... By default, a training by each strategy."
    for_all.add_argument("words", metavar="COMMAND", nargs=argparse.REMAINDER, help=needs)
    options = parser.parse_args(words)
    if options.command == "compile":
        from ..jit.preparing import prepare_for_all

        try:
            return prepare_for_all(options.into, options.words)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    if options.seconds is None:
        options.seconds = FULL_SECONDS if options.full else SECONDS
    try:
        plot = check_options(options)
        with exits_on_sigterm():
            result = measure(options)
        if options.json and options.json != "-":
            Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    except (ValueError, launch.LaunchError, OSError, subprocess.TimeoutExpired) as error:
        if launch.rank() == 0:
            print(f"error: {error}", file=sys.stderr)
        return 2
    from .rows import table

    print(json.dumps(result) if options.json == "-" else table(result))
    if plot:
        try:
            figure_of(result).savefig(plot, dpi=150)
        except ImportError as error:
            print(f"cannot plot to {plot}: {error} (pip install matplotlib)", file=sys.stderr)
    return 0


@contextmanager
def exits_on_sigterm() -> Iterator[None]:
    """In the body, SIGTERM raises SystemExit, so that folders and namespaces are removed."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_options(options) -> Path | None:
    """Return the file for the plot, if any; raise ValueError now for options that can't be used."""
    if options.what in MOVED:
        raise ValueError(
            f"{options.what} is measured in a copy of the repository now: "
            f"python -m benchmarks {options.what}"
        )
    if options.what not in (*KINDS, "all"):
        raise ValueError(f"unknown kind {options.what!r}; choose one of {', '.join(KINDS)}, all")
    launch.check_ranks(options.ranks)
    if not 0 < options.seconds < 3600:
        raise ValueError(f"--seconds must be above 0 and below 3600, got {options.seconds}")
    pairs = dict.fromkeys(("allreduce", "all"), "an allreduce")
    pairs["parameter-server"] = "a parameter server"
    if options.what in pairs and options.ranks < 2:
        what = pairs[options.what]
        raise ValueError(f"-n must be at least 2 for {what}, got {options.ranks}")
    file = check_file(options.json) if options.json and options.json != "-" else None
    plot = check_file(options.plot) if options.plot else file and file.with_suffix(".png")
    if plot and plot.suffix not in ENDINGS:
        raise ValueError(f"--plot must end in one of {', '.join(ENDINGS)}, got {plot}")
    return plot


def check_file(name: str) -> Path:
    """Return the path `name` if a file can be written there; raise ValueError otherwise."""
    path = Path(name)
    if path.is_dir():
        raise ValueError(f"{name} must be a file, but is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {name}: there is no folder {path.parent}")
    return path


def measure(options) -> dict:
    """Return what --json writes; see `facts`."""
    from .rows import merge

    about = facts()
    rows, starts = [], {}
    for kind in KINDS if options.what == "all" else [options.what]:
        ranks = 1 if kind == ALONE else options.ranks
        for part, times, share in KINDS[kind]:
            starts[part] = times * (FULL if options.full else 1)
            seconds = options.seconds * share / starts[part]
            call = part, ranks, seconds, options.full
            of_part = [one_run(*call) for _ in range(starts[part])]
            rows += merge(of_part)
    return about(starts, rows)


def facts() -> Callable[[dict, list], dict]:
    """Return a function (starts, rows) -> {"machine", "load", "seconds", "starts", "rows"}.

    "load" is the number of runnable processes in the minute before this call; above 1, all times
    are those of a busy machine. "seconds" have passed since this call. "starts" is the number of
    times the ranks of each part were started.
    """
    from .timing import machine

    began, load = time.monotonic(), round(os.getloadavg()[0], 1)

    def about(starts: dict, rows: list) -> dict:
        took = round(time.monotonic() - began, 1)
        whole = {"machine": machine(), "load": load, "seconds": took}
        return whole | {"starts": starts, "rows": rows}

    return about


def one_run(
    part: str, ranks: int, seconds: float, full: bool, start: Callable | None = None
) -> list[dict]:
    """Start the ranks once, measure for `seconds`, and return the rows.

    `part` is a module with a function `rows`: its name in this package, or its full name.
    `start` is called in place of `launch.run_ranks`.
    """
    env = dict.fromkeys(launch.THREAD_VARIABLES, "1")
    limit = 120 + 5 * seconds  # includes importing, compiling, and slow peers
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        call = f"one_start{(part, str(file), seconds, full)}"
        code = f"from numba_kernels.bench import one_start; {call}"
        done = (start or launch.run_ranks)(ranks, ["-c", code], env=env, timeout=limit)
        if done.returncode:
            raise ValueError(f"bench {part} on {ranks} ranks ended with status {done.returncode}")
        return json.loads(file.read_text())


def one_start(part: str, file: str, seconds: float, full: bool) -> None:
    """Measure for `seconds`, on every rank; rank 0 writes the rows to `file`."""
    from mpi4py import MPI

    from .timing import pin

    pin(MPI.COMM_WORLD.rank)
    rows = import_module(part if "." in part else f".{part}", __name__).rows(seconds, full)
    if MPI.COMM_WORLD.rank == 0:
        Path(file).write_text(json.dumps(rows))

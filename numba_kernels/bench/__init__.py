"""`python -m numba_kernels bench`: ours and what a user would take instead, in one run."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from .. import launch

KINDS = {"allreduce": 3, "step": 3, "optimizers": 1}  # how often ranks are started anew
SECONDS = 24.0  # of measuring, for all starts of a kind together


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
        "--seconds", type=float, default=SECONDS, help="of measuring (default %(default)s)"
    )
    bench.add_argument("--rows", help=argparse.SUPPRESS)  # where rank 0 of a start writes
    options = parser.parse_args(words)
    try:
        if options.rows:
            return one_start(options.what, Path(options.rows), options.seconds)
        launch.check_ranks(options.ranks)
        if not 0 < options.seconds < 3600:
            raise ValueError(f"--seconds {options.seconds}: more than 0, less than 3600 is right")
        rows = []
        for kind in KINDS if options.what == "all" else [options.what]:
            ranks = options.ranks if kind != "optimizers" else 1
            rows += all_starts(kind, ranks, options.seconds)
    except (ValueError, launch.LaunchError, OSError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from .timing import machine

    result = {"machine": machine(), "rows": rows}
    if options.json and options.json != "-":
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if options.json == "-" else table(result))
    return 0


def all_starts(kind: str, ranks: int, seconds: float) -> list[dict]:
    """Start the ranks anew several times; the median of every row, and how far starts differ."""
    one_thread = dict.fromkeys(launch.THREAD_VARIABLES, "1")
    starts = []
    for _ in range(KINDS[kind]):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "rows.json")
            call = ["-m", "numba_kernels", "bench", kind, "--rows", str(file)]
            call += ["--seconds", str(seconds)]
            done = launch.run_ranks(ranks, call, env=one_thread, timeout=300)
            if done.returncode:
                raise ValueError(f"bench {kind} on {ranks} ranks ended with {done.returncode}")
            starts.append(json.loads(file.read_text()))
    rows = []
    for versions in zip(*starts, strict=True):
        row = dict(versions[0])
        for name in ("ours_us", "peer_us", "ratio", "fraction_of_limit"):
            row[name] = statistics.median(v[name] for v in versions)
        ratios = [v["ratio"] for v in versions]
        row["ratio_from"], row["ratio_to"] = min(ratios), max(ratios)
        rows.append(row)
    return rows


def one_start(kind: str, file: Path, seconds: float) -> int:
    """What every rank of a start does."""
    from mpi4py import MPI

    from .timing import pin

    pin(MPI.COMM_WORLD.rank)
    rows = import_module(f".{kind}", __name__).rows(seconds / KINDS[kind])
    if MPI.COMM_WORLD.rank == 0:
        file.write_text(json.dumps(rows))
    return 0


def table(result: dict) -> str:
    lines = [
        result["machine"],
        f"{'what':26}{'ranks':>6}{'size':>12}  {'ours':16}{'us':>10}  {'peer':24}{'us':>10}"
        f"{'ratio':>8}  {'(starts)':14}{'of limit':>9}",
    ]
    for row in result["rows"]:
        size = f"{row['bytes'] / 1024:,.0f} KiB" if "bytes" in row else f"{row['parameters']:,}"
        spread = f"({row['ratio_from']:.1f} to {row['ratio_to']:.1f})"
        lines.append(
            f"{row['what']:26}{row['ranks']:>6}{size:>12}  {row['algorithm']:16}"
            f"{row['ours_us']:>10.1f}  {row['peer']:24}{row['peer_us']:>10.1f}"
            f"{row['ratio']:>8.2f}  {spread:14}{row['fraction_of_limit']:>9.2f}"
        )
    return "\n".join(lines)

"""Starting ranks: `run(function)` from Python, and what horovodrun did on the command line."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from numba_kernels import launch

from .pickles import dumps, loads


def run(
    func: Callable,
    args: Sequence = (),
    kwargs: Mapping | None = None,
    np: int | None = None,
    num_proc: int | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    verbose: int | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    **unsupported,
) -> list:
    """`func(*args, **kwargs)` on `num_proc` ranks of this machine; what it returned, by rank.

    The ranks are new processes, which call init() by themselves. They get the function by value:
    it may come from a notebook. Modules that it needs are looked for where this process would
    find them. What ranks print is shown as it comes.

    Args:
        num_proc: Ranks; `np` is its older name (1 if neither is given).
        env: Environment variables for the ranks.
        verbose, use_mpi, use_gloo: Accepted, without effect.
        timeout: Seconds, after which the ranks are ended; None: as long as it takes.

    Raises:
        RuntimeError: A rank failed; it says which and why. All have ended then.
        ValueError: A number of ranks that can't be, or an argument that means nothing here.
        subprocess.TimeoutExpired: After `timeout`, when all ranks have ended.
        numba_kernels.launch.LaunchError: No mpiexec, or this process is itself a rank.
    """
    if unsupported:
        raise ValueError(
            f"run() has no argument {', '.join(unsupported)}: it starts ranks on this machine; "
            "for several nodes see docs/clusters.md"
        )
    ranks = launch.check_ranks(num_proc or np or 1)
    with tempfile.TemporaryDirectory(prefix="horovod-run-") as name:
        folder = Path(name)
        (folder / "path").write_text(json.dumps(sys.path))
        dumps((func, tuple(args), dict(kwargs or {}))).tofile(folder / "call")
        done = launch.run_ranks(
            ranks, ["-m", "tutorial_dl.horovod.on_rank", name], env=env, timeout=timeout
        )
        failed = sorted(folder.glob("failed-*"), key=_when)
        if failed:
            raise RuntimeError(failed[0].read_text())
        missing = [r for r in range(ranks) if not (folder / f"result-{r}").exists()]
        if missing:
            raise RuntimeError(
                f"rank {missing[0]} ended without a result (exit status {done.returncode})"
            )
        return [_read(folder / f"result-{r}") for r in range(ranks)]


def _when(path: Path) -> tuple:
    """Causes before ranks that failed because of them."""
    return path.suffix == ".followed", path.name


def _read(path: Path):
    import numpy

    return loads(numpy.fromfile(path, numpy.int64))

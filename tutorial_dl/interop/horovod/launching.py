"""Start ranks: `run(function)`, as horovod.run. Every rank runs this file, which calls `work`."""

import json
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from numba_kernels import launch
from numba_kernels.errors import TeamError, line_of

from .elastic.running import LEAST
from .pickles import cloudpickle

LOCAL = ("localhost", "127.0.0.1", "::1")


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
    hosts: str | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    **unsupported,
) -> list:
    """Call `func(*args, **kwargs)` on `num_proc` ranks of this machine, which are new processes.

    The function has to call init() itself. It is pickled by value, so it may come from a notebook.
    The ranks search for modules where this process would. Their output is shown as it arrives.

    Args:
        num_proc: Number of ranks; `np` is its older name. Without them, one for each slot of
            `hosts`, or 1.
        hosts: "localhost:4", this machine and its number of slots.
        env: Environment variables for the ranks.
        min_num_proc: For functions with `elastic.run`: how many ranks must be left when some are
            lost. By default all.
        max_num_proc: At least `num_proc`; without effect, as no rank joins later.
        timeout: Seconds after which the ranks are killed; None: no limit.
        verbose, use_mpi, use_gloo: Accepted, without effect.

    Returns:
        The results of the function, by rank; with `min_num_proc`, those of the ranks that are left.

    Raises:
        RuntimeError: If a rank failed; the message says which and why. All ranks have ended then.
        subprocess.TimeoutExpired: After `timeout`, when all ranks have ended.
    """
    if unsupported:
        raise ValueError(
            f"run() has no argument {', '.join(unsupported)}: it starts ranks on this machine "
            "only; for several nodes see docs/clusters.md"
        )
    asked = num_proc or np or (None if hosts else 1)
    ranks = launch.check_ranks(ranks_on(hosts, asked))
    check_elastic(ranks, min_num_proc, max_num_proc)
    with tempfile.TemporaryDirectory(prefix="horovod-run-") as name:
        folder = Path(name)
        (folder / "path").write_text(json.dumps(sys.path))
        call = cloudpickle.dumps((func, tuple(args), dict(kwargs or {})))
        (folder / "call").write_bytes(call)
        words = ["-m", "tutorial_dl.interop.horovod.launching", name]
        done = launch.run_ranks(
            ranks, words, timeout=timeout, least=min_num_proc,
            env=dict(env or {}) | elastic_environment(min_num_proc),
        )  # fmt: skip
        if min_num_proc is not None and done.returncode == 0:
            left = [folder / f"result-{r}" for r in range(ranks)]
            return [_read(file) for file in left if file.exists()]
        # Root causes come before ranks that failed because of another rank.
        failed = sorted(folder.glob("failed-*"), key=lambda path: (path.suffix != "", path.name))
        if failed:
            raise RuntimeError(failed[0].read_text())
        missing = [r for r in range(ranks) if not (folder / f"result-{r}").exists()]
        if missing:
            raise RuntimeError(
                f"rank {missing[0]} ended without a result (exit status {done.returncode})"
            )
        return [_read(folder / f"result-{r}") for r in range(ranks)]


def ranks_on(hosts: str | None, ranks: int | None) -> int:
    """The number of ranks to start on this machine; without `ranks`, one for each slot of `hosts`.

    Raises:
        ValueError: If a host is another machine, or has too few slots, or nothing says how many.

    Example:
        >>> ranks_on("localhost:4", None), ranks_on("localhost:4", 3), ranks_on(None, 2)
        (4, 3, 2)
    """
    if hosts is None:
        if ranks is None:
            raise ValueError("the number of ranks is missing: give -np 4 or -H localhost:4")
        return ranks
    slots = 0
    for one in hosts.split(","):
        host, colon, number = one.strip().rpartition(":")
        if not (colon and host and number.isdigit() and int(number)):
            raise ValueError(f"hosts {hosts!r}: expected localhost:4, a name and its slots")
        if host not in (*LOCAL, socket.gethostname(), socket.getfqdn()):
            raise ValueError(
                f"host {host!r} is another machine, but ranks start on this one only: on several "
                "nodes, use the site's mpiexec or srun instead (docs/clusters.md)"
            )
        slots += int(number)
    if ranks is not None and ranks > slots:
        raise ValueError(f"{ranks} ranks, but hosts {hosts!r} has {slots} slots")
    return slots if ranks is None else ranks


def check_elastic(ranks: int, least: int | None, most: int | None) -> None:
    """Raise ValueError unless at `least` <= `ranks` <= `most`; None is no bound."""
    if not (1 if least is None else least) <= ranks <= (ranks if most is None else most):
        raise ValueError(
            f"ranks must be at least --min-np, which must be at least 1, and at most --max-np; got "
            f"{ranks} ranks, --min-np {least} and --max-np {most}"
        )


def elastic_environment(least: int | None) -> dict[str, str]:
    """What tells `elastic.run` how many ranks must be left."""
    return {} if least is None else {LEAST: str(least)}


def _read(path: Path):
    return cloudpickle.loads(path.read_bytes())


def work(folder: Path) -> None:
    """On a rank: call the function of `run` and write its result to a file."""
    rank = launch.rank()
    found = json.loads((folder / "path").read_text())
    sys.path += [place for place in found if place not in sys.path]
    try:
        function, args, kwargs = _read(folder / "call")
        result = cloudpickle.dumps(function(*args, **kwargs))
    except BaseException as error:
        followed = ".followed" if isinstance(error, TeamError) else ""
        text = f"rank {rank} failed: {line_of(error)}"
        (folder / f"failed-{rank}{followed}").write_text(text)
        raise
    unfinished = folder / f"unfinished-{rank}"
    unfinished.write_bytes(result)
    unfinished.rename(folder / f"result-{rank}")


if __name__ == "__main__":
    work(Path(sys.argv[1]))

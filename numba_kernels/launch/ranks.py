"""Start ranks with the right mpiexec and the right number of threads, and leave none behind.

    run_ranks(4, ["-m", "tutorial_dl", "train", "--model", "dense"])

is `mpiexec -n 4 python -m tutorial_dl train --model dense` with three differences. It uses the
mpiexec that belongs to the MPI library which mpi4py loads (mpiexec.py). It gives every rank its
share of the cores. And when this process is interrupted, times out or is killed, the ranks end too
(guard.py). MPI is never initialised here: a process that has called MPI_Init must not start an
mpiexec.
"""

import codecs
import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path

from ..environment import check_ranks, thread_environment, threads_per_rank
from ..launcher import under_mpi
from . import open_mpi, privacy
from .mpiexec import FAMILIES, LaunchError, environment_without_ranks, find_mpiexec, mpi_library
from .remarks import Remarks

GUARD = Path(__file__).with_name("guard.py")
LONGEST_SOCKET = 107  # bytes in the path of a Unix socket
FORKED = Path(__file__).with_name("forked_rank.py")
SUPERVISOR = Path(__file__).with_name("rank_supervisor.py")
WARNINGS = signal.SIGUSR1, signal.SIGUSR2  # of batch systems, before they end a job


class Ended(subprocess.CompletedProcess[str]):
    """What `run_ranks` returns; `failed` is the rank that failed first, if that is known."""

    failed: int | None = None


def rank_environment(
    n: int, env: Mapping[str, str] | None = None, here: bool | None = None
) -> dict[str, str]:
    """Return the environment for mpiexec and `n` ranks: threads, and settings for MPI.

    `here`: all of them run on this machine (privacy.py).
    """
    merged = environment_without_ranks()
    merged.update(privacy.settings(merged, here))
    merged.update(thread_environment(threads_per_rank(n)))
    if sys.stderr is not None and sys.stderr.isatty():
        merged.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))  # progress bars
    if is_open_mpi():
        merged.update(open_mpi.settings(merged))
    merged.update(env or {})
    return merged


def is_open_mpi() -> bool:
    """Return whether mpi4py loads Open MPI here."""
    return FAMILIES.get(mpi_library().name) == "Open MPI"


def mpiexec_command(
    n: int, command: Sequence[str], output: str | Path | None = None, mpiexec: str | None = None
) -> list[str]:
    """Return the command line with which mpiexec starts `command` as `n` ranks.

    `output`: see `open_mpi.rank_prefix`. `mpiexec`: by default, the one that belongs to the MPI.
    """
    prefix = open_mpi.rank_prefix(output) if is_open_mpi() else []
    return [mpiexec or find_mpiexec(), "-n", str(n), *prefix, *command]


def guarded(
    command: Sequence[str], *watch: int, grace: float = 5.0, remove: str | Path | None = None
) -> list[str]:
    """Return a command line that runs `command` as a child of guard.py.

    The guard ends it when one of the processes `watch` ends, with `grace` seconds between SIGTERM
    and SIGKILL, and deletes the folder `remove` when it has ended.
    """
    options = [word for pid in watch for word in ("--watch", str(pid))]
    options += ["--grace", str(grace)]
    options += ["--remove", str(remove)] if remove is not None else []
    return [sys.executable, "-I", "-S", str(GUARD), *options, "--", *command]


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a fork server can start the ranks: MPICH's, on this machine, outside a job.

    In a batch job, mpiexec may start ranks elsewhere, and those here belong to a step of the job.
    """
    return FAMILIES.get(mpi_library().name) == "MPICH" and privacy.stays_here(environment)


def fork_folder() -> str | None:
    """Return a new folder for a fork server; None if none can work here (before Linux 5.3)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return None
    folder = tempfile.mkdtemp(prefix="fork-")
    if len(os.fsencode(folder)) < LONGEST_SOCKET - len("/socket"):
        return folder
    os.rmdir(folder)
    return None


def as_fork(folder: str, command: Sequence[str], mpiexec: str = "") -> list[str]:
    """Return what mpiexec starts in place of `command`, Python with -m, where ranks are forked."""
    kind = "gforker" if mpiexec.endswith(".gforker") else "hydra"
    return [sys.executable, "-I", "-S", str(FORKED), kind, f"{folder}/socket", *command]


def with_fork_server(module: str, folder: str, command: Sequence[str]) -> list[str]:
    """Return a command that runs `command`, an mpiexec, and forks its ranks, with `module` loaded.

    `folder` is its owner's alone; its path is short enough for a socket in it.
    """
    server = "numba_kernels.launch.fork_server"
    return [sys.executable, "-m", server, module, folder, *command]


def output_pipe(folder: str | None, name: str) -> tuple[FileIO, FileIO]:
    """Return a new pipe's ends, to read and to write; in a `folder`, it has this `name`.

    It is read to its end once all processes that write have closed it.
    """
    if folder is None:
        read, write = os.pipe()
    else:
        path = os.path.join(folder, name)
        os.mkfifo(path, 0o600)
        read = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # does not wait for a writer
        os.set_blocking(read, True)
        write = os.open(path, os.O_WRONLY)
    return FileIO(read, "r"), FileIO(write, "w")


def show(stream, data: bytes, decoder: codecs.IncrementalDecoder) -> None:
    """Write bytes unchanged to sys.stdout or sys.stderr, which may be a notebook's."""
    if stream is None:
        return
    buffer = getattr(stream, "buffer", None)
    with contextlib.suppress(BrokenPipeError):  # as in `... | head`: let the ranks continue
        if buffer is not None:
            stream.flush()
            buffer.write(data)
            buffer.flush()
        else:
            stream.write(decoder.decode(data))
            stream.flush()


def run_ranks(
    n: int,
    argv: Sequence[str],
    *,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    capture: bool = False,
    grace: float = 5.0,
    survive: bool = False,
    least: int | None = None,
    preload: str | None = None,
) -> Ended:
    """Run `python ARGV...` as `n` ranks of one MPI world, and wait for all of them.

    Args:
        n: number of ranks, 1 to 1024. There may be more ranks than cores.
        argv: arguments for Python: ["-m", "package", ...], ["script.py", ...] or ["-c", code].
        timeout: seconds after which the ranks are ended; None means no limit.
        env: environment variables for the ranks; they override this process's environment and
            those of `thread_environment`.
        capture: return the ranks' output as str instead of showing it as it arrives.
        grace: seconds that ranks get to end by themselves after Ctrl-C or SIGTERM, which are passed
            on to them once; a second one kills them. What batch systems send instead, SIGUSR1 or
            SIGUSR2, reaches them as SIGTERM. If they end with status os.EX_TEMPFAIL, then so does
            the call; otherwise the signal has its usual effect on this process, too.
        survive: if a rank dies, let the others continue (rank_supervisor.py), and return rank 0's
            status. Otherwise the `returncode` is that of a rank that failed; 0 if none did.
        least: if any rank dies, rank 0 too, let the others continue while so many of them are left.
            The `returncode` is 0 if so many ranks ended with status 0, or else that of a rank that
            failed. The ranks end without MPI_Finalize, which would wait for all of them.
        preload: a module that imports what the program will import, apart from MPI: it is imported
            once, and the ranks are forked from there where `can_fork` allows it (fork_server.py).
            ARGV must begin with -m.

    Raises:
        LaunchError: there is no matching mpiexec, or this process is already a rank.
        subprocess.TimeoutExpired, KeyboardInterrupt: when all ranks have ended.
    """
    n = check_ranks(n)
    if under_mpi():
        raise LaunchError(
            "this process is already a rank of mpiexec or srun",
            "leave -n out, or start this command without them",
        )
    if least is not None and not 1 <= least <= n:
        raise ValueError(f"least must be from 1 to the number of ranks, {n}, got {least}")
    command = [sys.executable, *argv]
    environment = rank_environment(n, env)
    mpiexec = find_mpiexec()  # or an error, before there are folders to remove
    forks = fork_folder() if preload is not None and n > 1 and can_fork(environment) else None
    if forks is not None:
        command = as_fork(forks, command)
    ends = Path(tempfile.mkdtemp(prefix="ranks-")) if survive or least is not None else None
    if ends is not None:
        numbers = [str(ends), str(n), str(least or 0)]
        command = [sys.executable, "-I", "-S", str(SUPERVISOR), *numbers, *command]
    named = tempfile.mkdtemp(prefix="output-") if is_open_mpi() else None
    command = mpiexec_command(n, command, named, mpiexec)
    if forks is not None:
        command = with_fork_server(preload, forks, command)
    remove = forks or named  # never both: Open MPI's ranks are not forked
    if least is not None:
        environment["MPI4PY_RC_FINALIZE"] = "0"
    process: subprocess.Popen[bytes] | None = None
    failed: int | None = None
    signals: list[int] = []

    def pass_on(number: int) -> None:
        process.send_signal(signal.SIGTERM if number in WARNINGS else number)

    def forward(number: int, frame: object) -> None:
        signals.append(number)
        if process is not None:
            pass_on(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, *WARNINGS):
            before[number] = signal.signal(number, forward)
    try:
        pipes = [output_pipe(named, name) for name in ("out", "err")]
        process = subprocess.Popen(
            guarded(command, os.getpid(), grace=grace, remove=remove),
            stdin=subprocess.DEVNULL,
            stdout=pipes[0][1],
            stderr=pipes[1][1],
            env=environment,
            start_new_session=True,  # so only we get the terminal's Ctrl-C, and pass it on once
        )
        for number in list(signals):  # those that arrived while it started
            pass_on(number)
        for _, write in pipes:
            write.close()
        texts, in_time = _collect(process, [read for read, _ in pipes], timeout, capture)
    finally:
        if process is not None:
            process.send_signal(signal.SIGTERM)  # has no effect if it has ended
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
        status = None if process is None else process.returncode
        if ends is not None:
            status, failed = _status(ends, n, least, status)
            shutil.rmtree(ends, ignore_errors=True)
        if remove is not None:  # if the guard was killed
            shutil.rmtree(remove, ignore_errors=True)
    if signal.SIGINT in signals:
        raise KeyboardInterrupt
    if signals and status != os.EX_TEMPFAIL:  # the ranks have ended: its usual effect, here, too
        os.kill(os.getpid(), signals[0])
    if not in_time:
        what = f"{n} ranks of python {' '.join(map(str, argv))[:80]}"
        raise subprocess.TimeoutExpired(what, timeout, *texts)
    done = Ended(command, status, *texts)
    done.failed = failed
    return done


def _status(
    ends: Path, n: int, least: int | None, status: int | None
) -> tuple[int | None, int | None]:
    """Return the exit status of a run, by those of its ranks, and the rank that failed first.

    `status` is mpiexec's, which has ended all ranks if one failed before `can_be_lost`.
    """
    found = {rank: ended for rank in range(n) if (ended := _read(ends / str(rank))) is not None}
    failed = sorted((r for r in found if found[r]), key=lambda r: (ends / str(r)).lstat().st_mtime)
    for early in (rank for rank in failed if not (ends / f"up-{rank}").exists()):
        return found[early], early
    first = next(iter(failed), None)
    if least is None:
        return found.get(0, status), first
    if len(found) - len(failed) >= least:
        return 0, first
    # A rank that ended by itself has said why; one that was killed, with 128 or more, has not.
    ends_of = [found[rank] for rank in failed]
    return min(ends_of, key=lambda one: one >= 128, default=status), first


def _read(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(os.readlink(file))
    return None


def status_of(rank: int) -> int | None:
    """Return the exit status of another rank that has ended; None if that is not known here."""
    kept = os.environ.get("NUMBA_KERNELS_KEPT")
    return None if kept is None else _read(Path(kept).with_name(str(rank)))


def is_first_to_tell() -> bool:
    """Return whether no other rank of this run has asked; True where that is not known."""
    kept = os.environ.get("NUMBA_KERNELS_KEPT")
    try:
        if kept is not None:
            Path(kept).with_name("told").touch(exist_ok=False)
    except OSError as error:
        return not isinstance(error, FileExistsError)
    return True


def can_be_lost() -> None:
    """Declare, on a rank of `run_ranks` with `survive` or `least`, that others can lose it now."""
    kept = os.environ.get("NUMBA_KERNELS_KEPT")
    if kept is not None:
        with contextlib.suppress(OSError):  # the folder does not exist on other nodes
            Path(kept).touch()


def _collect(
    process: subprocess.Popen[bytes], pipes: Sequence[FileIO], timeout: float | None, capture: bool
) -> tuple[tuple[str | None, str | None], bool]:
    """Show or collect the ranks' output; return ((stdout, stderr), whether they ended in time)."""
    deadline = None if timeout is None else time.monotonic() + timeout
    in_time = True
    streams = dict(zip(pipes, (sys.stdout, sys.stderr), strict=True))
    remarks = {pipe: Remarks() for pipe in streams}
    decoders = {pipe: codecs.getincrementaldecoder("utf-8")("replace") for pipe in streams}
    kept = {pipe: b"" for pipe in streams}
    with selectors.DefaultSelector() as selector:
        for pipe in streams:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(0.5 if deadline is not None else None):
                pipe = key.fileobj
                data = os.read(pipe.fileno(), 1 << 16)
                text = remarks[pipe].feed(data, last=not data)
                if capture:
                    kept[pipe] += text
                else:
                    show(streams[pipe], text, decoders[pipe])
                if not data:
                    selector.unregister(pipe)
                    pipe.close()
            if in_time and deadline is not None and time.monotonic() > deadline:
                process.send_signal(signal.SIGTERM)  # the guard kills processes that ignore it
                in_time = False
    process.wait()
    if not capture:
        return (None, None), in_time
    return tuple(kept[pipe].decode(errors="replace") for pipe in streams), in_time

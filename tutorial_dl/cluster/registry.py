"""The registry of this user's clusters: one folder per cluster, with a file that describes it.

    IPYTHONDIR/tutorial_dl_NAME/      mode 0700; the name is in use while it exists
        cluster.json   the `Record`
        lease          locked by every client; only for clusters that may outlive their kernel
        run/           IPython's files: connection files, logs
        job.*          the script of a batch job and its output

Nothing heavy is imported, so `python -m tutorial_dl cluster list` answers at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import itertools
import json
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from numba_kernels import launch

from .batch_job import Job
from .lease import FILE as LEASE

# Not "profile_...": JupyterLab's panel of ipyparallel lists each such folder as a stopped cluster.
PREFIX = "tutorial_dl_"
NEEDED = 2**18  # bytes that a cluster's files and logs take, and some more
ABANDONED = 60.0  # seconds after which a folder without a record is removed


class ClusterError(RuntimeError):
    """A cluster could not be started, found or stopped; the message says why."""


def short_tracebacks(function: Callable) -> Callable:
    """Make errors of the function's caller one line in IPython: our frames would not help.

    These are ValueError, LaunchError and ClusterError.
    """

    @functools.wraps(function)
    def called(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (ValueError, launch.LaunchError, ClusterError) as error:
            if not hasattr(error, "_render_traceback_"):
                text = f"{type(error).__name__}: {error}"
                error._render_traceback_ = lambda: text.splitlines()
            raise

    return called


@dataclass
class Record:
    """The contents of cluster.json; a process is [pid, start time], because pids are reused."""

    name: str
    n: int
    profile: str  # the profile's file
    folder: str
    key: str = field(default_factory=lambda: uuid.uuid4().hex)  # unlike names, never reused
    host: str = field(default_factory=socket.gethostname)
    started: float = field(default_factory=time.time)
    keep: float | None = None
    watch: list[list[float]] = field(default_factory=list)  # the guards end when one of these does
    starter: list[float] = field(default_factory=list)  # the process that starts or started it
    watcher: list[float] = field(default_factory=list)  # these three are guards (guard.py)
    controller: list[float] = field(default_factory=list)
    engines: list[float] = field(default_factory=list)
    job: dict | None = None  # system, number, log and cancel command of a batch job
    places: list[list] = field(default_factory=list)  # per rank: host, process, engine's UUID

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def run(self) -> Path:
        """IPython's files; a restart makes a new folder."""
        return self.path / "run"

    def connection_file(self, who: str) -> Path:
        """The controller's connection file for `who`, "client" or "engine"."""
        return self.run / "security" / f"ipcontroller-{who}.json"

    def batch_job(self) -> Job | None:
        return Job(self.job["system"], self.job["number"], self.job["log"]) if self.job else None

    def now(self) -> Record | None:
        """As it is on disk (another process may restart the cluster); None if it was stopped."""
        record = read(self.path)
        return record if record is not None and record.key == self.key else None

    def save(self) -> None:
        """Write the record atomically, because other processes may read it now."""
        half = self.path / "cluster.json.new"
        try:
            with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(dataclasses.asdict(self), file)
            os.replace(half, self.path / "cluster.json")
        except OSError as error:  # of a full disk, it does not name the path
            with contextlib.suppress(OSError):
                half.unlink()
            raise _unwritable(half, error) from None

    def state(self) -> str:
        """ "running", "starting" or "dead"; "on HOST" if only that host can tell."""
        if self.host != socket.gethostname():  # where its controller and guards run
            return f"on {self.host}"
        if self.controller:
            return ("running" if self.places else "starting") if alive(self.controller) else "dead"
        return "starting" if alive(self.starter) else "dead"


def process(pid: int) -> list[float]:
    """The entry of a record for the process `pid`; [] if it has ended."""
    try:
        return [pid, psutil.Process(pid).create_time()]
    except psutil.NoSuchProcess:
        return []


def find(named: list[float]) -> psutil.Process | None:
    """The process of an entry made by `process`, if it still runs."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        if named:
            found = psutil.Process(int(named[0]))
            # Linux counts from boot time, which is corrected now and then.
            same = abs(found.create_time() - named[1]) < 5
            if same and found.status() != psutil.STATUS_ZOMBIE:
                return found
    return None


def alive(named: list[float]) -> bool:
    return find(named) is not None


def home() -> Path:
    """The folder that holds the clusters' folders, which may not exist.

    IPython itself would make a temporary folder in each process if this one can't be written.
    """
    return Path(os.environ.get("IPYTHONDIR") or "~/.ipython").expanduser().absolute()


def _unwritable(path: Path, error: OSError) -> ClusterError:
    return ClusterError(
        f"cannot write {path}: {error.strerror}; make room there, or set IPYTHONDIR to another "
        "folder"
    )


def read(folder: Path) -> Record | None:
    """The record in `folder`; None if there is none, or it is of another version."""
    try:
        return Record(**json.loads((folder / "cluster.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def load_all() -> list[Record]:
    """Records of all clusters of this user, oldest first; removes the files of dead ones."""
    found = []
    for folder in home().glob(PREFIX + "*"):
        record = read(folder)
        if record is None:
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime > ABANDONED:
                    shutil.rmtree(folder, ignore_errors=True)
        elif record.state() == "dead":
            end(record)
        else:
            found.append(record)
    return sorted(found, key=lambda record: record.started)


def take_folder(name: str | None, stem: str) -> tuple[str, Path]:
    """Make a folder for a cluster called `name`, or STEM, STEM-2 and so on: (name, folder)."""
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", name):
        raise ValueError(
            f"name must be 1 to 40 letters, digits, dots, hyphens or underscores, got {name!r}"
        )
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", stem)[:32]
    # This frees the names of dead clusters. A cluster that replaced another one has its name, but
    # not its folder.
    names, folder = {record.name for record in load_all()}, home()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            candidate = name or (stem if number == 1 else f"{stem}-{number}")
            folder = home() / (PREFIX + candidate)
            with contextlib.suppress(FileExistsError):
                if candidate not in names:
                    folder.mkdir(mode=0o700)  # atomic: of two processes, only one succeeds
                    break
            if name is not None:
                raise ClusterError(
                    f"there is already a cluster {name!r}: join({name!r}), stop it, or choose "
                    "another name"
                )
        if os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize < NEEDED:
            folder.rmdir()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise _unwritable(folder, error) from None
    return candidate, folder


def choose(name: str | None = None) -> Record:
    """The record of the cluster `name`; None: of the only one there is."""
    records = load_all()
    names = ", ".join(record.name for record in records) or "none"
    if name is not None:
        records = [record for record in records if record.name == name]
        if not records:
            raise ClusterError(f"there is no cluster {name!r}; running: {names}")
    if not records:
        raise ClusterError("there is no cluster; cluster.start() starts one")
    if len(records) > 1:
        raise ClusterError(f"there are several clusters; choose one of {names}")
    return records[0]


def end_process(named: list[float], seconds: float = 15.0) -> None:
    """Send SIGTERM to a guard, which ends its child; SIGKILL to all after `seconds`."""
    guard = find(named)
    if guard is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        guard.terminate()
        # Not psutil's wait: another kernel's guard stays a zombie until that kernel collects it.
        deadline = time.monotonic() + seconds
        while alive(named) and time.monotonic() < deadline:
            time.sleep(0.02)
        if alive(named):
            for one in [guard, *guard.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()


def end(record: Record) -> None:
    """End all processes of a cluster and remove its folder, from any process of the user."""
    if record.host != socket.gethostname():
        return _end_from_afar(record)
    end_process(record.engines)
    job = record.batch_job()
    if job is not None:
        job.cancel()
    end_process(record.controller)
    end_process(record.watcher)
    if record.now() is not None:
        shutil.rmtree(record.folder, ignore_errors=True)


def _end_from_afar(record: Record) -> None:
    if record.keep is None:
        raise ClusterError(
            f"cluster {record.name!r} runs on {record.host}, and ends with its kernel there: "
            f"stop it on {record.host}"
        )
    (record.path / LEASE).unlink(missing_ok=True)
    deadline = time.monotonic() + 60  # network file systems show changes late
    while (record.path / "cluster.json").exists():
        if time.monotonic() > deadline:
            raise ClusterError(f"cluster {record.name!r} on {record.host} has not stopped in 60 s")
        time.sleep(0.2)

"""Start the processes of a cluster: show progress, and report one that ends early or is late."""

import shutil
import sys
import time
from collections.abc import Callable, Sequence

from IPython import get_ipython

from . import job_end, lease, mpi_launcher, processes, registry, submit
from .batch_job import Job, last_lines
from .profile import Profile
from .registry import ClusterError, Record

ASK_EVERY = 3.0  # seconds between two queries, so as not to load the batch system
SHOW_EVERY = 0.5  # seconds between updates of the elapsed time; a new text shows at once


class Progress:
    """Shows a text and the elapsed seconds on one line, which `clear` removes again.

    It shows nothing if output goes to a file, where a line can't be overwritten.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._width, self._text, self._next = 0, "", 0.0
        shell = type(get_ipython()).__name__
        self._shows = shell == "ZMQInteractiveShell" or getattr(sys.stdout, "isatty", bool)()

    def update(self, text: str) -> None:
        now = time.monotonic()
        if not self._shows or (text == self._text and now < self._next):
            return
        self._text, self._next = text, now + SHOW_EVERY
        self._write(f"{text}, {now - self._began:.0f} s")

    def clear(self) -> None:
        if self._width:
            self._write("")
            print("\r", end="", flush=True)

    def _write(self, line: str) -> None:
        print("\r" + line.ljust(self._width), end="", flush=True)
        self._width = len(line)


class Startup:
    """Starts the parts of a cluster, which it names in the cluster's `record`."""

    def __init__(self, record: Record, of: Profile, timeout: float):
        self.record, self.of, self.timeout = record, of, timeout
        self.job: Job | None = None
        self.progress = Progress()

    def start_watcher(self) -> None:
        """Start the lease watcher, which the guards of the other parts then watch."""
        record = self.record
        words = ["-I", "-S", lease.__file__, str(record.path), str(record.keep)]
        log = record.path / "watcher.log"
        record.watcher = processes.start_guarded(
            [sys.executable, *words], (), log, grace=30, remove=record.path
        )
        record.watch = [record.watcher]
        record.save()

    def start_controller(self, ports: Sequence[int]) -> None:
        """Start the controller on these `ports`."""
        record, run = self.record, self.record.run
        run.mkdir(mode=0o700, exist_ok=True)
        for who in ("client", "engine"):  # left by a controller whose guard was killed, too
            processes.connection_file(run, who).unlink(missing_ok=True)
        record.controller = processes.start_guarded(
            processes.controller(run, self.of, ports),
            record.watch,
            run / "controller.log",
            remove=record.path if record.keep is None else run,
            umask=0o077,
        )
        record.save()

    def wait_for_controller(self) -> None:
        """Wait for its connection files."""
        files = [processes.connection_file(self.record.run, who) for who in ("client", "engine")]
        self._wait(
            "the controller",
            lambda: all(file.exists() for file in files),
            lambda: self.progress.update("starting the controller"),
        )

    def start_engines(self) -> None:
        """Start mpiexec or a job: after the controller, and if not local, after its files."""
        record, of = self.record, self.of
        if of.kind == "submit":
            self.job = submit.engines(record, of, record.run)
            return
        if of.kind == "local":
            command, env, folder = processes.engines_here(record.n, record.run, of)
        else:
            command, env = processes.ranks_in_allocation(of, record.n)
            command, folder = [*command, *processes.engine(record.run)], None
        try:
            record.engines = processes.start_guarded(
                command,
                [*record.watch, record.controller],
                record.run / "engines.log",
                env=env,
                grace=1.0,
                remove=folder,
            )
        except BaseException as error:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError) and not record.run.exists():
                # The controller has ended, and its guard has removed the folder.
                raise ClusterError("the controller ended at once") from error
            raise
        record.save()

    def wait_for_engines(self, client) -> None:
        """Wait until all engines are registered."""
        state, ask_at, n = "submitted", time.monotonic() + 0.5, self.record.n

        def show():
            nonlocal state, ask_at
            connected = len(client.ids)
            if self.job is not None and time.monotonic() > ask_at:
                state, ask_at = self._state_of_job(), time.monotonic() + ASK_EVERY
            waiting = f"{self.job} is {state}, " if self.job and not connected else ""
            self.progress.update(f"{waiting}{connected} of {n} engines")
            return f": {self.job} was {state}" if self.job else ""

        self._wait(f"the {n} engines", lambda: len(client.ids) == n, show)

    def _wait(self, what: str, ready: Callable[[], bool], show: Callable[[], str | None]) -> None:
        """Wait until `ready()`; raises ClusterError after `timeout`, or if a part ends.

        `show` shows how far it is, and returns what an error adds.
        """
        deadline, run = time.monotonic() + self.timeout, self.record.run
        engines, log = self.record.engines, run / "engines.log"
        while not ready():
            more = show() or ""
            if not registry.alive(self.record.controller):
                raise _ended("the controller ended at once", last_lines(run / "controller.log"))
            if engines and not registry.alive(engines):
                raise _ended(f"the {self.record.n} engines ended at once", last_lines(log))
            if time.monotonic() > deadline:
                log = run / "controller.log" if "controller" in what else log
                tail = last_lines(log) if self.job is None else self.job.tail()
                raise _ended(f"{what} did not come up within {self.timeout:g} s{more}", tail)
            time.sleep(0.02)

    def _state_of_job(self) -> str:
        """The state of the job; raises ClusterError if it has ended or can never run."""
        state = self.job.state()
        if state is None:
            why = job_end.why(self.job, self.job.report()) or f"{self.job} ended"
            raise _ended(f"{why} before its engines were up", self.job.tail())
        if self.job.can_never_run(state):
            ask = "ask for fewer ranks, less time or another queue in the profile"
            raise ClusterError(f"{self.job} can never run, it is {state}: {ask}")
        return state


def _ended(what: str, tail: list[str]) -> ClusterError:
    """The error of a part that has ended, or is late, with the end of its log."""
    if any(map(mpi_launcher.REFUSED.search, tail)):
        what, tail = f"the MPI library refuses the launcher: {mpi_launcher.REMEDY}", []
    log = ["; the log ends with", *tail] if tail else [""]
    return ClusterError(what + "\n  ".join(log))

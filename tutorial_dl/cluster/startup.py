"""The processes of a cluster while it starts: show progress, and report one that ends early."""

import shutil
import sys
import time
from collections.abc import Callable

from IPython import get_ipython

from . import job_end, lease, mpi_launcher, processes, registry, submit
from .batch_job import Job
from .processes import Guarded
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


class Parts:
    """The parts of a cluster of `n` engines that this process has started; each may be None."""

    def __init__(self, n: int, timeout: float):
        self.n, self.timeout = n, timeout
        self.watcher: Guarded | None = None
        self.controller: Guarded | None = None
        self.engines: Guarded | None = None
        self.job: Job | None = None
        self._awaits_controller = False
        self._job_state, self._ask_at = "submitted", 0.0

    def start_watcher(self, record: Record) -> None:
        """Start the lease watcher, which the guards of the other parts then watch."""
        words = ["-I", "-S", lease.__file__, str(record.path), str(record.keep)]
        log = record.path / "watcher.log"
        self.watcher = Guarded([sys.executable, *words], (), log, grace=30, remove=record.path)
        record.watcher, record.watch = self.watcher.named, [self.watcher.named]
        record.save()

    def start_controller(self, record: Record, of: Profile, ports) -> None:
        """Start the controller on these `ports`."""
        run = record.run
        run.mkdir(mode=0o700, exist_ok=True)
        for who in ("client", "engine"):  # left by a controller whose guard was killed, too
            processes.connection_file(run, who).unlink(missing_ok=True)
        self.controller = Guarded(
            processes.controller(run, of, ports),
            [int(pid) for pid, _ in record.watch],
            run / "controller.log",
            remove=record.path if record.keep is None else run,
            umask=0o077,
        )
        record.controller = self.controller.named
        record.save()

    def wait_for_controller(self, record: Record, progress: Progress) -> None:
        """Wait for its connection files."""
        self._awaits_controller = True
        files = [processes.connection_file(record.run, who) for who in ("client", "engine")]
        self.wait(
            lambda: all(file.exists() for file in files),
            lambda: progress.update("starting the controller"),
        )
        self._awaits_controller = False

    def start_engines(self, record: Record, of: Profile) -> None:
        """Start mpiexec or a job: after the controller, and if not local, after its files."""
        if of.kind == "submit":
            self.job = submit.engines(record, of, record.run)
            return
        if of.kind == "local":
            command, env, folder = processes.engines_here(self.n, record.run, of)
        else:
            command, env = processes.ranks_in_allocation(of, self.n)
            command, folder = [*command, *processes.engine(record.run)], None
        try:
            self.engines = Guarded(
                command,
                [int(pid) for pid, _ in [*record.watch, record.controller]],
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
        record.engines = self.engines.named
        record.save()

    def wait_for_engines(self, client, progress: Progress) -> None:
        """Wait until all engines are registered."""

        def show():
            connected = len(client.ids)
            waiting = f"{self.job} is {self._job_state}, " if self.job and not connected else ""
            progress.update(f"{waiting}{connected} of {self.n} engines")

        self.wait(lambda: len(client.ids) == self.n, show)

    def wait(self, ready: Callable[[], bool], show: Callable[[], None]) -> None:
        """Wait until `ready()`; raises ClusterError after `timeout`, or if a part ends."""
        deadline = time.monotonic() + self.timeout
        self._job_state, self._ask_at = "submitted", time.monotonic() + 0.5
        while not ready():
            show()
            problem = self._ended()
            if problem is None and time.monotonic() > deadline:
                problem = self._late()
            if problem is not None:
                raise _told(*problem)
            time.sleep(0.02)

    def _ended(self) -> tuple[str, list[str]] | None:
        """A problem and the end of its log; None if all parts live."""
        if self.controller.ended():
            return "the controller ended at once", self.controller.tail()
        if self.engines is not None and self.engines.ended():
            return f"the {self.n} engines ended at once", self.engines.tail()
        if self.job is not None and time.monotonic() > self._ask_at:
            state = self.job.state()
            self._ask_at = time.monotonic() + ASK_EVERY
            if state is None:
                why = job_end.why(self.job, self.job.report())
                return f"{why or f'{self.job} ended'} before its engines were up", self.job.tail()
            if self.job.can_never_run(state):
                ask = "ask for fewer ranks, less time or another queue in the profile"
                return f"{self.job} can never run, it is {state}: {ask}", []
            self._job_state = state
        return None

    def _late(self) -> tuple[str, list[str]]:
        late = f"did not come up within {self.timeout:g} s"
        if self.job is not None:
            return f"the {self.n} engines {late}: {self.job} was {self._job_state}", self.job.tail()
        if self._awaits_controller:
            return f"the controller {late}", self.controller.tail()
        return f"the {self.n} engines {late}", self.engines.tail()

    def end(self) -> None:
        """End what this process has started and the record may not name yet."""
        for guarded in (self.engines, self.controller):
            if guarded is not None:
                registry.end_process(guarded.named)

    def collect(self) -> None:
        """Collect the guards that have ended, which would stay as zombies otherwise."""
        for guarded in (self.engines, self.controller, self.watcher):
            if guarded is not None:
                guarded.ended()
        self.engines = self.controller = self.job = None


def _told(what: str, tail: list[str]) -> ClusterError:
    """The error of a part that has ended, or is late, with the end of its log."""
    if any(map(mpi_launcher.REFUSED.search, tail)):
        what, tail = f"the MPI library refuses the launcher: {mpi_launcher.REMEDY}", []
    log = ["; the log ends with", *tail] if tail else [""]
    return ClusterError(what + "\n  ".join(log))

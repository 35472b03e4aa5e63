"""Worlds of ranks that are kept: started once, they run one function after the other.

Starting ranks costs a second or two, and most tests do not need fresh ones. So ranks are kept. Each
sleeps in a read of its socket (rank_server.py). The whole world is ended when

- a call failed or took too long, or a rank died: this could disturb later tests;
- a call has left a change in its process (remains.py); from a failure of its teams alone, the ranks
  recover as those of a notebook do;
- it has served `CALLS` calls, or another world needs the room (at most `RANKS` ranks are kept), or
  it has loaded TensorFlow (0.5 GB per rank) without `keras=True` and another file's tests begin.

    WORLDS.call(3, file, "each_rank", [100], timeout=60) -> what the ranks printed

Importing TensorFlow takes 3 to 10 s of processor time. So calls that use Keras say so
(`keras=True`) and have their own worlds, which serve all files. The ranks of all worlds are forked
from processes that have imported what they need (preloaded.py).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import preloaded
import psutil
from ended import gone
from rank_server import RECOVER

from numba_kernels import launch
from numba_kernels.launch import guard
from numba_kernels.launch.ranks import as_fork, can_fork, with_fork_server

SERVER = "rank_server"  # a module of this folder
CALLS = 60  # per world: every team that is dropped costs it two communicators
# In all worlds of a process; a rank takes about 100 MB, and pytest-xdist has several workers.
RANKS = 16
# These limits only end what hangs. They are long because the machine may be busy.
START_SECONDS = 300.0
END_SECONDS = 100.0
GRACE = 10.0  # for other ranks to learn of one that failed
AT_CALL = {"NUMBA_KERNELS_WINDOW", "NUMBA_KERNELS_NODE"}  # read whenever a team is made


class CallFailed(AssertionError):
    """Says what went wrong in a call, with the whole output of its ranks."""


class World:
    """`ranks` processes under mpiexec that wait for calls; `keras`: of calls that use Keras."""

    def __init__(self, ranks: int, keras: bool = False):
        self.ranks, self.calls, self.has, self.heavy = ranks, 0, set(), False
        self.keras = keras
        self.surroundings = surroundings()
        self.segments = guard.segments()
        self.sockets: dict[int, socket.socket] = {}
        self.pids: dict[int, int] = {}
        self.held: dict[int, psutil.Process] = {}  # a rank's pid may be another process's later
        self.folder = Path(tempfile.mkdtemp(prefix="world-"))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.folder / "orders"))
        listener.listen(ranks)
        environment = preloaded.environment_of(ranks)
        command = self._command(environment)
        # These files stay open, so that they can be read after the world and its folder have gone.
        names = ["mpiexec", *(f"{r}.{which}" for r in range(ranks) for which in ("out", "err"))]
        self.written = {name: open(self.folder / name, "w+b") for name in names}  # noqa: SIM115
        self.process = subprocess.Popen(
            launch.guarded(command, os.getpid(), remove=self.folder),
            stdin=subprocess.DEVNULL,
            stdout=self.written["mpiexec"],
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            self._meet(listener)
        except BaseException:
            self.kill()
            raise
        finally:
            listener.close()
        below = guard.descendants(self.process.pid)
        self.processes = {self.process.pid, *below, *self.pids.values()}

    def _command(self, environment: dict[str, str]) -> list[str]:
        """What starts the ranks; they are forked where possible."""
        folder = str(self.folder)
        rank = [sys.executable, "-m", SERVER, folder]
        loaded = "keras_loaded" if self.keras else "ranks_loaded"
        server = preloaded.server(loaded, environment)
        if server is not None:
            return launch.mpiexec_command(self.ranks, as_fork(server.folder, rank))
        if self.keras and can_fork(environment):  # in an environment of the test's own
            mpiexec = launch.mpiexec_command(self.ranks, as_fork(folder, rank))
            return with_fork_server(loaded, folder, mpiexec)
        return launch.mpiexec_command(self.ranks, rank)

    def _meet(self, listener: socket.socket) -> None:
        """Wait until all ranks have connected, and note each rank's process."""
        deadline = time.monotonic() + START_SECONDS
        listener.settimeout(0.5)
        while len(self.sockets) < self.ranks:
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self._output("mpiexec")
                raise CallFailed(f"no world of {self.ranks} ranks:\n{said}")
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(START_SECONDS)
                hello = json.loads(connection.makefile().readline())
                self.sockets[hello["rank"]] = connection
                self.pids[hello["rank"]] = hello["pid"]
                with suppress(psutil.NoSuchProcess):
                    self.held[hello["rank"]] = psutil.Process(hello["pid"])

    def call(self, file: str, function: str, arguments: list, env: dict, timeout: float) -> str:
        """What the ranks printed, rank 0 first; raises CallFailed with it if a rank failed."""
        self.calls += 1
        self.has |= {file}
        order = {"file": file, "function": function, "arguments": arguments, "env": env}
        answers = self._order(order, timeout)
        wrong = [f"rank {r}: {a['error']}" for r, a in sorted(answers.items()) if a["error"]]
        if silent := sorted(set(range(self.ranks)) - answers.keys()):
            why = "still there when another had failed" if wrong else f"no end in {timeout} s"
            wrong.append(f"ranks {silent}: {why}; where they were is in their output")
            self._show_stacks(silent)
        out, err = (
            "".join(self._output(f"{rank}.{which}") for rank in range(self.ranks))
            for which in ("out", "err")
        )
        if wrong:
            self.kill()
            raise CallFailed("\n".join([f"on {self.ranks} ranks:", *wrong, out, err]))
        self.heavy = any(answer["heavy"] for answer in answers.values())
        failed = {answer["failed"] for answer in answers.values()}
        if True in failed and None not in failed:
            answers = self._order(RECOVER, timeout)
        self.remains = {
            what
            for rank in range(self.ranks)
            for what in answers.get(rank, {}).get("remains", ["a failure without recovery"])
        }
        return out

    def _order(self, order, timeout: float) -> dict[int, dict]:
        """Give all ranks an order (rank_server.py); returns the answers of those that gave one."""
        for rank in range(self.ranks):
            with suppress(BrokenPipeError):  # the rank has ended, which `_answers` finds
                self.sockets[rank].sendall(json.dumps(order).encode() + b"\n")
        return self._answers(timeout)

    def _answers(self, timeout: float) -> dict[int, dict]:
        """{rank: its answer}; after a rank fails, the others have only `GRACE` seconds more."""
        deadline = time.monotonic() + timeout
        answers: dict[int, dict] = {}
        texts = {rank: b"" for rank in self.sockets}
        with selectors.DefaultSelector() as selector:
            for rank, connection in self.sockets.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while selector.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    data = b""
                    with suppress(ConnectionResetError):
                        data = key.fileobj.recv(1 << 16)
                    texts[key.data] += data
                    if data and not data.endswith(b"\n"):
                        continue
                    selector.unregister(key.fileobj)
                    died = {"error": "its process ended"}
                    answers[key.data] = json.loads(texts[key.data]) if data else died
                    if answers[key.data]["error"]:
                        deadline = min(deadline, time.monotonic() + GRACE)
        return answers

    def _show_stacks(self, ranks: list[int]) -> None:
        """Have faulthandler write the stacks of all threads of `ranks` to their output."""
        for rank in ranks:
            self.held[rank].send_signal(signal.SIGUSR1)
        time.sleep(0.5)  # long enough for writing; nothing depends on it

    def _output(self, name: str) -> str:
        file = self.written[name].fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def end(self) -> None:
        """Let the ranks end as programs do; raises CallFailed if they don't."""
        for connection in self.sockets.values():
            connection.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        if (status := self.process.poll()) != 0:
            self._show_stacks(list(self.pids) if status is None else [])
            said = self._output("mpiexec")
            self.kill()
            how = "not at all" if status is None else f"with status {status}"
            raise CallFailed(f"{self.ranks} ranks ended {how}:\n{said}")
        self._close()

    def kill(self) -> None:
        """End all processes of the world, by force, with what its ranks have started."""
        held = list(self.held.values())
        for each in self.held.values():  # what the ranks have started and still runs
            with suppress(psutil.NoSuchProcess):
                held += each.children(recursive=True)
        for _ in range(2):  # at the second signal the guard kills what is left
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)
        self.process.wait(END_SECONDS)
        # The guard has not seen ranks that were forked elsewhere, nor what they have started. When
        # it removed the shared memory that nobody had, one of them may still have had some.
        for each in held:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        deadline = time.monotonic() + END_SECONDS
        while not all(map(gone, held)) and time.monotonic() < deadline:
            time.sleep(0.01)
        guard.remove_abandoned(self.segments)
        self._close()

    def _close(self) -> None:
        for file in (*self.written.values(), *self.sockets.values()):
            file.close()

    def serves(self, file: str) -> bool:
        """Whether this world may serve a call from `file`, in the present surroundings.

        A world for Keras serves all files; any other that has loaded it serves its own files only.
        """
        light = self.keras or not self.heavy
        return self.surroundings == surroundings() and (light or file in self.has)


def surroundings() -> tuple:
    """What a new process would inherit from this one: folder and environment."""
    return os.getcwd(), preloaded.variables()


class Worlds:
    """All worlds that are kept, one of each size and kind; the last one used comes last."""

    def __init__(self):
        self.kept: dict[tuple[int, bool], World] = {}  # (ranks, for calls that use Keras)
        self.problems: list[str] = []  # of worlds that ended outside of their tests

    def fits(self, env: dict | None) -> bool:
        """Whether running ranks can take these variables; otherwise ranks must be started."""
        return AT_CALL.issuperset(env or ())

    def call(self, ranks, file, function, arguments, *, timeout, env=None, keras=False) -> str:
        """Run a function on `ranks` kept ranks; see the top of this file."""
        world = self.kept.pop((ranks, keras), None)
        if world is not None and not world.serves(file):
            self._retire(world)
            world = None
        if world is None:
            self._make_room(ranks)
            world = World(ranks, keras)
        try:
            printed = world.call(file, function, arguments, env or {}, timeout)
        except BaseException:
            world.kill()
            raise
        if world.remains or world.calls >= CALLS:
            world.end()
        else:
            self.kept[ranks, keras] = world
        return printed

    def pids(self) -> set[int]:
        """Processes that may stay when a test ends."""
        kept = (world.processes for world in self.kept.values())
        return preloaded.pids().union(*kept)

    def end(self) -> list[str]:
        """End all worlds; returns what went wrong with worlds that ended outside of their tests."""
        while self.kept:
            self._retire(self.kept.pop(next(iter(self.kept))))
        return self.problems

    def _make_room(self, ranks: int) -> None:
        while self.kept and ranks + sum(size for size, _ in self.kept) > RANKS:
            self._retire(self.kept.pop(next(iter(self.kept))))

    def _retire(self, world: World) -> None:
        try:
            world.end()
        except CallFailed as error:
            self.problems.append(f"{error}\nafter calls from {', '.join(sorted(world.has))}")


WORLDS = Worlds()

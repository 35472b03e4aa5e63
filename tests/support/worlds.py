"""Worlds of ranks that stay: started once, they run one function after the other.

A start of ranks costs a second or two, and most tests need nothing of it. So ranks are kept, each
asleep in a read of its socket (rank_server.py), and are ended with the whole world when

- a call failed, took too long, or a rank died: no later test meets what that left behind;
- a call was fine, but something that it changed in its process is still changed (remains.py);
- they have served `CALLS` calls, or ranks are needed elsewhere (at most `RANKS` are kept), or they
  have loaded TensorFlow (0.5 GB a rank) unasked and another file's tests begin.

    WORLDS.call(3, file, "each_rank", [100], timeout=60) -> what the ranks printed

Importing TensorFlow takes 5 to 10 s of a processor in each rank. So calls that use Keras say so
(`keras=True`) and have worlds of their own, which serve all files.
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

from remains import TENSORFLOWS

from numba_kernels import launch
from numba_kernels.launch import guard

SERVER = Path(__file__).with_name("rank_server.py")
CALLS = 60  # of one world: every team that is dropped costs it two communicators
# In all worlds of one process together; each takes some 100 MB, and pytest-xdist has a few workers.
RANKS = 16
# Nothing is measured by these: they end what hangs, on a machine that does much else meanwhile.
START_SECONDS = 300.0
END_SECONDS = 100.0
GRACE = 10.0  # for other ranks to hear of one that failed
AT_CALL = {"NUMBA_KERNELS_WINDOW", "NUMBA_KERNELS_NODE"}  # read whenever a team is made
OF_THE_TEST = {"PYTEST_CURRENT_TEST"}  # differs from test to test, and no rank reads it


class CallFailed(AssertionError):
    """What went wrong in a call, with all that its ranks wrote."""


class World:
    """`ranks` processes under mpiexec that wait for calls; `keras`: for calls that use Keras."""

    def __init__(self, ranks: int, keras: bool = False):
        self.ranks, self.calls, self.has, self.heavy = ranks, 0, set(), False
        self.keras = keras
        self.surroundings = surroundings()
        self.sockets: dict[int, socket.socket] = {}
        self.pids: dict[int, int] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="world-"))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.folder / "socket"))
        listener.listen(ranks)
        command = [launch.find_mpiexec(), "-n", str(ranks), sys.executable, str(SERVER)]
        # Held open: they can be read when the world has ended, and its folder with it.
        names = ["mpiexec", *(f"{r}.{which}" for r in range(ranks) for which in ("out", "err"))]
        self.written = {name: open(self.folder / name, "w+b") for name in names}  # noqa: SIM115
        self.process = subprocess.Popen(
            launch.guarded([*command, str(self.folder)], os.getpid(), remove=self.folder),
            stdin=subprocess.DEVNULL,
            stdout=self.written["mpiexec"],
            stderr=subprocess.STDOUT,
            env=launch.rank_environment(ranks),
            start_new_session=True,
        )
        try:
            self._meet(listener)
        except BaseException:
            self.kill()
            raise
        finally:
            listener.close()
        self.processes = {self.process.pid, *guard.descendants(self.process.pid)}

    def _meet(self, listener: socket.socket) -> None:
        """Have all ranks connect, and learn which process is which."""
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

    def call(self, file: str, function: str, arguments: list, env: dict, timeout: float) -> str:
        """What the ranks printed, those of rank 0 first; CallFailed with it if one failed."""
        self.calls += 1
        self.has |= {file}
        order = {"file": file, "function": function, "arguments": arguments, "env": env}
        order["keras"] = self.keras
        for rank in range(self.ranks):
            with suppress(BrokenPipeError):  # it has ended: the answer says so
                self.sockets[rank].sendall(json.dumps(order).encode() + b"\n")
        answers = self._answers(timeout)
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
        self.remains = {what for answer in answers.values() for what in answer["remains"]}
        self.heavy = any(answer["heavy"] for answer in answers.values())
        return out

    def _answers(self, timeout: float) -> dict[int, dict]:
        """{rank: its answer}; when a rank fails the others get some seconds more, no longer."""
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
                    died = {"error": "its process ended", "remains": []}
                    answers[key.data] = json.loads(texts[key.data]) if data else died
                    if answers[key.data]["error"]:
                        deadline = min(deadline, time.monotonic() + GRACE)
        return answers

    def _show_stacks(self, ranks: list[int]) -> None:
        """Have faulthandler write to their output what all threads of `ranks` are in."""
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGUSR1)
        time.sleep(0.5)  # it is written at once; nothing depends on it

    def _output(self, name: str) -> str:
        file = self.written[name].fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def end(self) -> None:
        """Have the ranks end as programs do; CallFailed if they don't."""
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
        """Nothing of it is there afterwards."""
        for _ in range(2):  # at the second signal the guard kills what is left
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)
        self.process.wait(END_SECONDS)
        self._close()

    def _close(self) -> None:
        for file in (*self.written.values(), *self.sockets.values()):
            file.close()

    def serves(self, file: str) -> bool:
        """Not where other ranks would find other surroundings.

        A world for Keras serves all files, another one that has loaded it one file only.
        """
        light = self.keras or not self.heavy
        return self.surroundings == surroundings() and (light or file in self.has)


def surroundings() -> tuple:
    """What a process takes over from this one when it starts."""
    without = (*OF_THE_TEST, *TENSORFLOWS)  # it sets those when this process imports it
    return os.getcwd(), {k: v for k, v in os.environ.items() if not k.startswith(without)}


class Worlds:
    """All worlds that are kept, one of each size and kind; the last in use comes last."""

    def __init__(self):
        self.kept: dict[tuple[int, bool], World] = {}  # (ranks, for calls that use Keras)
        self.problems: list[str] = []  # of worlds that ended when no test had to do with them

    def fits(self, env: dict | None) -> bool:
        """Whether ranks that run already can be asked for this; else a start is needed."""
        return AT_CALL.issuperset(env or ())

    def call(self, ranks, file, function, arguments, *, timeout, env=None, keras=False) -> str:
        """See the head of this file."""
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
        return set().union(*(world.processes for world in self.kept.values()))

    def end(self) -> list[str]:
        """End all of them; what was wrong with any that ended by itself."""
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

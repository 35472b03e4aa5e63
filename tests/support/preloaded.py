"""Processes from which ranks are forked: each has imported once what all ranks need.

A rank's imports take half a second of processor time, and three with Keras. So this process keeps
a fork server (numba_kernels.launch.fork_server) of each kind, which forks the ranks of one world
after the other:

    ranks_loaded    NumPy, Numba and our own packages
    keras_loaded    Keras, too

Modules read environment variables when they are imported. So ranks are forked only where the
environment is that in which the server has started, apart from the variables that `mpiexec` sets.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from asleep import ASLEEP
from remains import TENSORFLOWS

from numba_kernels import launch
from numba_kernels.launch import guard
from numba_kernels.launch.ranks import can_fork, fork_folder, with_fork_server

HERE = Path(__file__).parent
END_SECONDS = 100.0  # only ends what hangs
OF_THE_TEST = ("PYTEST_CURRENT_TEST",)  # differs from test to test, and no rank reads it
WITHOUT = (*OF_THE_TEST, *TENSORFLOWS)  # TensorFlow sets those when it is imported


def variables(environment=os.environ) -> dict[str, str]:
    """The environment, without what differs from test to test and concerns no rank."""
    return {name: value for name, value in environment.items() if not name.startswith(WITHOUT)}


def environment_of(ranks: int) -> dict[str, str]:
    """The environment of `ranks` ranks, which find this folder's modules, and of their mpiexec."""
    environment = launch.rank_environment(ranks, ASLEEP)
    path = [str(HERE), *filter(None, [environment.get("PYTHONPATH")])]
    return environment | {"PYTHONPATH": os.pathsep.join(path)}


class Preloaded:
    """A fork server that has imported `module`; it ends with this process at the latest."""

    def __init__(self, module: str, folder: str, environment: dict[str, str]):
        self.folder, self.environment = folder, variables(environment)
        # The server ends when `cat` does, at the end of its input.
        self.process = subprocess.Popen(
            launch.guarded(with_fork_server(module, folder, ["cat"]), os.getpid(), remove=folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        found: dict[int, int] = {}
        while len(found) < 2 and self.works():  # the server and `cat`: no rank is there yet
            time.sleep(0.01)
            found = guard.descendants(self.process.pid)
        self.processes = {self.process.pid, *found}

    def works(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        if self.process.poll() is None:
            self.process.kill()  # the server ends with its guard
            self.process.wait()


_servers: dict[tuple[str, str], Preloaded] = {}


def server(module: str, environment: dict[str, str]) -> Preloaded | None:
    """A server that forks ranks with `module` imported; None if they must start as usual.

    `environment` is that of the ranks' mpiexec, with the right number of threads.
    """
    if not can_fork(environment):
        return None
    kind = module, environment.get("OPENBLAS_NUM_THREADS", "")
    found = _servers.get(kind)
    if found is None:
        folder = fork_folder()
        if folder is None:
            return None
        found = _servers[kind] = Preloaded(module, folder, environment)
    return found if found.works() and found.environment == variables(environment) else None


def pids() -> set[int]:
    """Processes that may stay when a test ends."""
    return set().union(*(each.processes for each in _servers.values()))


def end() -> None:
    while _servers:
        _servers.popitem()[1].end()

"""The fixture `on_ranks` runs a function of a test file on several ranks, with a time limit.

    def each_rank(n): ...                     # runs on every rank; raises if something is wrong

    def test_it(on_ranks):
        on_ranks(3, each_rank, 100)

Ranks are processes under mpiexec. A start costs a second or two, so they are kept for other tests
(worlds.py). If a rank fails, hangs, crashes or is left changed, its world ends, so it can't harm
the next test. With `fresh=True`, or with variables that are read when a process starts, ranks are
started for this one call. Tests of starts and ends, of loaded modules, of memory, and of anything
else that concerns a whole process need this. A function that uses Keras passes `keras=True`: ranks
that have loaded it once serve such calls of all files.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path

import preloaded
import pytest
from preloaded import ASLEEP
from worlds import WORLDS

ONE_CALL = str(Path(__file__).with_name("one_call.py"))
SECONDS = 600  # not a tested bound: it only ends what hangs


def run(ranks: int, function: Callable, *arguments, timeout: float = SECONDS, env=None):
    """The CompletedProcess of `function(*arguments)` (JSON values) on `ranks` ranks."""
    from numba_kernels import launch

    call = [ONE_CALL, inspect.getfile(function), function.__name__, json.dumps(arguments)]
    return launch.run_ranks(ranks, call, timeout=timeout, capture=True, env=ASLEEP | (env or {}))


def one_call(ranks: int, file: str, function: str, arguments: list) -> list[str]:
    """What Python is to run as each rank of a world for one call; it is forked where possible."""
    from numba_kernels.launch.ranks import as_fork

    call = [file, function, json.dumps(arguments)]
    server = preloaded.server("ranks_loaded", preloaded.environment_of(ranks))
    if server is None:
        return [ONE_CALL, *call]
    return as_fork(server.folder, [sys.executable, "-m", "one_call", *call])[1:]


@pytest.fixture
def on_ranks():
    """on_ranks(3, function, *arguments, timeout=..., env=..., fresh=..., keras=...) -> output"""

    def check(
        ranks, function, *arguments, timeout=SECONDS, env=None, fresh=False, keras=False
    ) -> str:
        if not fresh and WORLDS.fits(env):
            call = inspect.getfile(function), function.__name__, list(arguments)
            return WORLDS.call(ranks, *call, timeout=timeout, env=env, keras=keras)
        done = run(ranks, function, *arguments, timeout=timeout, env=env)
        assert done.returncode == 0, f"on {ranks} ranks:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return check

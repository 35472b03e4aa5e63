"""The fixture `on_ranks`: run a function of a test file on several ranks, with a time limit.

    def each_rank(n): ...                     # runs on every rank; raises if something is wrong

    def test_it(on_ranks):
        on_ranks(3, each_rank, 100)

Ranks are processes of their own under mpiexec. A start costs a second or two, so they are kept for
other tests (worlds.py): a rank that fails, hangs, crashes or is left changed ends with its world,
and can't harm the next test. With `fresh=True`, or with variables that are read when a process
starts, ranks are started for this one call: for tests of starts and ends, of what is loaded, of
memory, and of whatever else is a matter of a whole process. What uses Keras says `keras=True`: it
is served by ranks that have loaded it once, for all files.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Callable

import pytest
from worlds import WORLDS

SECONDS = 600  # no bound that is tested: it ends what hangs


def run(ranks: int, function: Callable, *arguments, timeout: float = SECONDS, env=None):
    """The CompletedProcess of `function(*arguments)` (JSON values) on `ranks` ranks."""
    from numba_kernels import launch

    call = [__file__, inspect.getfile(function), function.__name__, json.dumps(arguments)]
    return launch.run_ranks(ranks, call, timeout=timeout, capture=True, env=env)


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


if __name__ == "__main__":
    # What a rank prints stays together, line by line, among what others print: with
    # PYTHONUNBUFFERED every word and every end of a line is a write of its own.
    sys.stdout.reconfigure(write_through=False, line_buffering=True)
    file, name, arguments = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("of_the_test", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, name)(*json.loads(arguments))

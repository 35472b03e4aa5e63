"""The fixture `on_ranks`: run a function of a test file on several ranks, with a time limit.

    def each_rank(n): ...                     # runs on every rank; raises if something is wrong

    def test_it(on_ranks):
        on_ranks(3, each_rank, 100)

Ranks are processes of their own under mpiexec: a rank that fails, hangs or crashes fails the test
and can't harm the next one.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Callable

import pytest

SECONDS = 120  # a first run compiles


def run(ranks: int, function: Callable, *arguments, timeout: float = SECONDS, env=None):
    """The CompletedProcess of `function(*arguments)` (JSON values) on `ranks` ranks."""
    from numba_kernels import launch

    call = [__file__, inspect.getfile(function), function.__name__, json.dumps(arguments)]
    return launch.run_ranks(ranks, call, timeout=timeout, capture=True, env=env)


@pytest.fixture
def on_ranks():
    """on_ranks(ranks, function, *arguments, timeout=..., env=...) -> what rank processes printed"""

    def check(ranks, function, *arguments, timeout=SECONDS, env=None) -> str:
        done = run(ranks, function, *arguments, timeout=timeout, env=env)
        assert done.returncode == 0, f"on {ranks} ranks:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return check


if __name__ == "__main__":
    file, name, arguments = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("of_the_test", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, name)(*json.loads(arguments))

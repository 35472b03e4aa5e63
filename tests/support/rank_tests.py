"""Tests whose function runs on each of some ranks, by the fixture `on_ranks`.

@with_ranks(1, 3, keras=True)        a test on one rank, and one on three
def test_it(folder): ...        `folder`, if it is there: a folder of the test's own, a str
"""

from __future__ import annotations

import inspect

import pytest
from modules import OF_THE_TEST


def with_ranks(*numbers: int, keras: bool = False):
    def decorate(function):
        if function.__module__ == OF_THE_TEST:  # a rank calls it by its name
            return function
        takes_folder = bool(inspect.signature(function).parameters)

        def on_some(on_ranks, tmp_path, ranks):
            on_ranks(ranks, function, *[str(tmp_path)] * takes_folder, keras=keras)

        def on_one_number(on_ranks, tmp_path):
            on_some(on_ranks, tmp_path, *numbers)

        test = on_one_number if len(numbers) == 1 else on_some
        test.__signature__ = inspect.signature(test)  # of fixtures
        test.__wrapped__ = function  # pytest shows where it stands
        test.__name__, test.__doc__ = function.__name__, function.__doc__
        if len(numbers) > 1:
            test = pytest.mark.parametrize("ranks", numbers)(test)
        return test

    return decorate

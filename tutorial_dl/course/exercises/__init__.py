"""Checks for the notebooks' exercises: `check("01.degree", answer)` says what is still wrong.

There is one file per notebook: the check "01.degree" is the function `degree` in `notebook_01.py`.
It takes the answer and returns the praise for a right one, or raises `NotYet` with a hint: the
misconception if it knows one, else on which side the answer is off, but never the answer itself.

answers.py      takes an answer in any form, compares it, and finds the mistake that leads to it
rings.py        what is common to exercises in which messages go round a ring
own_line.py     an exception in a learner's function, with the learner's own line
ranks_agree.py  exercises of %%px cells: the ranks agree on one line

A notebook must run from top to bottom with its exercises undone. So an answer that is missing
(`None`, `...`, a function that raises NotImplementedError) or broken prints "not yet: ..." and
raises nothing.
"""

from importlib import import_module
from importlib.util import find_spec
from inspect import isfunction
from typing import Any

from tutorial_dl.words import counted

from .answers import (
    NotYet,
    call,
    close,
    is_unfinished,
    must_be,
    must_be_function,
    must_have,
    must_not_be,
    must_not_be_scaled,
    must_return,
    number_of,
    whole,
)  # fmt: skip
from .own_line import verdict_on
from .ranks_agree import call_on_ranks, every_rank, must_reduce_once, together
from .rings import listed, must_be_a_ring, whose

__all__ = [
    "NotYet", "call", "call_on_ranks", "check", "close", "counted", "every_rank", "listed",
    "must_be", "must_be_a_ring", "must_be_function", "must_have", "must_not_be",
    "must_not_be_scaled", "must_reduce_once", "must_return", "number_of", "whole", "whose",
]  # fmt: skip


def check(name: str, answer: Any) -> bool:
    """Print "correct: ..." or "not yet: ..." on one line; return whether the answer is right.

    `name` is "NN.exercise", where NN is the notebook's number: "01.degree". `answer` is what the
    learner wrote: a number, an array or a function. An exercise of a %%px cell is checked on all
    ranks; rank 0 prints the line for all of them, and each rank returns whether its own part is
    right. ValueError, if there is no such exercise, is an error in the notebook.
    """
    notebook, _, exercise = name.partition(".")
    path = f"{__name__}.notebook_{notebook}"
    if not (notebook.isdigit() and find_spec(path)):
        raise ValueError(f"no exercises for {name!r}; names look like '01.degree'")
    module = import_module(path)
    judges = {
        name: item
        for name, item in vars(module).items()
        if isfunction(item) and item.__module__ == path and not name.startswith("_")
    }
    if exercise not in judges:
        known = ", ".join(f"{notebook}.{e}" for e in sorted(judges))
        raise ValueError(f"unknown exercise {name!r}; this notebook has {known}")
    judge = judges[exercise]

    def judged() -> str:
        if is_unfinished(answer):
            raise NotYet("put your answer in place of the `...`")
        return judge(answer)

    if getattr(judge, "every_rank", False):
        return together(judged)
    verdict = verdict_on(judged)
    print(verdict)
    return verdict.passed

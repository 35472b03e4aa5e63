"""Checks for the notebooks' exercises: `check("01.degree", answer)` says how far off `answer` is.

There is one file per notebook: the check "01.degree" is the function `degree` in `notebook_01.py`.
It takes the answer and returns the praise for a right one, or raises `NotYet` with a message that
says how far off the answer is. `close` compares numbers, `call` calls a learner's function.
"""

from .checking import NotYet, call, check, close

__all__ = ["NotYet", "call", "check", "close"]

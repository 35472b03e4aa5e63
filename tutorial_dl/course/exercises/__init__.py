"""Checks for the notebooks' exercises: `check("01.degree", answer)` says how far off it is.

One file a notebook: the check "01.degree" is the function `degree` in `notebook_01.py`. It takes
the answer and either returns what to tell a learner who got it right, or raises `NotYet` with how
far off the answer is. `close` and `call` do that for numbers and for functions.
"""

from tutorial_dl.course.exercises.checking import NotYet, call, check, close

__all__ = ["NotYet", "call", "check", "close"]

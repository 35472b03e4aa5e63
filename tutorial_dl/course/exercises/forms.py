"""Take an answer in any form that is right: 71, 71.0, np.float64(71), Fraction(71), an array."""

from typing import Any

import numpy as np

from .hints import NotYet


def is_unfinished(answer: Any) -> bool:
    """Whether the answer, or a part of it, is still None or `...`."""
    if isinstance(answer, (tuple, list)):
        return any(is_unfinished(item) for item in answer)
    return answer is None or answer is ...


def number_of(answer: Any, what: str) -> float:
    """The answer as a float: any real number, or an array of one; NotYet for all else."""
    text = isinstance(answer, (str, bytes, bool, np.bool_))
    try:
        value = None if text else np.asarray(answer, dtype=float)
    except (TypeError, ValueError):
        value = None
    if value is None or value.size != 1:
        raise NotYet(f"{what} must be a number, got {answer!r}")
    if not np.isfinite(value).all():
        raise NotYet(f"{what} must be finite, got {answer!r}")
    return float(value.item())


def whole(answer: Any, least: int, most: int | None, what: str) -> int:
    """The answer as an int from `least` to `most` (None: without a limit); NotYet for all else.

    A whole float is right, also one with the rounding error of a few operations.
    """
    limits = f", at least {least}" if most is None else f" from {least} to {most}"
    asked = NotYet(f"{what} must be a whole number{limits}, got {answer!r}")
    try:
        value = number_of(answer, what)
    except NotYet:
        raise asked from None
    nearest = round(value)
    if abs(value - nearest) > 1e-9 * max(1, abs(value)):
        raise asked
    if nearest < least or (most is not None and nearest > most):
        raise asked
    return nearest


def must_have(answer: Any, length: int, what: str) -> list:
    """The parts of an answer; NotYet asks for `what` unless it has `length` parts."""
    several = answer.ndim if isinstance(answer, np.ndarray) else isinstance(answer, (tuple, list))
    if not several or len(answer) != length:
        shape = f"an array of shape {answer.shape}" if isinstance(answer, np.ndarray) else None
        given = shape or (
            f"{len(answer)} of them" if several else f"a single {type(answer).__name__}"
        )
        raise NotYet(f"expected {what}; you have {given}")
    return list(answer)


def must_be_function(answer: Any) -> None:
    """Raise NotYet unless an answer can be called."""
    if not callable(answer):
        raise NotYet(f"a function is asked for, not {answer!r}")


def must_return(found: Any) -> None:
    """Raise NotYet if an answer's function has returned nothing, or has a part still missing."""
    if found is None:
        raise NotYet("the function returns nothing; does it end with a `return`?")
    if is_unfinished(found):
        raise NotYet(f"the function returns {found!r}; a part of it is still missing")


def call(function: Any, *arguments: Any) -> Any:
    """Call the learner's function and return what it returned; NotYet if that is nothing.

    Arrays are passed as copies, so that a function that writes into them cannot spoil the check.
    """
    must_be_function(function)
    found = function(*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))
    must_return(found)
    return found

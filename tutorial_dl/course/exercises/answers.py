"""Take an answer in any form, compare it with the right one, and name the mistake in a wrong one.

An answer may be 71, 71.0, np.float64(71), Fraction(71), or an array of it. A hint names the
misconception (another unit, an inverse, a mean of means), never the answer: it gives neither the
right number nor the distance to it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


class NotYet(Exception):
    """The answer is not right yet; the message says why."""


# Factors that no formula of a notebook has by itself, and what they come from.
FACTORS = {
    "check the units: yours is off by a power of 1000 (ms or s? µs? GB or bytes?)": (
        1e3, 1e6, 1e9, 1e12, 1e-3, 1e-6, 1e-9, 1e-12,
    ),
    "check the units: 1 KiB has 1024 bytes, 1 kB has 1000": (1024, 1 / 1024, 1.024, 1 / 1.024),
    "bits or bytes? A byte has 8 bits": (8, 1 / 8, 8e9, 8e-9, 8e3, 8e-3, 8e6, 8e-6),
    "it has the wrong sign": (-1,),
}  # fmt: skip


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
    """Raise NotYet unless the answer can be called."""
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


# Compared with what is right -------------------------------------------------------------------


def must_be(
    answer: Any, right: float, what: str, mistakes: Mapping[str, float] | None = None,
    rtol: float = 0.01, units: bool = True,
) -> None:  # fmt: skip
    """Raise NotYet, with a hint, unless the answer is the number `right` within rtol |right|.

    Args:
        what: what the number is: "the speed-up"
        mistakes: hint -> the number that this mistake leads to
        units: whether factors of units (`FACTORS`) and the inverse are mistakes, too
    """
    value = number_of(answer, what)
    if abs(value - right) <= rtol * abs(right):
        return
    for hint, wrong in (mistakes or {}).items():
        if abs(value - wrong) <= min(rtol, 0.005) * abs(wrong):
            raise NotYet(f"{what}: {hint}")
    if units and value and right:
        for hint, factors in FACTORS.items():
            if any(abs(value / right / factor - 1) <= 0.002 for factor in factors):
                raise NotYet(f"{what}: {hint}")
        if abs(value * right - 1) <= 0.002:
            raise NotYet(f"{what}: yours is upside down: is it a ratio, or its inverse?")
    raise NotYet(f"{what}, {value:.6g}, is {_how_far(value, right)}")


def _how_far(value: float, right: float) -> str:
    """ "much too high", without giving the right value away."""
    side = "high" if value > right else "low"
    if not right or value / right <= 0:
        return f"too {side}"
    ratio = max(value / right, right / value)
    if ratio < 1.05:
        return f"slightly too {side}: give more digits, or look for a small term that is missing"
    return f"too {side}" if ratio < 3 else f"much too {side}"


def close(
    answer: Any, right: Any, what: str, mistakes: Mapping[str, Any] | None = None,
    rtol: float = 1e-6, atol: float = 1e-9,
) -> None:  # fmt: skip
    """Raise NotYet unless `answer`, any object, equals `right` within rtol |right| + atol.

    It compares what a learner's function returned with what it should return there. `what` says
    what the number or array is: "w after 7 steps"; `mistakes` is hint -> what this mistake gives.
    """
    tolerance = {"rtol": max(rtol, 1e-5), "atol": max(atol, 1e-8)}
    must_not_be(answer, right, mistakes or {}, what, **tolerance)
    right = np.asarray(right, dtype=float)
    try:
        answer = np.asarray(answer, dtype=float)
    except (TypeError, ValueError):
        kind = type(answer).__name__
        raise NotYet(f"{what} should be made of numbers, yours is a {kind}") from None
    if answer.shape != right.shape:
        raise NotYet(f"{what} should have shape {right.shape}, yours has {answer.shape}")
    if not np.isfinite(answer).all():
        kind = "nan, from an undefined operation" if np.isnan(answer).any() else "inf"
        raise NotYet(f"{what} is not finite: it contains {kind}")

    off = np.abs(answer - right)
    if (off <= rtol * np.abs(right) + atol).all():
        return
    if right.ndim:
        raise NotYet(f"{what} is off by up to {off.max():.3g}")
    side = "high" if answer > right else "low"
    raise NotYet(f"{what}, {answer:.6g}, is too {side} by {off:.3g}")


def same(found: Any, value: Any, **tolerance: float) -> bool:
    """Whether what a learner found is, nearly, this number or array."""
    try:
        found = np.asarray(found, float)
    except (TypeError, ValueError):
        return False
    return found.shape == np.shape(value) and np.allclose(found, value, **tolerance)


def must_not_be(
    found: Any, right: Any, mistakes: Mapping[str, Any], what: str = "", **tolerance: float
) -> None:
    """Raise NotYet with a hint if `found` is what one of the `mistakes`, hint -> value, gives."""
    for hint, wrong in mistakes.items():
        if same(found, wrong, **tolerance) and not same(wrong, right, **tolerance):
            raise NotYet(f"{what}: {hint}" if what else hint)


def must_not_be_scaled(found: Any, right: np.ndarray, what: str, downhill: str, s: int) -> None:
    """Name the mistakes that scale all of a gradient over `s` samples.

    These are the wrong sign (`downhill` is its hint), a sum instead of a mean, a lost factor of 2.
    """
    try:
        found = np.asarray(found, float)
    except (TypeError, ValueError):
        return
    if found.shape != right.shape or not np.any(right):
        return
    factor = float(np.vdot(found, right) / np.vdot(right, right))
    if abs(factor) < 1e-9 or np.isclose(factor, 1) or not np.allclose(found, factor * right):
        return
    if np.isclose(factor, -1):
        raise NotYet(downhill)
    mistakes = {
        "the derivative of a square has a factor of 2": 1 / 2,
        "yours is a sum over the samples; the loss is a mean, so divide by their number": s,
        "is the 2/s there? The loss is a mean over the samples, of squares": s / 2,
    }
    for hint, wrong in mistakes.items():
        if np.isclose(factor, wrong):
            raise NotYet(f"{what}: {hint}")
    raise NotYet(f"{what} is {factor:.3g} times the right one: is the 2/s there?")

"""Checks for the notebooks' exercises: `check("01.degree", answer)` says how far off `answer` is.

There is one file per notebook: the check "01.degree" is the function `degree` in `notebook_01.py`.
It takes the answer and returns the praise for a right one, or raises `NotYet` with a message that
says how far off the answer is. `close` compares numbers, `call` calls a learner's function.

A notebook must run from top to bottom with its exercises undone. So an answer that is missing
(`None`, `...`, a function that raises NotImplementedError) or broken prints "not yet: ..." and
raises nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from inspect import isfunction
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["NotYet", "call", "check", "close"]


class NotYet(Exception):
    """The answer is not right yet; the message says how far off it is."""


def check(name: str, answer: Any) -> bool:
    """Print "correct: ..." or "not yet: ..." on one line; return whether the answer is right.

    `name` is "NN.exercise", where NN is the notebook's number: "01.degree". `answer` is what the
    learner wrote: a number, an array or a function. ValueError, if there is no such exercise, is an
    error in the notebook.
    """
    notebook, _, exercise = name.partition(".")
    path = f"{__name__}.notebook_{notebook}"
    if not (notebook.isdigit() and find_spec(path)):
        raise ValueError(f"no exercises for {name!r}; names look like '01.degree'")
    judges = _judges(import_module(path))
    if exercise not in judges:
        known = ", ".join(f"{notebook}.{e}" for e in sorted(judges))
        raise ValueError(f"unknown exercise {name!r}; this notebook has {known}")
    try:
        if _unfinished(answer):
            raise NotYet("put your answer in place of the `...`")
        praise = judges[exercise](answer)
    except NotYet as far_off:
        return _say("not yet", far_off, False)
    except NotImplementedError:
        return _say("not yet", "the function is still to be written", False)
    except Exception as error:
        return _say("not yet", f"{type(error).__name__}: {error}", False)
    return _say("correct", praise, True)


def close(answer: Any, right: Any, what: str, rtol: float = 1e-6, atol: float = 0.0) -> None:
    """Raise NotYet unless `answer`, any object, equals `right` within rtol |right| + atol.

    `what` says what the number or array is: "the learning rate".
    """
    if _unfinished(answer):
        raise NotYet(f"{what} is {answer!r} so far")
    right = np.asarray(right, dtype=float)
    try:
        answer = np.asarray(answer, dtype=float)
    except (TypeError, ValueError):
        kind = type(answer).__name__
        raise NotYet(f"{what} should be made of numbers, yours is a {kind}") from None
    if answer.shape != right.shape:
        raise NotYet(f"{what} should have shape {right.shape}, yours has {answer.shape}")
    if not np.isfinite(answer).all():
        raise NotYet(f"{what} has values that are not finite")

    off = np.abs(answer - right)
    if (off <= rtol * np.abs(right) + atol).all():
        return
    if right.ndim:
        raise NotYet(f"{what} is off by up to {off.max():.3g}")
    share = f" ({off / abs(right):.1%} of the right value)" if right else ""
    side = "high" if answer > right else "low"
    raise NotYet(f"{what}, {answer:.6g}, is too {side} by {off:.3g}{share}")


def call(function: Any, *arguments: Any) -> Any:
    """Call the learner's function and return its result; raise NotYet if it cannot be called.

    Arrays are passed as copies, so that a function that writes into them cannot spoil the check.
    """
    must_be_function(function)
    return function(*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))


def call_on_ranks(function: Any, team: Any, *arguments: Any) -> Any:
    """As `call`, on every rank, with the team before the arguments; it must return something."""
    must_be_function(function)
    with aborting(team):
        found = function(team, *arguments)
    must_return(found, f"rank {team.rank}: ")
    return found


@contextmanager
def aborting(team: Any) -> Iterator[None]:
    """Leave the team if the body fails, so that the others need not wait for this rank."""
    try:
        yield
    except BaseException as error:
        team.abort(error)
        raise


def same(found: Any, value: Any, **tolerance: float) -> bool:
    """Whether what a learner found is, nearly, this number or array."""
    try:
        found = np.asarray(found, float)
    except (TypeError, ValueError):
        return False
    return found.shape == np.shape(value) and np.allclose(found, value, **tolerance)


def must_not_be(
    found: Any, right: Any, mistakes: Mapping[str, Any], what: str, **tolerance: float
) -> None:
    """Raise NotYet with a hint if `found` is what one of the `mistakes`, hint -> value, gives."""
    for hint, wrong in mistakes.items():
        if same(found, wrong, **tolerance) and not same(wrong, right, **tolerance):
            raise NotYet(f"{what}: {hint}")


def must_not_be_scaled(found: Any, right: np.ndarray, what: str, downhill: str, at="") -> None:
    """Name the mistakes that scale all of a gradient: the wrong sign (`downhill`), a wrong mean."""
    found = np.asarray(found, float)
    factor = float(np.vdot(found, right) / np.vdot(right, right))
    if np.isclose(factor, 1) or not np.allclose(found, factor * right, rtol=1e-9):
        return
    if np.isclose(factor, -1):
        raise NotYet(downhill)
    raise NotYet(f"{what} is {factor:.3g} times the right one{at}: is the 2/s there?")


def must_reduce_once(team: Any, what: str) -> None:
    if team.calls != 1:
        raise NotYet(
            f"rank {team.rank}: {what} is right, but took {team.calls} allreduces; one is enough"
        )


def whose(x: np.ndarray, weights: np.ndarray, ranks: int) -> list[int] | None:
    """How often each rank's values are in `x`; None if `x` is no sum of ranks' values.

    Those of rank r are weights 10^r: one decimal digit per rank, so that a sum tells what is in it.
    """
    totals = x / weights
    if not (np.isfinite(totals).all() and np.ptp(totals) == 0 and 0 <= totals[0] < 10**ranks):
        return None
    if totals[0] != round(totals[0]):
        return None
    return [int(totals[0]) // 10**rank % 10 for rank in range(ranks)]


def must_be_function(answer: Any) -> None:
    if not callable(answer):
        raise NotYet(f"a function is asked for, not {answer!r}")


def must_return(found: Any, where: str = "") -> None:
    if found is None:
        raise NotYet(f"{where}the function returns nothing")


def must_have(answer: Any, length: int, what: str) -> None:
    """Raise NotYet, which asks for `what`, unless `answer` is a tuple or list of that length."""
    if not isinstance(answer, (tuple, list)) or len(answer) != length:
        raise NotYet(f"expected {what}")


def must_be_whole(answer: Any, least: int, most: int | None, what: str) -> None:
    """Raise NotYet unless `answer` is an int from `least` to `most`; None: without a limit."""
    right = isinstance(answer, (int, np.integer)) and not isinstance(answer, bool)
    if not right or answer < least or (most is not None and answer > most):
        limits = f", at least {least}" if most is None else f" from {least} to {most}"
        raise NotYet(f"{what} must be a whole number{limits}, got {answer!r}")


def must_be_a_ring(
    sent: list[tuple[int, int]], rank: int, ranks: int, steps: int, longest: int | None = None
) -> None:
    """Raise NotYet unless the sum on this rank was found by the messages of a ring.

    That is `steps` messages, all to the next rank; `sent` has (target, how many numbers) of each.
    """
    beside = (rank + 1) % ranks
    targets, sizes = [dest for dest, _ in sent], [size for _, size in sent]
    if targets != [beside] * steps:
        raise NotYet(
            f"rank {rank}: the sum is right, but messages went to ranks {targets}; a ring sends "
            f"{steps}, all to rank {beside}"
        )
    if longest is not None and max(sizes, default=0) > longest:
        raise NotYet(
            f"rank {rank}: the sum is right, but the messages had {sizes} numbers; a chunk has at "
            f"most {longest}"
        )


def listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _judges(module: ModuleType) -> dict[str, Callable[[Any], str]]:
    return {
        name: item
        for name, item in vars(module).items()
        if isfunction(item) and item.__module__ == module.__name__ and not name.startswith("_")
    }


def _unfinished(answer: Any) -> bool:
    if isinstance(answer, (tuple, list)):
        return any(_unfinished(item) for item in answer)
    return answer is None or answer is ...


def _say(verdict: str, message: object, passed: bool) -> bool:
    print(f"{verdict}: {' '.join(str(message).split())}")
    return passed

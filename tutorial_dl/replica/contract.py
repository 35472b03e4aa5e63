"""`check`: what every Replica must keep, as one table of rules that any author can run.

    from tutorial_dl import replica
    replica.check(MyReplica(), [(x, y)])

Strategies rely on these rules without checking them: a gradient that is a sum instead of a mean
trains well on one rank, and differently on four.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from math import isclose, isfinite
from typing import Any

import numpy as np

from numba_kernels.errors import line_of
from numba_kernels.shared.window import aligned
from tutorial_dl.data.dataset import Batch, Data
from tutorial_dl.replica.base import Replica, gradient_is_finite, measure, metrics_of


class ContractError(AssertionError):
    """A replica breaks rules; `failures` has a line for each: "rule: what is wrong"."""

    def __init__(self, replica: Any, failures: list[str]) -> None:
        self.failures = failures
        super().__init__(f"{type(replica).__name__} breaks its contract\n" + "\n".join(failures))


def check(replica: Replica, batches: Sequence[Batch], skip: Sequence[str] = ()) -> list[str]:
    """Check a replica against the rules, before it trains; return the names of those checked.

    Afterwards parameters, state and random state are as before, but its vectors have moved.

    Args:
        replica: A Replica, or what `replica.of` takes.
        batches: At least one batch that fits the model, of 2 samples or more each.
        skip: Names of rules that this model can't keep. Layers that use the whole batch (batch
            normalisation) break "additive", masks that depend on its shape (dropout) as well.

    Raises:
        ContractError: If a rule is broken.

    Example:
        >>> from tutorial_dl.replica import CurveReplica, check
        >>> x = np.linspace(-1, 1, 7)
        >>> "additive" in check(CurveReplica(2), [(x, x**2)])
        True
    """
    from tutorial_dl.replica import of

    unknown = [name for name in skip if name not in CONTRACT]
    if unknown:
        raise ValueError(f"unknown rule {unknown[0]!r}; choose from {', '.join(CONTRACT)}")
    if not batches or min(len(Data(*batch)) for batch in batches) < 2:
        raise ValueError("check needs at least one batch, and at least 2 samples in each")
    subject, names, failures = Subject(of(replica), batches), [], []
    for name, rule in CONTRACT.items():
        if name not in skip:
            names.append(name)
            try:
                failures += [f"{name}: {line}" for line in rule(subject)]
            except Exception as error:
                failures.append(f"{name}: {line_of(error)}")
            if name == "vectors" and failures:
                break  # nothing else can be checked
            subject.reset()
    if failures:
        raise ContractError(replica, failures)
    return names


class Subject:
    """A replica under test, with its values at the beginning and the limits for its dtype."""

    def __init__(self, replica: Replica, batches: Sequence[Batch]) -> None:
        self.replica, self.batches, self.batch = replica, list(batches), batches[0]
        self.samples = len(Data(*self.batch))
        self.parameters, self.state = np.array(replica.parameters), np.array(replica.state)
        self.random = None if replica.random is None else np.array(replica.random)
        self.dice = np.random.default_rng(0)
        single = self.parameters.dtype == np.float32
        self.eps = float(np.finfo(np.float32 if single else np.float64).eps)
        self.near = 1e-4 if single else 1e-9  # relative, for two ways to the same sum
        if replica.traits.computes_in_float16:
            self.near, self.eps = 2e-2, 1e-3

    def reset(self) -> None:
        self.replica.parameters[:] = self.parameters
        self.replica.state = self.state
        if self.random is not None:
            self.replica.random = self.random

    def compute(self, batch: Batch | None = None, **options) -> tuple[float, int, np.ndarray]:
        """(loss, samples, copy of the gradient) at the current parameters, else as at first."""
        r = self.replica
        parameters = r.parameters.copy()
        self.reset()
        r.parameters[:] = parameters
        for one in r.segments:  # between them, zeros may stay as they are
            one.view(r.gradient)[...] = np.nan
        loss, samples = r.compute_gradient(self.batch if batch is None else batch, **options)
        return loss, samples, r.gradient.copy()

    def differ(self, words: str, a: np.ndarray, b: np.ndarray) -> Iterator[str]:
        """A line that begins with `words` if two gradients differ."""
        size = max(float(np.abs(a).max()), float(np.abs(b).max()), self.near)
        worst = float(np.abs(a - b).max())
        if not worst <= self.near * size:  # true for NaN
            yield f"{words} {worst:.3g}, the largest element is {size:.3g}"

    def parts(self) -> list[Batch]:
        cut = max(1, self.samples // 3)
        return [Data(*self.batch).take(part) for part in (slice(0, cut), slice(cut, None))]

    def same(self, a: float, b: float) -> bool:
        return isclose(a, b, rel_tol=self.near, abs_tol=self.near)

    def memory(self) -> np.ndarray:
        return aligned(self.parameters.size, self.parameters.dtype)


# The rules: each yields a line for everything that is wrong.


def vectors(s: Subject) -> Iterator[str]:
    """Two flat, contiguous, writeable vectors of the same length and dtype, apart in memory."""
    r = s.replica
    for name in ("parameters", "gradient"):
        v = getattr(r, name)
        if not isinstance(v, np.ndarray) or v.ndim != 1 or v.dtype not in ("float32", "float64"):
            yield f"{name} is {getattr(v, 'dtype', type(v).__name__)} {np.shape(v)}, expected (n,)"
            return
        if not (v.size and v.flags.c_contiguous and v.flags.writeable):
            yield f"{name} of {v.size} elements must be contiguous and writeable, and not empty"
    if r.parameters.shape != r.gradient.shape or r.parameters.dtype != r.gradient.dtype:
        yield (
            f"parameters are {r.parameters.dtype} {r.parameters.shape}, "
            f"gradient is {r.gradient.dtype} {r.gradient.shape}"
        )
    if np.shares_memory(r.parameters, r.gradient):
        yield "parameters and gradient share memory"


def segments(s: Subject) -> Iterator[str]:
    """Segments are in order, do not overlap, and cover all but gaps, which hold zeros."""
    end, used = 0, np.zeros(s.parameters.size, bool)
    for one in s.replica.segments:
        last = one.offset + one.size
        if one.offset < end or last > used.size:
            yield f"{one.name!r} is [{one.offset}, {last}), expected within [{end}, {used.size})"
        used[one.offset : last], end = True, max(end, last)
    for name, vector in (("parameters", s.parameters), ("gradient", s.compute()[2])):
        outside = np.flatnonzero(vector[~used])
        if outside.size:
            yield f"{name} has {outside.size} elements that are not 0 outside all segments"


def place(s: Subject) -> Iterator[str]:
    """place() moves the values, uses the new memory only, and refuses memory that does not fit."""
    r, (_, _, before) = s.replica, s.compute()
    wrong = aligned(s.parameters.size + 1, s.parameters.dtype)[1:]
    try:
        r.place(wrong, s.memory())
        yield f"memory at {wrong.ctypes.data % 64} bytes past a multiple of 64 was accepted"
    except ValueError:
        pass
    old, new = (r.parameters, r.gradient), (s.memory(), s.memory())
    r.place(*new)
    if not np.array_equal(new, (s.parameters, before)):
        yield "the values have not moved along"
    new[0][:] = s.parameters
    old[0][:] = old[1][:] = np.nan
    yield from s.differ("after it, the gradient differs by", s.compute()[2], before)
    for name, memory in zip(("parameters", "gradient"), new, strict=True):
        if getattr(r, name).ctypes.data != memory.ctypes.data:
            yield f"{name} not in the memory given"


def gradient(s: Subject) -> Iterator[str]:
    """compute_gradient() fills the gradient, and returns the loss and the number of samples."""
    loss, samples, filled = s.compute()
    if samples != s.samples or not isfinite(loss):
        yield f"it returned ({loss}, {samples}) for a batch of {s.samples} samples"
    if not np.isfinite(filled).all():
        yield f"{np.count_nonzero(~np.isfinite(filled))} elements were not written, or not finite"
    if not np.array_equal(s.replica.parameters, s.parameters):
        yield "it has changed the parameters"


def empty(s: Subject) -> Iterator[str]:
    """A batch of 0 samples gives zeros and (0.0, 0), and changes no state."""
    loss, samples, filled = s.compute(Data(*s.batch).take(slice(0, 0)))
    if (loss, samples) != (0.0, 0):
        yield f"a batch of 0 samples returned ({loss}, {samples}), expected (0.0, 0)"
    if np.any(filled):  # NaN counts
        yield f"a batch of 0 samples left {np.count_nonzero(filled)} elements that are not 0"
    if not np.array_equal(s.replica.state, s.state):
        yield "a batch of 0 samples changed the state"


def additive(s: Subject) -> Iterator[str]:
    """The gradient of a batch is the mean of its parts' gradients, weighted by their samples."""
    loss, samples, whole = s.compute()
    total, mean, sizes = 0.0, np.zeros_like(whole), []
    for part in s.parts():
        of_part, n, g = s.compute(part)
        total, mean = total + of_part * n / samples, mean + g * whole.dtype.type(n / samples)
        sizes.append(len(Data(*part)))
    words = "parts of {} and {} samples differ from the whole by".format(*sizes)
    yield from s.differ(words, mean, whole)
    if not s.same(total, loss):
        yield f"their mean loss is {total:.6g}, that of the whole is {loss:.6g}"


def slope(s: Subject) -> Iterator[str]:
    """The gradient is the slope of the loss, by central differences in random directions."""
    r, (_, _, g) = s.replica, s.compute()
    g, step = g.astype(np.float64), s.eps ** (1 / 3)
    for _ in range(3):
        way = s.dice.standard_normal(g.size)
        way = way / np.linalg.norm(way) + g / (np.linalg.norm(g) or 1)  # not across the slope only
        losses = []
        for h in (step, -step):
            r.parameters[:] = s.parameters + h * way
            losses.append(s.compute()[0])
        r.parameters[:] = s.parameters
        measured, expected = (losses[0] - losses[1]) / (2 * step), float(g @ way)
        error = 8 * s.eps * max(map(abs, losses)) / step + 0.03 * max(abs(measured), abs(expected))
        if not abs(measured - expected) <= error:
            yield f"the loss has slope {measured:.6g}, the gradient says {expected:.6g}"


def outside(s: Subject) -> Iterator[str]:
    """Parameters that others change are used by the next call; no copy of them is kept."""
    before = s.compute()
    s.replica.parameters[:] = s.parameters + s.dice.uniform(-0.1, 0.1, s.parameters.size)
    for one in s.replica.segments:  # gaps stay 0
        one.view(s.replica.parameters)[...] += s.parameters.dtype.type(0.1)
    after = s.compute()
    if after[0] == before[0] and np.array_equal(after[2], before[2]):
        yield f"the loss is {before[0]:.6g} before and after all parameters changed"


def deterministic(s: Subject) -> Iterator[str]:
    """Equal parameters, state and random state give an equal gradient."""
    first, again = s.compute(), s.compute()
    yield from s.differ("the gradients of two calls differ by", first[2], again[2])
    if not s.same(first[0], again[0]):
        yield f"the losses of two calls are {first[0]:.9g} and {again[0]:.9g}"
    if s.random is not None and s.replica.random.size != s.random.size:
        yield f"random has {s.replica.random.size} elements after a call, {s.random.size} before"


def evaluate(s: Subject) -> Iterator[str]:
    """evaluate() and measure() are right whatever the batches, and change nothing."""
    r = s.replica
    found = r.evaluate(s.batches)
    if not {"loss", "samples"} <= found.keys():
        yield f"it returned {', '.join(found)}; expected loss and samples among them"
        return
    parts = [*s.parts(), Data(*s.batch).take(slice(0, 0)), *s.batches[1:]]
    alone = [r.evaluate([batch]) for batch in parts]
    together = r.evaluate(iter(parts))
    samples = sum(one["samples"] for one in alone)
    if not samples == together["samples"] == found["samples"]:
        yield f"samples are {samples} one by one, {together['samples']} in parts"
        return
    for name in found.keys() - {"samples"}:
        mean = sum(one.get(name, 0.0) * one["samples"] for one in alone) / samples
        for other in (mean, together[name]):
            if not s.same(found[name], other):
                yield f"{name} is {found[name]:.6g}, in other parts {other:.6g}"
    sums = [measure(r, [batch]) for batch in parts]
    joined = metrics_of(r, {n: sum(one.get(n, 0) for one in sums) for n in sums[0]})
    for name in joined:
        if not s.same(found[name], joined[name]):
            yield f"{name} is {found[name]:.6g}, of sums added up {joined[name]:.6g}"
    if r.evaluate([])["samples"] != 0:
        yield "without batches it must return samples 0"
    if not (np.array_equal(r.parameters, s.parameters) and np.array_equal(r.state, s.state)):
        yield "it has changed the parameters or the state"


def state(s: Subject) -> Iterator[str]:
    """The state is flat, and what is assigned is read back."""
    value = (s.state * 0.5 + 0.25).astype(s.state.dtype)
    s.replica.state = value
    if np.shape(s.replica.state) != (s.state.size,) or not np.array_equal(s.replica.state, value):
        yield f"of {s.state.size} elements assigned, other values were read back"


def swap(s: Subject) -> Iterator[str]:
    """If traits.swaps: swap() exchanges the memory of both vectors, contents included."""
    r = s.replica
    if not r.traits.swaps:
        return
    _, _, g = s.compute()
    places = r.parameters.ctypes.data, r.gradient.ctypes.data
    r.swap()
    if (r.gradient.ctypes.data, r.parameters.ctypes.data) != places:
        yield "the vectors have not exchanged their memory"
    if not np.array_equal((r.gradient, r.parameters), (s.parameters, g)):
        yield "the values have not moved along"
    r.parameters[:] = s.parameters
    yield from s.differ("after it, the gradient differs by", s.compute()[2], g)


def finite(s: Subject) -> Iterator[str]:
    """gradient_is_finite is true after a good gradient, and false after one with NaN."""
    s.compute()
    if not gradient_is_finite(s.replica):
        yield "gradient_is_finite is false after a gradient that is finite"
    s.replica.parameters[:] = np.nan
    with np.errstate(all="ignore"):  # the NaN is ours
        loss, _, g = s.compute()
    if not np.isfinite(g).all() and gradient_is_finite(s.replica):
        yield f"gradient_is_finite is true, the loss is {loss}, the gradient is not finite"


def scale(s: Subject) -> Iterator[str]:
    """If traits.scales_loss: a loss scale changes neither loss nor gradient."""
    if not s.replica.traits.scales_loss:
        if s.replica.traits.computes_in_float16:
            yield "it computes in float16 but has no loss_scale"
        return
    before = s.replica.loss_scale
    plain = s.compute()
    s.replica.loss_scale = 8.0
    scaled = s.compute()
    s.replica.loss_scale = before
    yield from s.differ("with a loss scale of 8, the gradient differs by", plain[2], scaled[2])
    if not s.same(plain[0], scaled[0]):
        yield f"with a loss scale of 8, the loss is {scaled[0]:.6g}, else {plain[0]:.6g}"


def apart(s: Subject) -> Iterator[str]:
    """If traits.keeps_apart: the part that stays apart is the same, times own_factor, at `own`."""
    r = s.replica
    if not r.traits.keeps_apart:
        return
    _, _, g = s.compute()
    first, last = g.size // 3, g.size - g.size // 4
    _, _, found = s.compute(apart=(first, last))
    kind = ctypes.c_float if g.dtype == np.float32 else ctypes.c_double
    for offset, size, address in np.array(r.own).T.tolist():
        numbers = np.array((kind * size).from_address(address)) * g.dtype.type(r.own_factor)
        low, high = max(first, offset), min(last, offset + size)
        if low < high:
            found[low:high] = numbers[low - offset : high - offset]
    yield from s.differ(f"with apart=({first}, {last}), the gradient differs by", found, g)


_rules = (  # checked in this order
    vectors, segments, place, gradient, empty, additive, slope, outside, deterministic, evaluate,
    state, swap, finite, scale, apart,
)  # fmt: skip
CONTRACT: dict[str, Callable[[Subject], Iterator[str]]] = {rule.__name__: rule for rule in _rules}

"""Gradient descent on all samples, on mini-batches, or on one sample at a time.

    w <- w - eta grad L_batch(w)

One epoch passes over all samples once, in a fresh random order, cut into batches; the last batch
of an epoch is smaller if the batch size does not divide the samples, and no sample is dropped.
batch_size = s (or None) is full-batch descent, 1 is stochastic descent, between is mini-batch.

After every epoch the loss and gradient of ALL samples are looked at, and the first of these ends
the descent:

    gradient norm     |grad L(w)| <= gradient_tolerance     at the bottom of a bowl it vanishes
    relative change   |L - L before| <= change_tolerance * |L before|
                      cheap and often used, but small steps look like convergence to it
    divergence        L is not finite, or 1e12 times what it was at the start
    epochs            the epochs are used up
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tutorial_dl.course.foundations.loss import LeastSquares

GROWTH = 1e12  # times the loss at the start, beyond which nothing comes back


@dataclass(frozen=True)
class Descent:
    """What a descent did, and why it ended.

    Attributes
    ----------
    path : parameters before the first step and after each step, shape (steps + 1, k).
    losses : full loss before the first epoch and after each, shape (epochs + 1,).
    gradient_norms : |full gradient| at the same moments, shape (epochs + 1,).
    steps_per_epoch : updates in one epoch.
    samples_per_epoch : samples whose gradient was taken in one epoch.
    ended_by : "gradient norm", "relative change", "divergence" or "epochs".
    reason : the same as a sentence, with the numbers.
    """

    path: np.ndarray
    losses: np.ndarray
    gradient_norms: np.ndarray
    steps_per_epoch: int
    samples_per_epoch: int
    ended_by: str
    reason: str

    @property
    def parameters(self) -> np.ndarray:
        """Where it ended, shape (k,)."""
        return self.path[-1]

    @property
    def epochs(self) -> int:
        return len(self.losses) - 1

    @property
    def steps(self) -> int:
        return len(self.path) - 1

    @property
    def converged(self) -> bool:
        """Whether a convergence criterion ended it, not divergence or the number of epochs."""
        return self.ended_by in ("gradient norm", "relative change")


def descend(
    loss: LeastSquares,
    start: np.ndarray,
    learning_rate: float | Callable[[int], float],
    *,
    batch_size: int | None = None,
    epochs: int = 1000,
    gradient_tolerance: float | None = 1e-8,
    change_tolerance: float | None = None,
    seed: int = 0,
) -> Descent:
    """Follow the negative gradient of `loss` from `start` until one of the criteria above holds.

    Parameters
    ----------
    loss : what to minimise; `loss(w)`, `loss.gradient(w, rows)`, `.samples`, `.parameters`.
    start : w before the first step, shape (k,).
    learning_rate : eta > 0, or a function of the step (0, 1, 2, ...) that returns it.
    batch_size : samples a step, 1 to s; None for all of them.
    epochs : passes over the samples at most.
    gradient_tolerance : unit of the gradient; None for never.
    change_tolerance : relative; None for never.
    seed : the same seed gives the same batches, so the same path. Full-batch descent has none.

    Raises
    ------
    ValueError : an argument outside its range; the message says which.

    >>> bowl = LeastSquares(np.array([[1.0]]), np.array([0.0]))  # L = w^2, gradient 2 w
    >>> run = descend(bowl, np.array([1.0]), 0.25, epochs=3)
    >>> run.path[:, 0], run.reason
    (array([1.   , 0.5  , 0.25 , 0.125]), 'not converged: 3 epochs used up, gradient norm 0.25')
    """
    w = np.array(start, dtype=float)
    if w.shape != (loss.parameters,):
        raise ValueError(f"start must have shape ({loss.parameters},), got {w.shape}")
    if batch_size is None:
        batch_size = loss.samples
    if not 1 <= batch_size <= loss.samples:
        raise ValueError(f"batch_size must be 1 to {loss.samples}, got {batch_size}")
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    for name, tolerance in (
        ("gradient_tolerance", gradient_tolerance),
        ("change_tolerance", change_tolerance),
    ):
        if tolerance is not None and not tolerance >= 0:
            raise ValueError(f"{name} must be >= 0 or None, got {tolerance}")
    rate = learning_rate if callable(learning_rate) else lambda step: learning_rate

    path, losses, norms = [w], [], []
    with np.errstate(over="ignore", invalid="ignore"):  # divergence is found by its loss, below
        while True:
            losses.append(loss(w))
            norms.append(float(np.linalg.norm(loss.gradient(w))))
            ended = _ended(losses, norms, epochs, gradient_tolerance, change_tolerance)
            if ended:
                break

            for rows in _batches(loss.samples, batch_size, seed, epoch=len(losses) - 1):
                eta = rate(len(path) - 1)
                if not eta > 0:
                    raise ValueError(
                        f"learning_rate must be > 0, got {eta} at step {len(path) - 1}"
                    )
                w = w - eta * loss.gradient(w, rows)
                path.append(w)

    ended_by, why = ended
    return Descent(
        path=np.array(path),
        losses=np.array(losses),
        gradient_norms=np.array(norms),
        steps_per_epoch=-(-loss.samples // batch_size),
        samples_per_epoch=loss.samples,
        ended_by=ended_by,
        reason=f"{why} after {len(path) - 1} steps" if ended_by != "epochs" else why,
    )


def _batches(samples: int, batch_size: int, seed: int, epoch: int) -> list[np.ndarray | None]:
    """Indices of each batch of an epoch; None for all samples in the order they lie in."""
    if batch_size == samples:
        return [None]
    order = np.random.default_rng((seed, epoch)).permutation(samples)
    return [order[first : first + batch_size] for first in range(0, samples, batch_size)]


def _ended(
    losses: list[float],
    norms: list[float],
    epochs: int,
    gradient_tolerance: float | None,
    change_tolerance: float | None,
) -> tuple[str, str] | None:
    """Which criterion holds now and how to say so, or None to go on."""
    loss, norm = losses[-1], norms[-1]
    if not np.isfinite(loss) or loss > GROWTH * losses[0] > 0:
        return "divergence", f"diverged: loss {loss:.3g} from {losses[0]:.3g}"
    if gradient_tolerance is not None and norm <= gradient_tolerance:
        return "gradient norm", f"converged: gradient norm {norm:.3g} <= {gradient_tolerance:g}"
    if change_tolerance is not None and len(losses) > 1:
        change = abs(loss - losses[-2])
        if change <= change_tolerance * abs(losses[-2]):
            relative = change / abs(losses[-2]) if losses[-2] else 0.0
            return (
                "relative change",
                f"converged: relative change of the loss {relative:.3g} <= {change_tolerance:g}",
            )
    if len(losses) > epochs:
        return "epochs", f"not converged: {epochs} epochs used up, gradient norm {norm:.3g}"
    return None

"""Gradient descent on all samples, on mini-batches, or on one sample at a time.

    w <- w - eta grad L_batch(w)

One epoch passes over all samples once, in a new random order, divided into batches. The last batch
of an epoch is smaller if the batch size does not divide the number of samples s; no sample is
dropped. batch_size = s (or None) is full-batch descent, 1 is stochastic descent, and anything
between is mini-batch descent.

After every epoch the loss and gradient of ALL samples are computed, and the first of these tests
that holds ends the descent:

    gradient norm     |grad L(w)| <= gradient_tolerance     at the minimum of a bowl it vanishes
    divergence        L is not finite, or above 1e12 times its value at the start
    epochs            the epochs are used up
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tutorial_dl.course.foundations.least_squares import LeastSquares
from tutorial_dl.words import counted

GROWTH = 1e12  # a loss above this multiple of the first one counts as divergence


@dataclass(frozen=True)
class Descent:
    """What a descent did, and why it ended. Losses and norms are those of all samples."""

    path: np.ndarray  # parameters before the first step and after each step, (steps + 1, k)
    losses: np.ndarray  # before the first epoch and after each, (epochs + 1,)
    gradient_norms: np.ndarray  # at the same times, (epochs + 1,)
    steps_per_epoch: int
    samples_per_epoch: int  # whose gradient is computed
    ended_by: str  # "gradient norm", "divergence" or "epochs"
    reason: str  # the same as a sentence, with the numbers

    @property
    def parameters(self) -> np.ndarray:
        """The last parameters, shape (k,)."""
        return self.path[-1]

    @property
    def epochs(self) -> int:
        return len(self.losses) - 1

    @property
    def steps(self) -> int:
        return len(self.path) - 1

    @property
    def converged(self) -> bool:
        """Whether a convergence test ended the descent, not divergence or the number of epochs."""
        return self.ended_by == "gradient norm"


def descend(
    loss: LeastSquares,
    start: np.ndarray,
    learning_rate: float | Callable[[int], float],
    *,
    batch_size: int | None = None,
    epochs: int = 1000,
    gradient_tolerance: float | None = 1e-8,
    seed: int = 0,
) -> Descent:
    """Follow the negative gradient of `loss` from `start` until one of the tests above holds.

    Args:
        loss: what to minimise; provides `loss(w)`, `loss.gradient(w, rows)`, `.samples` and
            `.parameters`
        start: w before the first step, shape (k,)
        learning_rate: eta > 0, or a function from the step (0, 1, 2, ...) to eta
        batch_size: samples per step, 1 to s; None for all of them
        epochs: largest number of passes over the samples
        gradient_tolerance: in the unit of the gradient; None turns this test off
        seed: of the order of the samples; the same seed gives the same path. Full-batch descent
            does not use it.

    Example:
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
    if gradient_tolerance is not None and not gradient_tolerance >= 0:
        raise ValueError(f"gradient_tolerance must be >= 0 or None, got {gradient_tolerance}")
    rate = learning_rate if callable(learning_rate) else lambda step: learning_rate

    path, losses, norms = [w], [], []
    with np.errstate(over="ignore", invalid="ignore"):  # the test for divergence below finds these
        while True:
            losses.append(loss(w))
            norms.append(float(np.linalg.norm(loss.gradient(w))))
            ended = _ended(losses, norms, epochs, gradient_tolerance)
            if ended:
                break

            batches = [None]  # all samples in their stored order
            if batch_size < loss.samples:
                order = np.random.default_rng((seed, len(losses) - 1)).permutation(loss.samples)
                firsts = range(0, loss.samples, batch_size)
                batches = [order[first : first + batch_size] for first in firsts]
            for rows in batches:
                eta = rate(len(path) - 1)
                if not eta > 0:
                    step = len(path) - 1
                    raise ValueError(f"learning_rate must be > 0, got {eta} at step {step}")
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
        reason=f"{why} after {counted(len(path) - 1, 'step')}" if ended_by != "epochs" else why,
    )


def _ended(
    losses: list, norms: list, epochs: int, gradient_tolerance: float | None
) -> tuple[str, str] | None:
    """The test that holds now and a sentence about it, or None to continue."""
    loss, norm = losses[-1], norms[-1]
    if not np.isfinite(loss) or loss > GROWTH * losses[0] > 0:
        return "divergence", f"diverged: loss {loss:.3g} from {losses[0]:.3g}"
    if gradient_tolerance is not None and norm <= gradient_tolerance:
        return "gradient norm", f"converged: gradient norm {norm:.3g} <= {gradient_tolerance:g}"
    if len(losses) > epochs:
        return (
            "epochs",
            f"not converged: {counted(epochs, 'epoch')} used up, gradient norm {norm:.3g}",
        )
    return None

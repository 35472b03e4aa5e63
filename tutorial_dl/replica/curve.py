"""A curve y = w . phi(x), linear in its parameters: the smallest model to train."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tutorial_dl.replica.base import Batch, lay_out, plain
from tutorial_dl.replica.vectors import Vectors


class CurveReplica(Vectors):
    """The Replica of a curve: loss L(w) = 1/s sum_i (w . phi(x_i) - y_i)^2, the mean squared error.

    A batch is (x, y) with x and y of shape (s,). Its gradient is 2/s Phi^T (Phi w - y), Phi of
    shape (s, k) holding phi(x_i) in row i.

    Args:
        degree: phi(x) = (1, x, x^2, ..., x^degree), so k = degree + 1.
        basis: Another phi instead, from x (s,) to Phi (s, k).
        parameters: The initial w, shape (k,); zeros by default.

    >>> line = CurveReplica(degree=1, dtype="float64")
    >>> line.compute_gradient((np.array([0.0, 2.0]), np.array([1.0, 5.0])))  # (1^2 + 5^2) / 2
    (13.0, 2)
    >>> line.gradient
    array([ -6., -10.])
    """

    def __init__(
        self,
        degree: int = 3,
        basis: Callable[[np.ndarray], np.ndarray] | None = None,
        dtype: Any = np.float32,
        parameters: np.ndarray | None = None,
    ) -> None:
        if basis is None:
            if degree < 0:
                raise ValueError(f"degree must be at least 0, got {degree}")

            def basis(x: np.ndarray) -> np.ndarray:
                return np.vander(x, degree + 1, increasing=True)

        self.basis = basis
        k = np.shape(basis(np.zeros(1, dtype)))[-1]
        super().__init__(lay_out([("coefficients", (k,))]), dtype)
        if parameters is not None:
            if np.shape(parameters) != (k,):
                raise ValueError(f"parameters of shape {np.shape(parameters)}: expected ({k},)")
            self.parameters[:] = parameters

    def _phi(self, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, self.dtype).reshape(-1)
        return np.asarray(self.basis(x), self.dtype)  # (s, k)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The curve at x (s,), shape (s,)."""
        return self._phi(x) @ self.parameters

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        x, y = plain(batch)
        samples = len(x)
        if samples == 0:
            self.gradient[:] = 0
            return 0.0, 0
        phi = self._phi(x)
        residual = phi @ self.parameters - np.asarray(y, self.dtype).reshape(-1)  # (s,)
        np.matmul(residual, phi, out=self.gradient)
        self.gradient *= 2 / samples
        return float(residual @ residual) / samples, samples

    def measure(self, batches: Iterable[Batch]) -> dict[str, float]:
        squares, samples = 0.0, 0
        for x, y in map(plain, batches):
            residual = self.predict(x) - np.asarray(y, self.dtype).reshape(-1)
            squares += float(residual @ residual)
            samples += len(x)
        return {"loss": squares, "samples": samples}

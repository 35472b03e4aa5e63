"""Muon: momentum, as an orthogonal matrix: every direction of a matrix moves equally far.

    M <- mu M + G
    U =  G + mu M                          (Nesterov; else U = M)
    O =  U V^T of the singular values' decomposition of U, about
    W <- W (1 - eta wd) - eta rms sqrt(max(rows, columns)) O

Gradients of matrices have a few large singular values; a step along these alone leaves the other
directions untrained. O has all singular values near 1. It comes from five rounds of a polynomial,
products of matrices alone, with X = U / |U| at first (Newton-Schulz):

    X <- a X + b (X X^T) X + c (X X^T)^2 X         a, b, c = 3.4445, -4.7750, 2.0315

which moves singular values to between 0.7 and 1.2: more rounds would not bring them nearer to 1.
Elements of O have a root mean square of 1 / sqrt(max(rows, columns)), so with the factor above
steps are as long as Adam's where `rms_rate` is 0.2, and take its learning rate.

Embeddings, the head and vectors are updated by AdamW. Jordan et al., Muon (2024),
kellerjordan.github.io/posts/muon; Liu et al., arXiv 2502.16982 (as keras.optimizers.Muon, which
leaves arrays of more than two dimensions to Adam; matrices.py says which matrix they are here).
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from .adamw import AdamW
from .matrices import OfMatrices

ROUNDS, A, B, C = 5, 3.4445, -4.7750, 2.0315


@dataclass(frozen=True)
class Muon(OfMatrices):
    """Muon; defaults are Keras's.

    Args:
        learning_rate: eta, >= 0, of matrices and of all else
        momentum: mu, 0 <= mu < 1
        nesterov: look ahead along the momentum
        weight_decay: wd of matrices, >= 0
        rms_rate: root mean square of the elements of a step, in learning rates, > 0; None: a step
            is eta O
        adam_beta_1, adam_beta_2, epsilon, adam_weight_decay: AdamW's, of all else
        adam: names of matrices that Adam updates; None: embeddings and the last one
    """

    learning_rate: float = 0.001
    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.004
    rms_rate: float | None = 0.2
    adam_beta_1: float = 0.9
    adam_beta_2: float = 0.999
    epsilon: float = 1e-7
    adam_weight_decay: float = 0.004
    adam: tuple[str, ...] | None = None

    def hyper(self, step: int) -> np.ndarray:
        rest = AdamW(
            self.learning_rate, self.adam_beta_1, self.adam_beta_2, self.epsilon,
            self.adam_weight_decay,
        )  # fmt: skip
        return rest.hyper(step)

    def turn(self, w, g, slots, step):
        m = slots[0].reshape(w.shape)
        m *= self.momentum
        m += g
        rate = self.learning_rate
        w *= 1 - rate * self.weight_decay
        if self.rms_rate is not None:
            rate *= self.rms_rate * sqrt(max(w.shape))
        w -= rate * orthogonal(g + self.momentum * m if self.nesterov else m)


def orthogonal(u: np.ndarray) -> np.ndarray:
    """Five rounds of Newton-Schulz from the matrix u (rows, columns): nearly U V^T of its SVD."""
    x = u if u.shape[0] <= u.shape[1] else u.T
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(ROUNDS):
        square = x @ x.T
        x = A * x + (B * square + C * square @ square) @ x
    return x if u.shape[0] <= u.shape[1] else x.T

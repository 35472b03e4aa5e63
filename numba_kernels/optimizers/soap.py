"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner.

    G' = QL^T G QR                                  the gradient in the basis; likewise M'
    M <- b1 M + (1 - b1) G,   V <- b2 V + (1 - b2) G'^2
    W <- W - a QL (M' / (sqrt(V) + eps)) QR^T,      a = eta sqrt(1 - b2^t) / (1 - b1^t)
    W <- W (1 - eta wd)
    L <- b2 L + (1 - b2) G G^T,   R <- b2 R + (1 - b2) G^T G
    QL, QR: eigenvectors of L and R

Shampoo's step is L^-1/4 G R^-1/4, which is a step of Adafactor's in the eigenbasis of L and R. In
this basis gradients of the elements are least correlated, so a rate for each of them, as Adam has,
fits best. Eigenvectors are decomposed once, from the first gradient, whose step is left out, and
follow L and R by an iteration every few updates:

    Q <- orthonormal columns of L Q (QR decomposition)

The owner of a matrix (matrices.py) does all of this alone. Of a matrix that is more than RATIO
times longer than wide, only the shorter side is rotated, the paper's one-sided SOAP. Where L has
equal eigenvalues, as while it has seen few gradients, rounding chooses among their vectors.

Embeddings, the head and vectors are updated by AdamW. Vyas et al., arXiv 2409.11321, algorithm 3
(with the authors' first step, bias correction and order of weight decay).
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from .adamw import AdamW
from .matrices import OfMatrices

RATIO = 4
PLACES = {True: (2, 3), False: (4, 4 + RATIO)}  # rows where P and Q begin: of a shorter side?


@dataclass(frozen=True)
class SOAP(OfMatrices):
    """SOAP; defaults are the authors'.

    Args:
        learning_rate: eta, >= 0, of matrices and of all else
        beta_1: b1, decay of running means, 0 <= beta < 1
        beta_2: b2, decay of running mean squares, and of L and R, 0 <= beta < 1
        epsilon: added to the root, > 0
        weight_decay: wd, >= 0
        every: updates between two iterations of the eigenvectors, at least 1
        adam: names of matrices that Adam updates; None: embeddings and the last one
    """

    learning_rate: float = 0.003
    beta_1: float = 0.95
    beta_2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    every: int = 10
    adam: tuple[str, ...] | None = None
    slots = 4 + 2 * RATIO  # M and V, L and QL of the shorter side, R and QR of the longer

    def __post_init__(self):
        super().__post_init__()
        if self.every < 1:
            raise ValueError(f"every must be at least 1 update, got {self.every}")

    def hyper(self, step: int) -> np.ndarray:
        rate, b1, b2 = self.learning_rate, self.beta_1, self.beta_2
        return AdamW(rate, b1, b2, self.epsilon, self.weight_decay).hyper(step)

    def turn(self, w, g, slots, step):
        b1, b2, t = self.beta_1, self.beta_2, step - 1
        sides = [Side(slots, w.shape, axis) for axis in (0, 1)]
        left, right = sides
        if t:
            m, v = (row.reshape(w.shape) for row in slots[:2])
            m *= b1
            m += (1 - b1) * g
            v *= b2
            v += (1 - b2) * np.square(right.turned(left.turned(g.T).T))
            a = self.learning_rate * sqrt(1 - b2**t) / (1 - b1**t)
            u = right.turned(left.turned(m.T).T) / (np.sqrt(v) + self.epsilon)
            w -= a * right.back(left.back(u.T).T)
            w *= 1 - self.learning_rate * self.weight_decay
        for side, x in zip(sides, (g, g.T), strict=True):
            if side.rotated:
                side.follow(x, b2, t == 0, t % self.every == 0)


class Side:
    """L and QL of a matrix, or R and QR (axis 1), as they lie in its slots (k, size)."""

    def __init__(self, slots: np.ndarray, shape: tuple[int, int], axis: int):
        self.n, other = shape[axis], shape[1 - axis]
        self.rotated = self.n <= RATIO * other
        if self.rotated:
            first = self.n < other or (self.n == other and axis == 0)
            rows = 1 if first else RATIO
            self.places = [slots[at : at + rows] for at in PLACES[first]]
            self.p, self.q = (self._read(place) for place in self.places)

    def _read(self, place: np.ndarray) -> np.ndarray:
        return place.reshape(-1)[: self.n**2].reshape(self.n, self.n)

    def turned(self, x: np.ndarray) -> np.ndarray:
        """x Q, for x (..., n)."""
        return x @ self.q if self.rotated else x

    def back(self, x: np.ndarray) -> np.ndarray:
        """x Q^T, for x (..., n)."""
        return x @ self.q.T if self.rotated else x

    def follow(self, x: np.ndarray, decay: float, first: bool, due: bool) -> None:
        """Add x x^T to P, for x (n, ...); renew Q if that is due."""
        p = decay * self.p + (1 - decay) * (x @ x.T)
        self.places[0].flat[: p.size] = p.ravel()
        if due:
            q = np.linalg.eigh(p)[1][:, ::-1] if first else np.linalg.qr(p @ self.q)[0]
            self.places[1].flat[: q.size] = q.ravel()

"""A GAN of one-dimensional samples in numpy: every gradient in closed form, in one file.

    generator       G(z) = c + sum_j a_j tanh(u_j z + b_j)
    discriminator   D(x) = c + sum_j v_j tanh(w_j x + b_j)

With h_j = tanh(...) and s_j = 1 - h_j^2, the derivative that carries D's judgement to G is
D'(x) = sum_j v_j w_j s_j. The gradient penalty (|D'| - 1)^2 needs its derivatives, too:

    dD'/dv_j = w_j s_j     dD'/db_j = -2 v_j w_j h_j s_j     dD'/dw_j = v_j s_j + x dD'/db_j

With spectral normalisation (Miyato et al., arXiv 1802.05957), D computes with w / |w| and v / |v|:
the spectral norm of a matrix with one row or column is its length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tutorial_dl.replica.base import Batch, lay_out
from tutorial_dl.replica.gan import Game, Round, Rules, Side
from tutorial_dl.replica.vectors import Vectors


def softplus(x: np.ndarray) -> np.ndarray:
    """ln(1 + e^x)."""
    return np.logaddexp(0, x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x), the derivative of softplus."""
    return 0.5 * (1 + np.tanh(x / 2))


class Perceptron(Vectors, Side):
    """f(x) = c + sum_j v_j tanh(w_j x + b_j), from numbers to numbers, with `hidden` terms."""

    def __init__(self, game: Game, hidden: int, scale: float, seed: Any, dtype: Any) -> None:
        shapes = ((hidden,), (hidden,), (hidden,), (1,))
        Vectors.__init__(self, lay_out(zip("wbvc", shapes, strict=True)), dtype)
        self.game, self.last = game, {}
        random = np.random.default_rng(seed)
        w, b, v, c = self.weights
        w[:], b[:] = random.normal(0, scale, hidden), random.normal(0, scale, hidden)
        v[:], c[:] = random.normal(0, 1 / np.sqrt(hidden), hidden), 0

    def function(self, x: np.ndarray) -> np.ndarray:
        """f(x), (s,)."""
        w, b, v, c = self.used()
        return np.tanh(np.outer(x, w) + b) @ v + c

    def used(self) -> list[np.ndarray]:
        """The arrays w, b, v, c that f is computed with."""
        return self.weights

    def slope(self, x: np.ndarray) -> np.ndarray:
        """f'(x), (s,)."""
        w, b, v, _ = self.used()
        return (1 - np.tanh(np.outer(x, w) + b) ** 2) @ (v * w)

    def add(self, x: np.ndarray, by_value: np.ndarray, by_slope: np.ndarray | None = None) -> None:
        """Add to the gradient, given the loss's derivatives (s,) by f(x), and by f'(x)."""
        w, b, v, _ = self.used()
        h = np.tanh(np.outer(x, w) + b)  # (s, hidden)
        inner = by_value[:, None] * v * (1 - h**2)  # by the argument of tanh
        to_w, to_b, to_v, to_c = self.weights_gradient
        to_w += x @ inner
        to_b += inner.sum(axis=0)
        to_v += by_value @ h
        to_c += by_value.sum()
        if by_slope is not None:
            s = 1 - h**2
            by_b = -2 * v * w * h * s  # of f', (s, hidden)
            to_v += by_slope @ (w * s)
            to_b += by_slope @ by_b
            to_w += by_slope @ (v * s + x[:, None] * by_b)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.function(np.asarray(x, self.dtype).reshape(-1))


class Generator(Perceptron):
    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        one, self.gradient[:] = batch[0], 0
        if len(one) == 0:
            return 0.0, 0
        z, wasserstein = one.noise[:, 0], self.game.rules.loss == "wasserstein"
        made, judge = self.function(z), self.game.discriminator
        score = judge.function(made)
        by_score = -np.ones_like(score) if wasserstein else -sigmoid(-score)
        self.add(z, by_score * judge.slope(made) / len(one))
        return self._loss(score), len(one)

    def _loss(self, score: np.ndarray) -> float:
        wasserstein = self.game.rules.loss == "wasserstein"
        return float(np.mean(-score if wasserstein else softplus(-score)))

    def losses(self, one: Round) -> dict[str, float]:
        return {
            "loss": self._loss(self.game.discriminator.function(self.function(one.noise[:, 0])))
        }


class Discriminator(Perceptron):
    def used(self) -> list[np.ndarray]:
        w, b, v, c = self.weights
        if not self.game.spectral:
            return [w, b, v, c]
        return [w / np.linalg.norm(w), b, v / np.linalg.norm(v), c]

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        one, self.gradient[:] = batch[0], 0
        if len(one) == 0:
            return 0.0, 0
        real, made, (by_real, by_made), loss = self._judged(one)
        n = len(one)
        self.add(real, by_real / n)
        self.add(made, by_made / n)
        if self.game.rules.loss == "wasserstein":
            between, slope, cost = self._penalty(real, made, one.uniforms[:, 1])
            by_slope = 2 * self.game.rules.penalty * (np.abs(slope) - 1) * np.sign(slope)
            self.add(between, np.zeros_like(slope), by_slope / n)
            loss += cost
        if self.game.spectral:  # through w / |w|: what lies along w does not change it
            for weights, gradient in zip(
                self.weights[::2], self.weights_gradient[::2], strict=True
            ):
                if weights.size > 1:
                    length = np.linalg.norm(weights)
                    unit = weights / length
                    gradient[:] = (gradient - (gradient @ unit) * unit) / length
        return loss, n

    def _judged(self, one: Round) -> tuple:
        """Samples, the loss's derivatives by their scores times s, and the loss without penalty."""
        rules = self.game.rules
        real = np.asarray(one.x, self.dtype).reshape(-1)
        made = self.game.generator.function(one.noise[:, 0])
        score, of_made = self.function(real), self.function(made)
        if rules.loss == "wasserstein":
            ones = np.ones_like(score)
            return real, made, (-ones, ones), float(np.mean(of_made) - np.mean(score))
        label = np.where(one.uniforms[:, 0] < rules.flips, 0, 1 - rules.smoothing).astype(
            self.dtype
        )
        cost = label * softplus(-score) + (1 - label) * softplus(score) + softplus(of_made)
        return real, made, (sigmoid(score) - label, sigmoid(of_made)), float(np.mean(cost))

    def _penalty(self, real: np.ndarray, made: np.ndarray, e: np.ndarray) -> tuple:
        between = e * real + (1 - e) * made
        slope = self.slope(between)
        return between, slope, float(self.game.rules.penalty * np.mean((np.abs(slope) - 1) ** 2))

    def losses(self, one: Round) -> dict[str, float]:
        real, made, _, loss = self._judged(one)
        if self.game.rules.loss == "wasserstein":
            loss += self._penalty(real, made, one.uniforms[:, 1])[2]
        return {"loss": loss}


class OneDimensionalGan(Game):
    """The game of numbers.

    Args:
        hidden: Terms of each player's sum.
        rules: How they play.
        spectral: Whether the discriminator's weights are divided by their spectral norms.
        seed: Seed of the initial weights.
        dtype: float32 or float64.
    """

    noise = 1
    name = "one-dimensional gan"

    def __init__(
        self,
        hidden: int = 32,
        rules: Rules | None = None,
        spectral: bool = False,
        seed: int = 0,
        dtype: Any = np.float32,
    ) -> None:
        if hidden < 2:
            raise ValueError(f"hidden must be at least 2, got {hidden}")
        self.rules = Rules(rates=(1e-3, 2e-3)) if rules is None else rules
        self.spectral = spectral
        self.generator = Generator(self, hidden, 2.0, (seed, 0), dtype)
        self.discriminator = Discriminator(self, hidden, 2.0, (seed, 1), dtype)

    def generate(self, noise: np.ndarray, y: Any = ()) -> np.ndarray:
        return self.generator.function(np.asarray(noise, self.generator.dtype)[:, 0])

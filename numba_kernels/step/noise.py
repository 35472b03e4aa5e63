"""Gradient noise scale: the batch size above which more samples hardly improve a step.

A gradient g of B samples is the true gradient G and noise: E |g|^2 = |G|^2 + V / B, where V is the
sum of the variances of a single sample's gradient. Ranks have gradients of two sizes of batches,
their own g_i of s_i samples and the mean g of all S, so they can tell G from noise, without any
further gradient:

    V     = (mean |g_i|^2 - |g|^2) / (mean 1 / s_i - 1 / S)
    |G|^2 = |g|^2 - V / S
    B     = V / |G|^2                        the critical batch size (the simple noise scale)

A step with B samples makes half of the progress that one with the true gradient would make. Both
numbers are means over many steps, since in one step they are too uncertain. McCandlish et al.,
arXiv 1812.06162, appendix A.1.
"""

import numpy as np


class NoiseScale:
    """The means, over the steps since `take`.

    Attributes:
        sums: float64 (3,): sums of V, |G|^2 and |g|^2.
    """

    def __init__(self) -> None:
        self.sums = np.zeros(3)

    def add(self, squares: float, shares: float, ranks: float, whole: float, samples: float):
        """Add a step: sums of |g_i|^2 and 1 / s_i over the ranks that have samples; |g|^2, S."""
        if ranks > 1:
            variance = (squares / ranks - whole) / (shares / ranks - 1 / samples)
            self.sums += variance, whole - variance / samples, whole

    def take(self) -> float:
        """The critical batch size in samples, >= 0; the sums begin anew.

        If noise hides |G|^2, whose estimate is then not positive, it is a lower bound, V / |g|^2.
        """
        variance, signal, whole = self.sums.tolist()
        self.sums[:] = 0
        under = signal if signal > 0 else whole
        return max(0.0, variance) / under if under > 0 else 0.0


def add_noise(to: NoiseScale, team, own: float, samples: int, whole: float, total: float) -> None:
    """Add a step of all ranks of `team`. Collective.

    Args:
        own, samples: |g_i|^2 of this rank, and its number of samples, s_i.
        whole: this rank's part of |g|^2.
        total: the number of all samples, S.
    """
    sums = np.array([own, 1 / samples if samples else 0.0, samples > 0, whole], np.float64)
    to.add(*team.allreduce(sums), total)

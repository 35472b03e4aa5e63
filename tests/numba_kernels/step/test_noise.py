"""The critical batch size, compared with the unbiased variance of samples and with known noise."""

import numpy as np
import pytest

from numba_kernels.step.noise import NoiseScale


def test_by_hand():
    # g_1 = 3 and g_2 = 1 of a sample each: variance 2, g = 2, |G|^2 = 4 - 2 / 2
    noise = NoiseScale()
    noise.add(9 + 1, 1 + 1, 2, 4, 2)
    assert noise.take() == pytest.approx(2 / 3)
    assert noise.take() == 0  # begins anew
    noise.add(9 + 1, 1 + 1, 2, 0.5, 2)  # noise hides the signal: V = 9, |G|^2 < 0
    assert noise.take() == pytest.approx(9 / 0.5)
    noise.add(9, 1, 1, 9, 2)  # one rank alone tells nothing
    assert noise.take() == 0


def test_uneven_shares():
    """The mean over many steps of known noise: B = V / |G|^2 = 40 / 8."""
    dice, shares = np.random.default_rng(0), np.array([1, 5, 0, 2])
    noise, true = NoiseScale(), np.full(2, 2.0)
    for _ in range(4000):
        own = true + np.sqrt(20 / np.maximum(shares, 1))[:, None] * dice.normal(size=(4, 2))
        seen, mean = shares > 0, shares @ own / shares.sum()
        squares = (own[seen] ** 2).sum(), (1 / shares[seen]).sum(), seen.sum()
        noise.add(*squares, mean @ mean, shares.sum())
    assert noise.take() == pytest.approx(5, rel=0.1)


def of_ranks(placed):
    from numba_kernels import Team
    from numba_kernels.optimizers import SGD
    from numba_kernels.step.step import Step

    team, n = Team(), 5003
    gradients = np.random.default_rng(3).normal(1.0, 0.5, (team.size, n))
    w, g = team.empty(n, "f8"), team.empty(n, "f8") if placed else np.zeros(n)
    noise, steps = NoiseScale(), 3
    step = Step(team, SGD(0.1), w, g, clip_norm=1.0, noise=noise)
    plain = Step(team, SGD(0.1), v := np.zeros(n), h := team.empty(n, "f8"), clip_norm=1.0)
    for _ in range(steps):
        g[:] = h[:] = gradients[team.rank]
        step(0.0, 1)
        plain(0.0, 1)
    assert (w == v).all()  # it changes nothing
    variance = gradients.var(axis=0, ddof=1).sum()
    mean = gradients.mean(axis=0)
    assert noise.take() == pytest.approx(variance / (mean @ mean - variance / team.size))


@pytest.mark.parametrize(("ranks", "placed"), [(3, True), (2, False)])
def test_of_ranks(on_ranks, ranks, placed):
    on_ranks(ranks, of_ranks, placed)

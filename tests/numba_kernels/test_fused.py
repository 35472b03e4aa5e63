"""The synchronous step against the same update in plain numpy on the whole batch."""

import itertools

import numpy as np
import pytest


def optimizer_from_numpy(rule, w, gradients):
    """SGD and Adam as the textbook writes them, in float64: an implementation of its own."""
    from numba_kernels.optimizers import Adam

    v, m, s = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        if isinstance(rule, Adam):
            m = rule.beta_1 * m + (1 - rule.beta_1) * g
            s = rule.beta_2 * s + (1 - rule.beta_2) * g**2
            rate = rule.learning_rate * np.sqrt(1 - rule.beta_2**t) / (1 - rule.beta_1**t)
            w = w - rate * m / (np.sqrt(s) + rule.epsilon)
        else:
            v = rule.momentum * v - rule.learning_rate * g
            w = w + (rule.momentum * v - rule.learning_rate * g if rule.nesterov else v)
    return w


def against_the_whole_batch():
    from numba_kernels import Team
    from numba_kernels.fused import Step
    from numba_kernels.optimizers import SGD, Adam

    team = Team()
    p = team.size
    rules = (SGD(0.1), SGD(0.1, 0.9), SGD(0.1, 0.9, nesterov=True), Adam(0.01))
    for n, dtype, rule, window in itertools.product(
        (1, 17, 5003), ("float32", "float64"), rules, (True, False)
    ):
        generator = np.random.default_rng(n)
        start = generator.normal(size=n).astype(dtype)
        gradients = generator.normal(size=(6, p, n)).astype(dtype)
        samples = generator.integers(0, 9, size=(6, p))
        samples[2] = 0  # a round without any sample, and rounds where one rank has them all
        samples[3], samples[4] = 0, 0
        samples[3, 0] = samples[4, p - 1] = 5
        samples[5] += 1
        losses = generator.normal(size=(6, p))
        w = start.copy()
        gradient = team.empty(n, dtype) if window else np.zeros(n, dtype)
        step = Step(team, rule, w, gradient)
        assert p == 1 or step.shared == (window and team.single_node)
        whole = []
        for g, s, loss in zip(gradients, samples, losses, strict=True):
            gradient[:] = g[team.rank]
            mean_loss, total = step(loss[team.rank], int(s[team.rank]))
            assert total == s.sum()
            if total:
                whole.append((s[:, None] * g.astype("f8")).sum(axis=0) / total)
                assert abs(mean_loss - (s * loss).sum() / total) < 1e-12
            else:
                assert mean_loss == 0
        expected = optimizer_from_numpy(rule, start.astype("f8"), whole)
        error = np.abs(w - expected).max()
        assert error < (2e-6 if dtype == "float32" else 1e-14), (rule, n, dtype, window, error)
        assert (team.allgather(w) == w).all(), "ranks hold different weights"
        # the state is cut among the ranks: together they hold it once
        held = team.allreduce(np.array([step.state.slots.size], "f8"))
        assert held[0] == rule.slots * n


@pytest.mark.parametrize("shared", ["1", "0"], ids=["window", "messages"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_against_the_whole_batch(on_ranks, ranks, shared):
    on_ranks(ranks, against_the_whole_batch, env={"NUMBA_KERNELS_WINDOW": shared})


def nan_is_seen():
    """A NaN gradient of a rank with samples reaches the weights; of one without, it does not."""
    from numba_kernels import Team
    from numba_kernels.fused import Step
    from numba_kernels.optimizers import SGD

    team = Team()
    for samples, nan in ((0, False), (3, True)):
        w, g = np.ones(100, "f4"), team.empty(100)
        g[:] = np.nan if team.rank == 1 else 1
        Step(team, SGD(0.1), w, g)(0.0, samples if team.rank == 1 else 3)
        assert np.isnan(w).all() == nan
        if not nan:
            np.testing.assert_allclose(w, 0.9)


@pytest.mark.parametrize("shared", ["1", "0"], ids=["window", "messages"])
def test_nan(on_ranks, shared):
    on_ranks(2, nan_is_seen, env={"NUMBA_KERNELS_WINDOW": shared})


def vectors_that_do_not_fit():
    from numba_kernels import Team
    from numba_kernels.fused import Step
    from numba_kernels.optimizers import SGD

    with pytest.raises(ValueError, match="one shape and dtype"):
        Step(Team(), SGD(), np.zeros(3, "f4"), np.zeros(4, "f4"))


def test_vectors_that_do_not_fit(on_ranks):
    on_ranks(1, vectors_that_do_not_fit)

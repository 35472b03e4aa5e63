"""The synchronous step compared with the same updates in plain numpy on the whole batch."""

from __future__ import annotations

import numpy as np


def layers_of(n):
    """Offsets of layers of several sizes; the third spans slices of 2, 3 and 4 ranks."""
    return sorted({0, n // 50, n // 7, n // 7 + 2 * n // 3})


def serial(rule, w, gradients, layers, clip):
    """The weights of one process on the whole batch in float64 (see test_against_others.py)."""
    w = w.astype("f8")
    state = rule.init(w.size, "f8", layers)
    for g in gradients:
        norm = np.sqrt((g**2).sum())
        rule.update(w, g * (clip / norm) if clip and norm > clip else g, state)
    return w


def weights_in(team, place, n, dtype):
    """Memory for weights: private, one row of the window per rank, or one row for all ranks."""
    if place == "private":
        return np.zeros(n, dtype)
    return team.empty(n, dtype, common=place == "common")


def compare(team, name, n, clip, dtype, window, place):
    """Compare six rounds of one rule; `window`: gradients lie in the window."""
    from rules import RULES, matrices

    from numba_kernels.step.step import Step

    p, rule, layers = team.size, RULES[name][0], matrices(layers_of(n), n)
    generator = np.random.default_rng(n)
    start = generator.normal(size=n).astype(dtype)
    gradients = generator.normal(size=(6, p, n)).astype(dtype)
    gradients[0] *= 0.01  # shorter than `clip`: left as it is
    samples = generator.integers(0, 9, size=(6, p))
    samples[2] = 0  # a round without any sample, and rounds where one rank has them all
    samples[3], samples[4] = 0, 0
    samples[3, 0] = samples[4, p - 1] = 5
    samples[5] += 1
    if name == "soap":  # means must be exact: where eigenvalues are equal, rounding chooses vectors
        if p == 3 or clip or dtype == "float32":
            return
        gradients, samples[samples > 0] = np.round(gradients * 8) / 8, 4
        samples[[0, 1, 5]] = 4
    losses = generator.normal(size=(6, p))
    w = weights_in(team, place, n, dtype)
    w[:] = start  # with common memory, all ranks write the same
    gradient = team.empty(n, dtype) if window else np.zeros(n, dtype)
    step = Step(team, rule, w, gradient, layers, clip)
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
    assert step.state.step == len(whole)
    error = np.abs(w - serial(rule, start, whole, layers, clip)).max()
    what = (name, n, clip, dtype, window, place, error)
    assert error < (3e-6 if dtype == "float32" else 1e-14), what
    assert (team.allgather(w) == w).all(), "ranks hold different weights"
    # The ranks share the state: together they hold it once.
    held = team.allreduce(np.array([step.state.slots.size], "f8"))
    assert held[0] == rule.slots * n

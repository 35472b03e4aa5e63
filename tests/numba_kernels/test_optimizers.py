"""Optimizers against the closed form of one step and against optax, over 100 steps in float64."""

import numpy as np
import pytest

from numba_kernels import optimizers
from numba_kernels.optimizers import SGD, Adam


def optax_rule(rule):
    import optax

    if isinstance(rule, Adam):
        # Kingma and Ba's two forms differ in where epsilon stands: eps_root stays 0, and
        # eps_hat = eps sqrt(1 - b2^t), so they agree to eps relative to the gradients.
        return optax.adam(rule.learning_rate, rule.beta_1, rule.beta_2, eps=rule.epsilon)
    return optax.sgd(rule.learning_rate, rule.momentum or None, rule.nesterov)


RULES = [
    SGD(0.1),
    SGD(0.05, momentum=0.9),
    SGD(0.05, momentum=0.9, nesterov=True),
    Adam(0.01, epsilon=1e-12),
    Adam(0.02, beta_1=0.8, beta_2=0.95, epsilon=1e-12),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_against_optax(rule):
    import jax

    jax.config.update("jax_enable_x64", True)
    generator = np.random.default_rng(1)
    n = 137
    w = generator.normal(size=n)
    theirs, of_theirs = jax.numpy.asarray(w), optax_rule(rule)
    their_state = of_theirs.init(theirs)
    state = rule.init(n, np.float64)
    for _ in range(100):
        gradient = generator.normal(size=n)
        rule.update(w, gradient, state)
        change, their_state = of_theirs.update(jax.numpy.asarray(gradient), their_state, theirs)
        theirs = theirs + change
    assert state.step == 100
    np.testing.assert_allclose(w, np.asarray(theirs), rtol=1e-9, atol=1e-11)


def test_sgd_on_a_parabola():
    # f(x) = x^2 / 2: x[t] = (1 - eta)^t
    x, rule = np.ones(1), SGD(0.1)
    state = rule.init(1, np.float64)
    for t in range(1, 8):
        rule.update(x, x.copy(), state)
        assert x[0] == pytest.approx(0.9**t, rel=1e-14)


def test_adam_first_step_is_the_learning_rate():
    # m / sqrt(s) is the sign of the gradient after one step, whatever its size
    g = np.array([1e-3, -5.0, 2e4])
    w = np.zeros(3)
    Adam(0.01, epsilon=1e-30).update(w, g, state := Adam(0.01).init(3, np.float64))
    np.testing.assert_allclose(w, -0.01 * np.sign(g), rtol=1e-12)
    np.testing.assert_allclose(state.slots[0], 0.1 * g)
    np.testing.assert_allclose(state.slots[1], 0.001 * g**2)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slices_equal_the_whole(rule, dtype):
    generator = np.random.default_rng(2)
    w = generator.normal(size=1000).astype(dtype)
    parts = w.copy()
    cuts = [slice(0, 333), slice(333, 334), slice(334, 334), slice(334, 1000)]
    whole, states = rule.init(1000, dtype), [rule.init(c.stop - c.start, dtype) for c in cuts]
    for _ in range(5):
        gradient = generator.normal(size=1000).astype(dtype)
        rule.update(w, gradient, whole)
        for cut, state in zip(cuts, states, strict=True):
            rule.update(parts[cut], gradient[cut], state)
    # to a rounding: a vector unit may fuse a multiplication and an addition, the loop's rest not
    np.testing.assert_allclose(parts, w, rtol=1e-5 if dtype == "float32" else 1e-13)


def test_zero_gradient_leaves_padding_alone():
    for rule in RULES:
        w = np.zeros(8, np.float32)
        state = rule.init(8)
        for _ in range(3):
            rule.update(w, np.zeros(8, np.float32), state)
        assert not w.any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(-1.0), "learning_rate is -1.0; 0 <= learning_rate"),
        (lambda: SGD(float("nan")), "learning_rate is nan"),
        (lambda: SGD(momentum=1.0), "momentum is 1.0"),
        (lambda: SGD(nesterov=True), "nesterov needs a momentum"),
        (lambda: Adam(beta_2=1.5), "beta_2 is 1.5"),
        (lambda: Adam(epsilon=0.0), "epsilon is 0.0"),
        (lambda: optimizers.get("adams"), "unknown optimizer 'adams'; one of sgd, momentum"),
    ],
)
def test_bad_hyper_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_vectors_that_do_not_fit():
    rule = Adam()
    state = rule.init(3)
    with pytest.raises(ValueError, match="shapes differ"):
        rule.update(np.zeros(3, "f4"), np.zeros(4, "f4"), state)
    with pytest.raises(TypeError, match="dtypes differ"):
        rule.update(np.zeros(3, "f4"), np.zeros(3, "f8"), state)
    assert state.step == 0


def test_names():
    assert optimizers.get("adam") == Adam(0.001)
    assert optimizers.get("sgd", 0.5) == SGD(0.5)
    assert optimizers.get("nesterov", 0.5) == SGD(0.5, 0.9, True)
    assert optimizers.get(RULES[1]) is RULES[1]

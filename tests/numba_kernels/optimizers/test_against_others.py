"""Every optimizer equals Keras, optax or its paper's equation, over 100 float64 steps."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from rules import (
    LAYERS,
    RULES,
    SHAPES,
    ours,
    problem,
)

from numba_kernels import optimizers
from numba_kernels.optimizers import (
    LAMB,
    LARS,
    SOAP,
    Adafactor,
    Averaged,
    Muon,
    Prodigy,
    ScheduleFreeAdamW,
    ScheduleFreeSGD,
)


@pytest.fixture(scope="module")
def keras(tmp_path_factory):
    """{rule's name: the weights that Keras ends with, "default ...": its defaults}"""
    file = tmp_path_factory.mktemp("keras") / "steps.npz"
    program = Path(__file__).parents[2] / "support" / "keras_steps.py"
    subprocess.run([sys.executable, str(program), str(file)], check=True, timeout=600)
    return np.load(file)


def optax_steps(rule, w, gradients):
    import jax
    import optax

    jax.config.update("jax_enable_x64", True)
    contrib, given = optax.contrib, asdict(rule)
    for its, name in (("beta_1", "b1"), ("beta_2", "b2"), ("epsilon", "eps")):
        if its in given:
            given[name] = given.pop(its)
    given.pop("warm_up", None)
    theirs = {
        LAMB: optax.lamb, LARS: optax.lars,
        ScheduleFreeSGD: contrib.schedule_free_sgd, ScheduleFreeAdamW: contrib.schedule_free_adamw,
        Prodigy: lambda b1, b2, first_estimate, coefficient, **more: contrib.prodigy(
            betas=(b1, b2), estim_lr0=first_estimate, estim_lr_coef=coefficient, **more
        ),
        Adafactor: lambda learning_rate, **_: optax.adafactor(learning_rate, 2),
        Muon: lambda **_: contrib.muon(
            rule.learning_rate, beta=rule.momentum, nesterov=False, eps=rule.epsilon,
            weight_decay=rule.weight_decay, consistent_rms=rule.rms_rate,
            muon_weight_dimension_numbers=[contrib.MuonDimensionNumbers(), None] * 2,
        ),
        Averaged: lambda **_: optax.lookahead(
            optax.sgd(rule.learning_rate, rule.inner.momentum), rule.every, 1 - rule.keep
        ),
    }[type(rule)](**given)  # fmt: skip

    def layers(vector):
        parts = zip(LAYERS, SHAPES, strict=True)
        return [jax.numpy.asarray(vector[layer]).reshape(shape) for layer, shape in parts]

    weights = layers(w)
    if isinstance(rule, Averaged):
        weights = optax.LookaheadParams.init_synced(weights)
    state = theirs.init(weights)
    for gradient in gradients:
        change, state = theirs.update(layers(gradient), state, weights)
        weights = optax.apply_updates(weights, change)
    if rule.shows and not isinstance(rule, Averaged):
        weights = contrib.schedule_free_eval_params(state, weights)
    return np.concatenate([np.ravel(x) for x in getattr(weights, "slow", weights)])


def schedule_free_as_in_the_paper(rule, w, gradients):
    """arXiv 2405.15682, algorithm 1, but for the correction of s, which is as in optax."""
    z, x, s, total, b = w.copy(), w.copy(), np.zeros_like(w), 0.0, rule.beta_1
    for t, gradient in enumerate(gradients, start=1):
        y = (1 - b) * z + b * x
        rate = rule.learning_rate * min(1, t / rule.warm_up)
        s = rule.beta_2 * s + (1 - rule.beta_2) * gradient**2
        root = np.sqrt(s / (1 - rule.beta_2**t)) + rule.epsilon
        z = z - rate * (gradient / root + rule.weight_decay * y)
        total += rate**2
        c = rate**2 / total
        x = (1 - c) * x + c * z
    return x


def soap_as_in_the_paper(rule, w, gradients):
    """arXiv 2409.11321, algorithms 3 and 4, with the first step and the order of the authors."""
    w, rate, b1, b2 = w.copy(), rule.learning_rate, rule.beta_1, rule.beta_2
    for layer, shape in zip(LAYERS, SHAPES, strict=True):
        x = w[layer].reshape(shape)
        m, v = np.zeros(shape), np.zeros(shape)
        for t, gradient in enumerate(gradients):
            g = gradient[layer].reshape(shape)
            if len(shape) == 1:  # AdamW
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
                a = rate * np.sqrt(1 - b2 ** (t + 1)) / (1 - b1 ** (t + 1))
                x[:] = x - rate * rule.weight_decay * x - a * m / (np.sqrt(v) + rule.epsilon)
                continue
            if t == 0:
                # (In this order: rounding chooses among vectors of equal eigenvalues.)
                left, right = (1 - b2) * (g @ g.T), (1 - b2) * (g.T @ g)
                ql, qr = (np.linalg.eigh(p)[1][:, ::-1] for p in (left, right))
                one_sided = shape[1] > 4 * shape[0]
                qr = np.eye(shape[1]) if one_sided else qr
                continue
            g_turned = ql.T @ g @ qr
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g_turned**2
            n = ql.T @ m @ qr / (np.sqrt(v) + rule.epsilon)
            x -= rate * np.sqrt(1 - b2**t) / (1 - b1**t) * ql @ n @ qr.T
            x -= rate * rule.weight_decay * x
            left = b2 * left + (1 - b2) * (g @ g.T)
            right = b2 * right + (1 - b2) * (g.T @ g)
            if t % rule.every == 0:
                ql = np.linalg.qr(left @ ql)[0]
                qr = qr if one_sided else np.linalg.qr(right @ qr)[0]
    return w


def lars_as_in_the_paper(rule, w, gradients):
    """arXiv 1708.03888, algorithm 1, layer by layer."""
    w, v = w.copy(), np.zeros_like(w)
    for gradient in gradients:
        for layer in LAYERS:
            g, decay = gradient[layer], rule.weight_decay
            of_w, of_g = np.linalg.norm(w[layer]), np.linalg.norm(g)
            trust = rule.trust_coefficient * of_w / (of_g + decay * of_w) if of_w * of_g else 1.0
            v[layer] *= rule.momentum
            v[layer] += rule.learning_rate * trust * (g + decay * w[layer])
            w[layer] -= v[layer]
    return w


@pytest.mark.parametrize("name", RULES)
def test_against_others(name, keras):
    rule, source = RULES[name]
    w, gradients = problem()
    if source == "keras":
        expected = keras[name]
    else:
        steps = optax_steps if source == "optax" else PAPERS[type(rule)]
        expected = steps(rule, w, gradients)
    assert np.median(np.abs(expected - w)) > 0.001  # the test is not trivial
    close = {"rtol": 1e-10, "atol": 1e-12}
    if isinstance(rule, Muon | Adafactor):  # the others compute some of their numbers in float32
        close = {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(ours(rule, w, gradients), expected, **close)
    if isinstance(rule, SOAP):
        return  # a gradient's rank is less than its columns, so rounding chooses the basis
    # In float32 the difference is some hundred roundings.
    np.testing.assert_allclose(ours(rule, w, gradients, np.float32), expected, rtol=1e-4, atol=1e-4)


PAPERS = {
    LARS: lars_as_in_the_paper,
    ScheduleFreeAdamW: schedule_free_as_in_the_paper,
    SOAP: soap_as_in_the_paper,
}


def test_every_name_is_tested_and_documented():
    def kind(rule):
        return type(rule), bool(getattr(rule, "momentum", 0)), getattr(rule, "nesterov", False)

    tested = {kind(rule) for rule, _ in RULES.values()}
    page = Path(__file__).parents[3].joinpath("docs/training.md").read_text()
    for name in optimizers.NAMES:
        assert kind(optimizers.get(name)) in tested, f"{name} is missing in support/rules.py"
        assert f"`{name}`" in page, f"{name} is missing in docs/training.md"


def test_defaults_are_those_of_keras(keras):
    defaults = [key for key in keras.files if key.startswith("default ")]
    assert len(defaults) > 25
    for key in defaults:
        _, name, field = key.split()
        assert getattr(optimizers.get(name), field) == pytest.approx(keras[key], rel=1e-7), key


def test_defaults_are_those_of_the_papers():
    assert asdict(LARS()) == {
        "learning_rate": 1.0, "momentum": 0.9, "weight_decay": 5e-4, "trust_coefficient": 0.001
    }  # fmt: skip
    assert (LAMB().beta_1, LAMB().beta_2, LAMB().epsilon) == (0.9, 0.999, 1e-6)

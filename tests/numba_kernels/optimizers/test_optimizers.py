"""Compares every optimizer with Keras, optax or its paper's equation, over 100 float64 steps."""

import subprocess
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from rules import (
    LAYERS,
    OFFSETS,
    RULES,
    SEGMENTS,
    SHAPES,
    Array,
    N,
    edges_of,
    matrices,
    problem,
)

from numba_kernels import optimizers
from numba_kernels.jit import denormals
from numba_kernels.optimizers import (
    LAMB,
    LARS,
    SGD,
    SOAP,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Averaged,
    Lion,
    Muon,
    Prodigy,
    RMSprop,
    ScheduleFreeAdamW,
    ScheduleFreeSGD,
    clip_by_norm,
)

every_rule = pytest.mark.parametrize("rule", [rule for rule, _ in RULES.values()], ids=RULES)
layered_rule = pytest.mark.parametrize("rule", [LARS(), LAMB()], ids=["lars", "lamb"])


def ours(rule, w, gradients, dtype=np.float64):
    """The weights that a rule ends with: those that it shows."""
    w = w.astype(dtype)
    state = rule.init(w.size, dtype, SEGMENTS)
    for gradient in gradients.astype(dtype):
        rule.update(w, gradient, state)
    assert state.step == len(gradients)
    rule.show(w, state, True)
    return w


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
    for ours, name in (("beta_1", "b1"), ("beta_2", "b2"), ("epsilon", "eps")):
        if ours in given:
            given[name] = given.pop(ours)
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


def test_sgd_on_a_parabola():
    # f(x) = x^2 / 2: x[t] = (1 - eta)^t
    x, rule = np.ones(1), SGD(0.1)
    state = rule.init(1, np.float64)
    for t in range(1, 8):
        rule.update(x, x.copy(), state)
        assert x[0] == pytest.approx(0.9**t, rel=1e-14)


def test_adam_first_step_is_the_learning_rate():
    # After one step, m / sqrt(s) is the sign of the gradient, whatever its size.
    g = np.array([1e-3, -5.0, 2e4])
    w = np.zeros(3)
    Adam(0.01, epsilon=1e-30).update(w, g, state := Adam(0.01).init(3, np.float64))
    np.testing.assert_allclose(w, -0.01 * np.sign(g), rtol=1e-12)
    np.testing.assert_allclose(state.slots[0], 0.1 * g)
    np.testing.assert_allclose(state.slots[1], 0.001 * g**2)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_lars_first_step_is_a_part_of_the_layer(size):
    # Without decay, |dw| = eta c |w|, however large the gradient is.
    w, g = np.array([3.0, 4.0]), size * np.array([1.0, -7.0])
    rule = LARS(2.0, weight_decay=0.0)
    rule.update(w, g, rule.init(2, np.float64, [0]))
    assert np.linalg.norm(w - [3, 4]) == pytest.approx(2 * 0.001 * 5)


def test_centered_rmsprop_of_a_constant_gradient():
    # The variance is 0 up to rounding; rounding must not lead to the root of a negative number.
    w, rule = np.zeros(64, np.float32), RMSprop(2.0**-20, rho=0.5, centered=True)
    state = rule.init(64)
    g = np.geomspace(1, 1e4, 64).astype(np.float32)
    for _ in range(300):
        rule.update(w, g, state)
    assert np.isfinite(w).all() and (w < 0).all()


@every_rule
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slices_equal_the_whole(rule, dtype):
    generator = np.random.default_rng(2)
    layers = matrices([0, 100, 101, 500], 1000)
    w = generator.normal(size=1000).astype(dtype)
    parts = w.copy()
    cuts = [slice(0, 333), slice(333, 334), slice(334, 334), slice(334, 1000)]
    if rule.whole:
        edges = edges_of(rule, 1000, 4, layers)
        cuts = [slice(*pair) for pair in pairwise(edges)]
        assert len(set(edges)) >= 3
    whole = rule.init(1000, dtype, layers)
    states = [rule.init(c.stop - c.start, dtype, layers, c.start) for c in cuts]
    for _ in range(5):
        gradient = generator.normal(size=1000).astype(dtype)
        rule.update(w, gradient, whole)
        both = list(zip(cuts, states, strict=True))
        squares = sum(rule.begin(parts[cut], gradient[cut], state) for cut, state in both)
        for cut, state in both:
            rule.finish(parts[cut], gradient[cut], state, squares)
    # They may differ by a rounding: vector code may fuse a multiplication and an addition.
    np.testing.assert_allclose(parts, w, rtol=1e-5 if dtype == "float32" else 1e-13, atol=1e-7)


@every_rule
def test_saved_and_restored(rule, tmp_path):
    w, gradients = problem(20)
    expected = ours(rule, w, gradients)
    state = rule.init(N, np.float64, SEGMENTS)
    for gradient in gradients[:9]:
        rule.update(w, gradient, state)
    np.savez(tmp_path / "state.npz", step=state.step, slots=state.slots, w=w)
    saved = np.load(tmp_path / "state.npz")
    again = rule.init(N, np.float64, SEGMENTS)
    again.step, again.slots[:] = int(saved["step"]), saved["slots"]
    w = saved["w"]
    for gradient in gradients[9:]:
        rule.update(w, gradient, again)
    rule.show(w, again, True)
    assert (w == expected).all()


@pytest.mark.parametrize("name", [name for name, (rule, _) in RULES.items() if not rule.shows])
def test_an_average_leaves_its_rule_alone(name):
    """Beside any rule, also where the rate changes, it is what a loop by hand finds."""
    rule, _ = RULES[name]
    w, gradients = problem(9)
    alone, both, mean = w.copy(), w.copy(), w
    average = Averaged(rule, 0.75)
    states = [one.init(N, np.float64, SEGMENTS) for one in (rule, average)]
    for step, gradient in enumerate(gradients):
        if step == 4:
            rule, average = (
                one.at_rate(rule.learning_rate / 2, state)
                for one, state in zip((rule, average), states, strict=True)
            )
        rule.update(alone, gradient.copy(), states[0])
        average.update(both, gradient.copy(), states[1])
        keep = 0.75 if step else 0.0
        mean = keep * mean + (1 - keep) * alone
        assert (both == alone).all()
        np.testing.assert_allclose(states[1].slots[-1], mean, rtol=1e-13, atol=1e-15)


def test_adafactor_where_no_gradient_comes():
    """As of a pixel that is always 0, to a unit that is: V of the two is 1e-56, 0 in float32."""
    gradient = np.full((3, 4), 0.01, np.float32)
    gradient[0], gradient[:, 0] = 0, 0
    w, rule = np.ones(12, np.float32), Adafactor(0.1)
    rule.update(w, gradient.ravel(), rule.init(12, segments=[Array("a", 0, (3, 4))]))
    # By hand: V = (3/4 g^2)(2/3 g^2) / (1/2 g^2) = g^2, so U is 1; and rho max(e2, rms) is 0.1
    expected = np.where(gradient, 0.9, 1.0).ravel()
    np.testing.assert_allclose(w, expected, rtol=1e-6)


@every_rule
def test_zero_gradient_leaves_padding_alone(rule):
    w = np.zeros(8, np.float32)
    state = rule.init(8, segments=[0])
    for _ in range(3):
        rule.update(w, np.zeros(8, np.float32), state)
    assert not w.any()


@every_rule
def test_nan_passes_through(rule):
    # NaN reaches its own weight, or its layer for rules that take norms, and nothing else. (Rules
    # of the model's sums reach all; LAPACK refuses to decompose it.)
    if isinstance(rule, SOAP):
        return
    w = np.ones(N, np.float32)
    gradient = np.ones(N, np.float32)
    gradient[60] = np.nan
    rule.update(w, gradient, rule.init(N, segments=SEGMENTS))
    reached = np.arange(N) == 60
    if rule.of_model:
        reached = np.ones(N, bool)
    elif rule.layered or (rule.whole and "c" not in (getattr(rule, "adam", ()) or ())):
        reached = (np.arange(N) >= OFFSETS[2]) & (np.arange(N) < OFFSETS[3])
    assert (np.isnan(w) == reached).all()


# Denormal numbers


def fading(rule, n=4096):
    """A denormal state, with gradients that are zero, denormal, or have a denormal square."""
    w, g = np.ones(n, np.float32), np.zeros(n, np.float32)
    g[1::3], g[2::3] = 1e-39, 1e-22
    state = rule.init(n, segments=[0])
    rule.update(w, g, state)
    state.slots[:] = 1e-39
    return w, g, state


def test_the_control_word_is_put_back():
    fading_word = denormals.flush_denormals()
    within = denormals.flush_denormals()
    denormals.restore(fading_word)
    if denormals.X86:
        assert within & denormals.FLUSH == denormals.FLUSH
        assert fading_word & denormals.FLUSH == 0
    tiny = np.full(4, 1e-39, np.float32)
    for rule, _ in RULES.values():
        rule.update(*fading(rule, 8))
        assert (tiny * np.float32(0.5) > 0).all()
        clip_by_norm(tiny.copy(), 1.0)
        assert (tiny * np.float32(0.5) > 0).all()


# What is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(-1.0), "learning_rate must satisfy 0 <= learning_rate .*, got -1.0"),
        (lambda: SGD(float("nan")), "learning_rate must .*, got nan"),
        (lambda: SGD(momentum=1.0), "momentum must .*, got 1.0"),
        (lambda: SGD(nesterov=True), "nesterov=True needs momentum > 0, got 0"),
        (lambda: Adam(beta_2=1.5), "beta_2 must .*, got 1.5"),
        (lambda: Adam(epsilon=0.0), "epsilon must .*, got 0.0"),
        (lambda: AdamW(weight_decay=-1.0), "weight_decay must .*, got -1.0"),
        (lambda: LAMB(beta_1=-0.5), "beta_1 must .*, got -0.5"),
        (lambda: LARS(trust_coefficient=0.0), "trust_coefficient must .*, got 0.0"),
        (lambda: Lion(weight_decay=-1.0), "weight_decay must .*, got -1.0"),
        (lambda: RMSprop(rho=1.0), "rho must .*, got 1.0"),
        (lambda: Adagrad(initial_accumulator_value=-1.0), "initial_acc.* must .*, got -1.0"),
        (lambda: Muon(rms_rate=0.0), "rms_rate must .*, got 0.0"),
        (lambda: SOAP(every=0), "every must be at least 1 update, got 0"),
        (lambda: Adafactor(beta_2_decay=0.5), "beta_2_decay must .*, got 0.5"),
        (lambda: ScheduleFreeSGD(beta_1=0.0), "beta_1 must satisfy 0 < beta_1 < 1, got 0.0"),
        (lambda: Averaged(SGD(), keep=1.0), "keep must .*, got 1.0"),
        (lambda: Averaged(ScheduleFreeSGD()), "schedule_free_sgd keeps an average itself"),
        (lambda: optimizers.get("adams"), "unknown optimizer 'adams'; choose one of sgd, momentum"),
        (lambda: clip_by_norm(np.ones(2), 0.0), "clip_norm must .*, got 0.0"),
    ],
)
def test_bad_hyper_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@layered_rule
def test_layers_are_asked_for(rule):
    with pytest.raises(ValueError, match=rf"{type(rule).__name__} scales each layer's step"):
        rule.init(10)
    for offsets in ([], [1, 2], [0, 5, 3]):
        with pytest.raises(ValueError, match="offsets of layers must ascend from 0"):
            rule.init(10, segments=offsets)
    state = rule.init(10, segments=[0, 5])
    with pytest.raises(ValueError, match=r"squares must have shape \(2, 2\), got \(1, 2\)"):
        rule.finish(np.zeros(10, "f4"), np.zeros(10, "f4"), state, np.zeros((1, 2)))


def test_vectors_that_do_not_fit():
    rule = Adam()
    state = rule.init(3)
    with pytest.raises(ValueError, match="shapes differ"):
        rule.update(np.zeros(3, "f4"), np.zeros(4, "f4"), state)
    with pytest.raises(TypeError, match="dtypes differ"):
        rule.update(np.zeros(3, "f4"), np.zeros(3, "f8"), state)
    assert state.step == 0


# Clipping, layers, names


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_clip_by_norm(dtype):
    g = np.random.default_rng(3).normal(size=5000).astype(dtype)
    norm = np.linalg.norm(g.astype("f8"))
    short = g.copy()
    assert clip_by_norm(short, 2 * norm) == pytest.approx(norm, rel=1e-12)
    assert (short == g).all()
    assert clip_by_norm(short, 0.5) == pytest.approx(norm, rel=1e-12)
    np.testing.assert_allclose(short, g * (0.5 / norm), rtol=1e-6)
    huge = np.full(4, 1e30, dtype)  # its square overflows in float32
    assert clip_by_norm(huge, 2.0) == pytest.approx(2e30)
    np.testing.assert_allclose(huge, 1.0, rtol=1e-6)
    for bad in (np.nan, np.inf):
        g[7] = bad
        clip_by_norm(g, 1.0)
        assert np.isnan(g).all()  # it stays visible


def test_cut():
    from numba_kernels.optimizers.base import cut

    assert cut([0, 10, 12], 4, 20).tolist() == [[0, 6, 0], [6, 8, 1], [8, 16, 2]]
    assert cut([0, 10, 12], 11, 12).tolist() == [[0, 1, 1]]
    assert cut([0, 10, 10, 12], 3, 11).tolist() == [[0, 7, 0], [7, 8, 2]]
    assert cut([0, 10], 5, 5).tolist() == []


def test_segments_of_a_replica_will_do():
    from tutorial_dl.replica.base import lay_out, length

    segments = lay_out([("a", (3, 4)), ("b", (5,))], align=16)
    state = LARS().init(length(segments), segments=segments)
    assert state.pieces.tolist() == [[0, 16, 0], [16, 21, 1]] and state.layers == 2


def test_names():
    assert optimizers.get("adam") == Adam(0.001)
    assert optimizers.get("sgd", 0.5) == SGD(0.5)
    assert optimizers.get("nesterov", 0.5) == SGD(0.5, 0.9, True)
    rule = LARS(0.25)
    assert optimizers.get(rule) is rule
    for name in optimizers.NAMES:
        assert optimizers.get(name, 0.125).learning_rate == 0.125


def test_names_cost_nothing():
    words = "import sys; from numba_kernels.optimizers import NAMES; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_command_line_knows_all_names():
    from tutorial_dl.config import OPTIONS

    assert tuple(OPTIONS["optimizer"].choices) == optimizers.NAMES

"""What every optimizer does with slices, checkpoints, padding and NaN; clipping; names; errors."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from rules import (
    OFFSETS,
    RULES,
    SEGMENTS,
    Array,
    N,
    edges_of,
    matrices,
    ours,
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
    RMSprop,
    ScheduleFreeSGD,
    clip_by_norm,
)

every_rule = pytest.mark.parametrize("rule", [rule for rule, _ in RULES.values()], ids=RULES)
layered_rule = pytest.mark.parametrize("rule", [LARS(), LAMB()], ids=["lars", "lamb"])


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

"""Rules in one process: golden values, stability bounds, and comparisons with plain numpy.

f(x) = x^2/2 unless said otherwise, so the gradient is x; float64.
"""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numba_kernels.optimizers import SGD
from tutorial_dl import optimizers, strategies
from tutorial_dl.config import check_strategy
from tutorial_dl.layout import Layout
from tutorial_dl.strategies import (
    DilocoAsync,
    Downpour,
    ElasticAveraging,
    GradientEnergyMatching,
    Rule,
    Scripted,
)
from tutorial_dl.strategies.base import OneModel


def on_parabola(rule, workers, x0=1.0, rate=0.1, **options):
    return Scripted(rule, lambda x: x, x0, workers, SGD(rate, **options))


def in_turn(workers, updates):
    return [step % workers for step in range(updates)]


def path_of(rule, workers, updates, **options):
    return on_parabola(rule, workers, **options).turns(in_turn(workers, updates))[:, 0]


# Golden values


def test_downpour_with_a_fixed_delay():
    for workers, expected in (
        (2, [0.9, 0.8, 0.71, 0.63, 0.559, 0.496]),
        (4, [0.9, 0.8, 0.7, 0.6, 0.51, 0.43]),
    ):
        run = on_parabola(Downpour(), workers)
        path = run.turns(in_turn(workers, 6))[:, 0]
        np.testing.assert_allclose(path[1:], expected, rtol=0, atol=1e-6)
        assert run.staleness == [*range(workers - 1), *[workers - 1] * (7 - workers)]


@pytest.mark.parametrize(("synchronous", "expected"), [
    (True, [0.45, 0.9, 1.35]), (False, [0.45, 1.1025, 1.1475]),
])  # fmt: skip
def test_elastic_averaging(synchronous, expected):
    """From x = (1, 2) and c = 0; with 2 workers, alpha = .45 is a moving rate of .9."""
    run = on_parabola(ElasticAveraging(moving_rate=0.9, synchronous=synchronous), 2)
    run.center[:], run.worker(0)[:], run.worker(1)[:] = 0, 1, 2
    if synchronous:
        run.round()
    else:
        run.turns([0, 1])
    found = [*run.worker(0), *run.worker(1), *run.center]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("synchronous", [True, False])
def test_elastic_averaging_rests_where_all_agree(synchronous, momentum):
    rule = ElasticAveraging(momentum=momentum, synchronous=synchronous)
    run = Scripted(rule, lambda x: 0 * x, [3.0, -2.0], 3, SGD(0.1))
    for _ in range(4):
        run.round() if synchronous else run.turns([0, 1, 2])
    for x in (run.center, *map(run.worker, range(3))):
        np.testing.assert_array_equal(x, [3, -2])


@pytest.mark.parametrize(
    ("kappa", "workers", "expected"),
    [
        (1, 1, [0.9, 0.82, 0.656, 0.5348, 0.34584]),
        (2, 1, [0.8, 0.66, 0.362, 0.1934, 0.0967]),
        (1, 2, [0.9, 0.9, 0.82, 0.72, 0.656, 0.586]),
    ],
)
def test_gradient_energy_matching(kappa, workers, expected):
    path = path_of(GradientEnergyMatching(kappa, momentum=0.9), workers, len(expected))
    np.testing.assert_allclose(path[1:], expected, rtol=0, atol=1e-6)


# The papers' equations, in numpy


def gradient(worker):
    """The gradient of a quadratic in 5 weights, which differs between workers."""
    random = np.random.default_rng(worker)
    half = random.normal(size=(5, 5)) / 3
    matrix, target = half @ half.T + np.eye(5) / 4, random.normal(size=5)
    return lambda x: matrix @ (x - target)


def order_of(workers, steps):
    return np.random.default_rng(9).integers(0, workers, steps).tolist()


X0 = np.linspace(-1, 2, 5)


def scripted(rule, workers=3, optimizer=None):
    return Scripted(rule, [gradient(w) for w in range(workers)], X0, workers, optimizer)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("delta", [0.0, 0.8])
def test_algorithms_1_and_2_of_elastic_averaging(every, delta):
    """arXiv 1412.6651; with delta = 0 algorithm 2 (EAMSGD) is algorithm 1."""
    eta, beta, workers = 0.05, 0.7, 3
    alpha, center = beta / workers, X0.copy()
    own, v, clock = [X0.copy() for _ in range(3)], [np.zeros(5) for _ in range(3)], [0] * 3
    rule = ElasticAveraging(beta, delta, every)
    run = scripted(rule, workers, SGD(eta))
    for i in order_of(workers, 60):
        x = own[i].copy()
        clock[i] += 1
        if clock[i] % every == 0:
            own[i] = own[i] - alpha * (x - center)
            center = center + alpha * (x - center)
        v[i] = delta * v[i] - eta * gradient(i)(x + delta * v[i])
        own[i] = own[i] + v[i]
        run.turn(i)
        np.testing.assert_allclose(run.center, center, atol=1e-12)
        np.testing.assert_allclose(run.worker(i), own[i], atol=1e-12)


def test_equations_2_and_3_of_elastic_averaging():
    """Synchronous form, with an exchange every second step."""
    eta, alpha = 0.05, 0.9 / 3
    center, own = X0.copy(), [X0.copy() for _ in range(3)]
    run = scripted(ElasticAveraging(every=2, synchronous=True), 3, SGD(eta))
    for step in range(20):
        pulled = [alpha * (x - center) if step % 2 else 0 * x for x in own]
        own = [x - eta * gradient(i)(x) - pulled[i] for i, x in enumerate(own)]
        center = center + sum(pulled)
        run.round()
        np.testing.assert_allclose(run.center, center, atol=1e-12)
    np.testing.assert_allclose([run.worker(i) for i in range(3)], own, atol=1e-12)


def test_section_3_of_gradient_energy_matching():
    """arXiv 1805.08469, with clipping: pi is 0 for some weights, 5 for some, or in between."""
    eta, mu, kappa, seen = 0.1, 0.7, 1.3, []
    theta = X0.copy()
    m, s, x = ([value.copy() for _ in range(3)] for value in (0 * X0, X0, X0))
    run = scripted(GradientEnergyMatching(kappa, mu), 3, SGD(eta))
    for i in order_of(3, 90):
        d = -eta * gradient(i)(x[i])
        m[i] = mu * m[i] + d
        pi = np.clip((kappa * abs(m[i]) - abs(theta - s[i])) / (abs(d) + 1e-12), 0, 5)
        s[i], x[i] = theta.copy(), theta + pi * d
        theta = theta + pi * d
        seen += pi.tolist()
        run.turn(i)
        np.testing.assert_allclose(run.center, theta, atol=1e-12)
    assert min(seen) == 0 and max(seen) == 5 and any(0 < pi < 5 for pi in seen)


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("synchronous", [False, True])
def test_downpour_every_few_steps(every, synchronous):
    """A worker takes its own steps by plain descent, and sends the sum of its gradients."""
    eta, workers = 0.05, 3
    center, own = X0.copy(), [X0.copy() for _ in range(workers)]
    total, clock = [np.zeros(5) for _ in range(workers)], [0] * workers
    run = scripted(Downpour(every, synchronous), workers, SGD(eta))
    for step in range(24):
        for i in range(workers) if synchronous else order_of(workers, 24)[step : step + 1]:
            g = gradient(i)(own[i])
            total[i], own[i], clock[i] = total[i] + g, own[i] - eta * g, clock[i] + 1
            if clock[i] % every == 0 and not synchronous:
                center = center - eta * total[i]
                own[i], total[i] = center.copy(), np.zeros(5)
            if not synchronous:
                run.turn(i)
        if synchronous:
            if (step + 1) % every == 0:
                center = center - eta * sum(total) / workers
                own, total = [center.copy() for _ in own], [np.zeros(5) for _ in own]
            run.round()
        np.testing.assert_allclose(run.center, center, atol=1e-12)


def test_synchronous_downpour_is_one_process():
    """With any optimizer, each update uses the mean of all workers' gradients."""
    for name in sorted(optimizers.NAMES):
        optimizer, x = optimizers.get(name), X0.copy()
        if optimizer.shows:
            with pytest.raises(ValueError, match="since it validates the weights that it trains"):
                scripted(Downpour(synchronous=True), 4, optimizer)
            continue
        state = optimizer.init(5, np.float64, [0])
        run = scripted(Downpour(synchronous=True), 4, optimizer)
        for _ in range(10):
            optimizer.update(x, np.mean([gradient(i)(x) for i in range(4)], axis=0), state)
            run.round()
        assert np.all(x != X0)
        np.testing.assert_allclose(run.center, x, rtol=0, atol=1e-12)
        for worker in range(4):
            np.testing.assert_array_equal(run.worker(worker), run.center)


def test_asynchronous_downpour_with_an_optimizer_of_the_master():
    """The master has one state: its velocity v contains the gradients of all workers."""
    x, v, own = X0.copy(), np.zeros(5), [X0.copy() for _ in range(3)]
    run = scripted(Downpour(), 3, SGD(0.05, momentum=0.6))
    for i in order_of(3, 30):
        v = 0.6 * v - 0.05 * gradient(i)(own[i])
        x = x + v
        own[i] = x.copy()
        run.turn(i)
    np.testing.assert_allclose(run.center, x, atol=1e-12)


def test_ringmaster():
    """arXiv 2501.16168: a gradient of delay R or more is ignored, and is no update.

    Its worker goes on from the present weights. Worker 0 is slow, so its gradients are old.
    """
    eta, order = 0.3, [1, 2, 1, 0, 2, 1, 2, 1, 2, 1, 0, 1, 0, 0, 2]
    for bound in (1, 2, 3, 100):
        x, k, points, ages = X0.copy(), 0, [(X0.copy(), 0)] * 3, []
        run = scripted(Downpour(discard=bound), 3, SGD(eta))
        for i in order:
            own, began = points[i]
            ages.append(k - began)
            if ages[-1] < bound:
                x, k = x - eta * gradient(i)(own), k + 1
            points[i] = x.copy(), k
            run.turn(i)
            np.testing.assert_allclose(run.center, x, atol=1e-12)
            np.testing.assert_allclose(run.worker(i), x, atol=1e-12)
        assert run.staleness == ages and run.master.version == k
        assert (k < len(order)) == (bound < 100)


def test_delay_compensation():
    """Algorithm 2 of arXiv 1609.08326, DC-ASGD-c: w <- w - eta (g + lambda g g (w - w_bak))."""
    eta, factor = 0.05, 0.6
    w, backup = X0.copy(), [X0.copy()] * 3
    run = scripted(Downpour(delay_compensation=factor), 3, SGD(eta))
    for i in order_of(3, 60):
        g = gradient(i)(backup[i])
        w = w - eta * (g + factor * g * g * (w - backup[i]))
        backup[i] = w.copy()
        run.turn(i)
        np.testing.assert_allclose(run.center, w, atol=1e-12)
    # On x^4/4, whose gradient is x^3, the gradient at 2 is made one at 1.9, to first order.
    run = Scripted(Downpour(delay_compensation=0.1875), lambda x: x**3, [2.0], 2, SGD(0.0125))
    run.turns([0, 1])  # 2 -> 1.9; then with 8 - .1875 64 .1 = 6.8, which is 8 - 3 x^2 .1
    assert run.center[0] == pytest.approx(1.9 - 0.0125 * 6.8, abs=1e-12)


def test_delayed_nesterov():
    """The pseudo-code of arXiv 2401.09135 with c = 0: momentum at each N-th update only."""
    steps, eta, epsilon, beta, n = 3, 0.05, 0.7, 0.9, 3
    theta, m, delta, t = X0.copy(), np.zeros(5), np.zeros(5), 0
    pulled, own, clock = [X0.copy()] * n, [X0.copy()] * n, [0] * n
    run = scripted(DilocoAsync(steps, epsilon, beta), n, SGD(eta))
    for i in order_of(n, 120):
        own[i], clock[i] = own[i] - eta * gradient(i)(own[i]), clock[i] + 1
        if clock[i] % steps == 0:
            g = pulled[i] - own[i]
            delta = delta + g
            if (t + 1) % n == 0:
                m = beta * m + delta / n
                theta, delta = theta - epsilon * (beta * m + g / n), np.zeros(5)
            else:
                theta = theta - epsilon * g / n
            t += 1
            pulled[i] = own[i] = theta
        run.turn(i)
        np.testing.assert_allclose(run.center, theta, atol=1e-12)
        np.testing.assert_allclose(run.worker(i), own[i], atol=1e-12)
    assert t > 30


def test_a_round_of_a_quorum():
    """Algorithm 1 of arXiv 2311.08105, each difference with its share of the samples."""
    rule, center, b = DilocoAsync(1, 0.7, 0.9, quorum=1), X0.copy(), np.zeros(5)
    expected = X0.copy()
    rule.begin_master(center)
    generator = np.random.default_rng(2)
    for weights in ([0.5, 0.25, 0.25], [1.0], [0.9, 0.1], [0.0, 1.0]):
        sent = list(generator.normal(size=(len(weights), 5)))
        answers = [np.empty(5) for _ in sent]
        d = sum(weight * one for weight, one in zip(weights, sent, strict=True))
        b = 0.9 * b + d
        expected = expected - 0.7 * (d + 0.9 * b)  # torch.optim.SGD(nesterov=True)
        rule.serve_all(center, sent, answers, weights)
        np.testing.assert_allclose([center, *answers], [expected] * (1 + len(sent)), atol=1e-12)


# Stability


def test_bound_of_stability():
    """x[t+1] = x[t] - eta x[t-tau] is stable for eta < 2 sin(pi / (2 (2 tau + 1))) only."""
    for delay in range(5):
        bound = 2 * np.sin(np.pi / (2 * (2 * delay + 1)))
        assert bound == pytest.approx([2, 1, 0.6180, 0.4450, 0.3473][delay], abs=5e-5)
        size = {}
        for factor in (0.97, 1.03):
            path = path_of(Downpour(), delay + 1, 1500, rate=factor * bound)
            size[factor] = np.abs(path[-60:]).max()
        assert size[0.97] < 1e-3 and size[1.03] > 1e3


def test_a_staleness_aware_rate():
    """Updates with a gradient tau updates old: eta / (1 + tau)."""
    order, own, x = order_of(3, 40), np.ones(3), 1.0
    run = on_parabola(Downpour(staleness_aware=True), 3, rate=0.4)
    run.turns(order)
    pulled = [0] * 3
    for update, i in enumerate(order):
        x -= 0.4 / (1 + update - pulled[i]) * own[i]
        own[i], pulled[i] = x, update + 1
    assert max(run.staleness) > 3
    assert run.center[0] == pytest.approx(x, abs=1e-12)
    # With 4 workers it is stable at 3 times the bound, where plain Downpour is not.
    rate = 3 * 0.4450
    aware = path_of(Downpour(staleness_aware=True), 4, 500, rate=rate)
    assert abs(aware[-1]) < 1e-3 < 1e3 < abs(path_of(Downpour(), 4, 500, rate=rate)[-1])


def test_lower_momentum():
    """Momentum is reduced by 1 - 1/workers, and not below 0."""
    for workers, left in ((1, 0.9), (2, 0.4), (4, 0.15), (10, 0.0), (20, 0.0)):
        lower = path_of(Downpour(lower_momentum=True), workers, 30, momentum=0.9)
        np.testing.assert_allclose(
            lower, path_of(Downpour(), workers, 30, momentum=left), atol=1e-12
        )
        if left:
            assert not np.allclose(lower, path_of(Downpour(), workers, 30), atol=1e-3)


# Options


DIFFERENT = [
    (Downpour(), Downpour(every=2)),
    (Downpour(), Downpour(staleness_aware=True)),
    (Downpour(), Downpour(lower_momentum=True)),
    (Downpour(), Downpour(discard=1)),
    (Downpour(), Downpour(delay_compensation=0.5)),
    (DilocoAsync(1), DilocoAsync(2)),
    (DilocoAsync(1), DilocoAsync(1, outer_rate=0.5)),
    (DilocoAsync(1), DilocoAsync(1, outer_momentum=0.9)),
    (ElasticAveraging(), ElasticAveraging(moving_rate=0.5)),
    (ElasticAveraging(), ElasticAveraging(every=2)),
    (ElasticAveraging(), ElasticAveraging(momentum=0.5)),
    (GradientEnergyMatching(), GradientEnergyMatching(kappa=2)),
    (GradientEnergyMatching(), GradientEnergyMatching(momentum=0.8)),
]


def test_every_option_changes_the_result():
    for one, other in DIFFERENT:
        momentum = {"momentum": 0.5} if isinstance(one, Downpour) else {}
        paths = [path_of(rule, 2, 12, **momentum)[-1] for rule in (one, other)]
        assert abs(paths[0] - paths[1]) > 1e-3
        assert str(one) != str(other)  # a checkpoint identifies a run's rule by its str


def test_the_synchronous_form_is_another():
    for rule in (Downpour, ElasticAveraging):
        forms = [on_parabola(rule(synchronous=on), 2) for on in (True, False)]
        for _ in range(6):
            forms[0].round()
            forms[1].turns([0, 1])
        assert abs(forms[0].center[0] - forms[1].center[0]) > 1e-3


IMPOSSIBLE = [
    (lambda: Downpour(every=0), "every must be at least 1, got 0"),
    (lambda: Downpour(synchronous=True, staleness_aware=True), "nothing is stale"),
    (lambda: Downpour(synchronous=True, lower_momentum=True), "nothing is stale"),
    (lambda: Downpour(synchronous=True, discard=2), "discard excludes .* nothing is stale"),
    (lambda: Downpour(synchronous=True, delay_compensation=2), "delay_comp.* nothing is stale"),
    (lambda: Downpour(discard=0), "discard must be at least 1, got 0"),
    (lambda: Downpour(delay_compensation=0), "delay_compensation must be above 0, got 0"),
    (lambda: Downpour(2, delay_compensation=1), "delay_compensation needs every=1, got 2"),
    (lambda: DilocoAsync(0), "inner_steps must be at least 1, got 0"),
    (lambda: DilocoAsync(quorum=0), "quorum must be at least 1, got 0"),
    (lambda: DilocoAsync(grace=-1), "grace must be at least 0, got -1"),
    (lambda: DilocoAsync(outer_momentum=1), "outer_momentum must be at least 0 and below 1"),
    (lambda: DilocoAsync(synchronous=True), "no synchronous form: use strategy 'local_steps'"),
    (lambda: DilocoAsync(quorum=3).check_layout(Layout(workers=2)), "quorum 3 of 2 workers never"),
    (lambda: DilocoAsync(quorum=1).check_layout(Layout(masters=2)), "needs one master, got 2"),
    (lambda: Downpour(upward=0), "upward must be at least 1, or 'auto', got 0"),
    (lambda: Downpour(upward="often"), "upward must be .*, got 'often'"),
    (lambda: ElasticAveraging(moving_rate=0), "moving_rate must be above 0 and below 2, got 0"),
    (lambda: ElasticAveraging(moving_rate=2), "moving_rate must .* got 2"),
    (lambda: ElasticAveraging(moving_rate=float("nan")), "moving_rate must .* got nan"),
    (lambda: ElasticAveraging(momentum=1), "momentum must be at least 0 and below 1, got 1"),
    (lambda: ElasticAveraging(momentum=-0.1), "momentum must .* got -0.1"),
    (lambda: GradientEnergyMatching(kappa=0), "kappa must be above 0, got 0"),
    (lambda: GradientEnergyMatching(kappa=float("nan")), "kappa must .* got nan"),
    (lambda: GradientEnergyMatching(momentum=1), "momentum must be .* got 1"),
    (lambda: GradientEnergyMatching(every=2), "asynchronous and exchanges at every step"),
    (lambda: GradientEnergyMatching(synchronous=True), "asynchronous and exchanges at every step"),
    (lambda: scripted(Downpour(lower_momentum=True), 2, "adam"), "momentum .*, but adam has none"),
    (lambda: scripted(ElasticAveraging(momentum=0.5), 2, "adam"), "needs plain sgd, got adam"),
    (lambda: scripted(ElasticAveraging(momentum=0.5), 2, SGD(0.1, 0.9)), "needs plain sgd"),
    (lambda: scripted(GradientEnergyMatching(), 2, "adam"), "needs plain sgd, got adam"),
    (lambda: scripted(GradientEnergyMatching(), 2, SGD(0.1, 0.9)), "needs plain sgd"),
    (lambda: scripted(Downpour(), 0), "workers must be at least 1, got 0"),
    (lambda: check_strategy("gradient_energy_matching", {"synchronous": True}), "needs strategy"),
    (lambda: check_strategy("hogwild", {"every": 2}), "every needs .*, got 'hogwild'"),
    (lambda: check_strategy("synchronous", {"kappa": 1.0}), "kappa needs .*, got 'synchronous'"),
    (lambda: strategies.get("downhill"), "unknown strategy 'downhill'"),
]


def test_what_can_not_be():
    for make, message in IMPOSSIBLE:
        with pytest.raises(ValueError, match=message) as caught:
            make()
        assert "\n" not in str(caught.value)


def test_what_is_asked_of_a_strategy_is_declared():
    package, asked = Path(strategies.__file__).parents[1], set()
    rooms = package.glob("runtime/**/*.py"), package.glob("checkpoint/*.py")
    for file in [*rooms[0], *rooms[1], package / "cli/train_result.py"]:
        text = file.read_text()
        asked |= {*re.findall(r"(?:strategy|rule)\.(\w+)", text)}
        asked |= {*re.findall(r"getattr\((?:\w+\.)*(?:strategy|rule), \"(\w+)", text)}
    assert {"attach", "begin_master", "team"} < asked
    assert asked - {"strategy"} <= {*dir(OneModel()), *dir(Rule())}  # (that of a RunConfig)


# A rule of one's own


class Average(Rule):
    """The example in rule.py: the master keeps a running mean of its workers' weights."""

    def step(self, x, g, server, due):
        x -= self.rate * g
        if due:
            server.push(x, into=x)

    def serve(self, center, sent, answer):
        center += 0.5 * (sent - center)
        answer[:] = center


def test_a_rule_of_ones_own():
    run = on_parabola(Average(every=2), 2)
    # Worker 0 steps to .9 and sends .81, so c = .905. Worker 1 does the same, so c = .8575.
    np.testing.assert_allclose(run.turns([0, 0, 1, 1])[:, 0], [1, 0.905, 0.8575], atol=1e-12)
    assert run.worker(0)[0] == pytest.approx(0.905)
    with pytest.raises(NotImplementedError):
        Average(synchronous=True).serve_all(None, [], [], [])


ALONE = """
import sys
from tutorial_dl.layout import Layout
from tutorial_dl.strategies import (
    DilocoAsync, Downpour, ElasticAveraging, GradientEnergyMatching, Scripted
)
for rule in (Downpour(), ElasticAveraging(), GradientEnergyMatching(), DilocoAsync()):
    Scripted(rule, lambda x: x, [1.0], 2, "sgd").turns([0, 1])
assert "mpi4py.MPI" not in sys.modules
"""


def test_no_rule_starts_mpi():
    """A notebook's own process must not start MPI, which would leave shared memory behind."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_the_largest_moving_rate_of_synchronous_elastic_averaging(workers):
    """Without gradients, the springs bring weights together below it, and apart above it."""
    bound = 2 * workers / (workers + 1)
    for rate, stable in ((0.98 * bound, True), (1.02 * bound, False)):
        rule = ElasticAveraging(moving_rate=rate, synchronous=True)
        rule.workers = workers
        center, x = np.zeros(1), [np.ones(1) for _ in range(workers)]
        for _ in range(100):
            answers = [np.empty(1) for _ in x]
            rule.serve_all(center, [one.copy() for one in x], answers, None)
            x = answers
        assert (abs(x[0] - center) < 1)[0] == stable
        layout = Layout(masters=1, workers=workers)
        if stable:
            rule.check_layout(layout)
            continue
        with pytest.raises(ValueError, match=f"{workers} workers under a master needs less than"):
            rule.check_layout(layout)

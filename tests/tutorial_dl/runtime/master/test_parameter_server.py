"""Runs with masters on real ranks learn; synchronous ones are exact; samples are counted."""

from unittest import mock

import numpy as np
import pytest
from faults import Around
from rank_tests import with_ranks

from numba_kernels import Team, optimizers
from numba_kernels.optimizers import SGD, Adam
from numba_kernels.star import Star
from tutorial_dl import Trainer, data, replica, strategies
from tutorial_dl.layout import Layout
from tutorial_dl.replica import DenseReplica, SoftmaxReplica
from tutorial_dl.runtime.master import master
from tutorial_dl.strategies import Downpour, ElasticAveraging, GradientEnergyMatching

FORMS = (
    "downpour", "downpour synchronous", "elastic", "elastic synchronous", "energy", "hogwild",
)  # fmt: skip
WITH_MASTER = FORMS[:-1]


def strategy_of(form, team, layout=None, **options):
    where = {"team": team, "layout": layout} | options
    if form == "hogwild":
        return strategies.Hogwild(team)
    if form == "energy":
        return strategies.GradientEnergyMatching(**where)
    if form.startswith("elastic"):
        where = {"momentum": 0.5} | where
        return strategies.ElasticAveraging(synchronous="synch" in form, **where)
    return strategies.Downpour(synchronous="synch" in form, **where)


def part_of(team, ranks):
    """A team of the first `ranks` ranks; None on the others. Collective."""
    mine = team.rank < ranks
    part = team.split(mine) if ranks < team.size else team
    return part if mine else None


def fit(model, data, strategy, optimizer, epochs, batch_size=32, seed=0, **options):
    trainer = Trainer(
        model, data, strategy, optimizer, batch_size, seed=seed, progress=False, **options
    )
    trainer.fit(epochs)
    return trainer


# Learning


LATE = slice(5, 10)  # epochs


def learn(kinds):
    """Every strategy learns as fast as plain descent at equal samples.

    An epoch's loss in one run is off by 10%, sometimes by 50%, in either direction. So the test
    takes the median over the late epochs of five runs.

    Strategies with shorter steps get a larger learning rate. In elastic averaging, W gradients move
    W + 1 vectors (workers and center) once, while one process makes W steps; so it gets W + 1 times
    the rate. Gradient energy matching subtracts the steps of all W workers from that of momentum,
    which leaves 1 / (W + 1) of it. Momentum .5 is worth a factor 2, and .9 one of 7 to 10.
    """
    team, digits = Team(), data.load("digits")
    workers = max(1, team.size - 1)
    for kind in kinds:
        soft, rate = kind == "softmax", 0.5 if kind == "softmax" else 0.15
        make = SoftmaxReplica if soft else lambda **seed: DenseReplica((64, 32, 10), **seed)
        size = (64, 10) if soft else ()
        ratios = {form: [] for form in FORMS}
        for seed in range(5):
            serial = fit(
                make(*size, seed=seed), digits, strategies.Serial(), SGD(rate), 10, seed=seed
            )
            alone = serial.history.last
            assert alone["val_accuracy"] > 0.94
            for form in FORMS:
                factor = {"elastic": (workers + 1) / 2, "energy": (workers + 1) / 7}
                own = SGD(rate * factor.get(form.split()[0], 1))
                # In synchronous elastic averaging, a batch is that of all workers together.
                size_of = 32 * (workers if form == "elastic synchronous" else 1)
                model = make(*size, seed=seed)
                trainer = fit(model, digits, strategy_of(form, team), own, 10, size_of, seed=seed)
                what, history = f"{kind}, {form}, {team.size} ranks", trainer.history
                assert max(history.column("val_accuracy")) >= 0.93, what
                ratio = np.divide(history.column("val_loss"), serial.history.column("val_loss"))
                ratios[form] += list(ratio[LATE])
                if form == "downpour synchronous":
                    np.testing.assert_allclose(ratio, 1, rtol=1e-3, err_msg=what)
                assert len(history.epochs) == 10
                assert trainer.steps == 10 * trainer.steps_per_epoch, what
                weights = team.broadcast(trainer.replica.parameters.copy())
                np.testing.assert_array_equal(trainer.replica.parameters, weights, err_msg=what)
        for form, found in ratios.items():
            assert np.median(found) < 1.15, (kind, form, team.size, found)


@pytest.mark.thorough(but="3-dense")
@pytest.mark.parametrize(("ranks", "kind"), [(3, "dense"), (4, "softmax")])
def test_all_strategies_learn(on_ranks, ranks, kind):
    """`make soak` runs both kinds of models on each number of ranks."""
    on_ranks(ranks, learn, [kind])


# Synchronous forms

SAMPLES = 197  # 20 batches of 10, the last one of 7


def random_data(samples=SAMPLES, dtype="float64"):
    """Random data; a sample's first value is its number / samples."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(samples, 7)).astype(dtype)
    x[:, 0] = np.arange(samples) / samples
    part = data.Data.of(x, generator.integers(0, 5, samples))
    return data.Dataset("random", part, part, 5)


def synchronous_is_exact(places):
    """Two runs have the same bits; Downpour has the weights of one process."""
    everybody = Team()
    for numbers in places:
        layout = Layout(**numbers)
        team = part_of(everybody, layout.ranks)
        rules = [SGD(0.1)]  # sub-masters have states of their own; this rule has none
        if layout.masters == 1:
            rules = [SGD(0.1, 0.5), optimizers.get("adam")]
        for dtype in ("float32", "float64") if team else ():
            data = random_data(dtype=dtype)
            for rule in rules:
                alone = DenseReplica((7, 11, 5), "tanh", seed=1, dtype=dtype)
                serial = fit(alone, data, strategies.Serial(), rule, 3, 10)
                for form in ("downpour synchronous", "elastic synchronous"):
                    if form.startswith("elastic") and rule.__class__ is SGD:
                        rule = SGD(0.1)
                    weights, losses = [], []
                    for _ in range(2 if dtype == "float32" else 1):
                        model = DenseReplica((7, 11, 5), "tanh", seed=1, dtype=dtype)
                        model.parameters[:] += team.rank  # the first rank's weights are used
                        no_momentum = {"momentum": 0.0} if form.startswith("elastic") else {}
                        of_it = strategy_of(form, team, layout, **no_momentum)
                        run = fit(model, data, of_it, rule, 3, 10)
                        weights.append(run.replica.parameters.copy())
                        losses.append(run.history.column("val_loss"))
                    np.testing.assert_array_equal(weights[0], weights[-1], f"{form} {layout}")
                    assert losses[0] == losses[-1]
                    assert run.steps == serial.steps == 60
                    if form.startswith("downpour"):
                        error = np.abs(weights[0] - serial.replica.parameters).max()
                        limit = 1e-5 if dtype == "float32" else 1e-12
                        assert error <= limit, f"{form} {rule} {dtype} {layout}: {error}"
                        expected = serial.history.column("val_loss")
                        np.testing.assert_allclose(losses[0], expected, rtol=1e-4)
        everybody.barrier()


FLAT = [{"workers": workers} for workers in (1, 2, 3)]
DEEP = [{"masters": 2, "workers": 2}, {"workers": 2, "devices": 2}]
LEAN = [FLAT[-1], {"masters": 2, "workers": 1}]


@pytest.mark.thorough
@pytest.mark.parametrize("env", [{}, {"NUMBA_KERNELS_WINDOW": "0"}, {"NUMBA_KERNELS_NODE": "2"}])
def test_synchronous_forms_are_exact(on_ranks, env):
    on_ranks(4, synchronous_is_exact, FLAT if not env else FLAT[-1:], env=env)


@pytest.mark.thorough
def test_synchronous_forms_are_exact_in_layouts(on_ranks):
    on_ranks(7, synchronous_is_exact, DEEP)


# Every sample


def recording(model, samples):
    """Let the model count how often it sees each sample of `random_data`."""
    model.counts, compute = np.zeros(samples), model.compute_gradient

    def counting(batch, *rest, **options):
        found = np.rint(np.asarray(batch[0])[:, 0] * samples).astype(int)
        np.add.at(model.counts, found, 1)
        return compute(batch, *rest, **options)

    model.compute_gradient = counting
    return model


def every_sample(places, sizes, forms):
    """Each sample is used once per epoch; all ranks end with equal weights, which have changed."""
    everybody = Team()
    for numbers in places:
        layout = Layout(**numbers)
        team = part_of(everybody, layout.ranks)
        for samples, batch_size in sizes if team else ():
            for form in forms:
                what = f"{form}, {samples} in batches of {batch_size}, {layout}"
                model = recording(SoftmaxReplica(7, 5, seed=2), samples)
                before = model.parameters.copy()
                upward = {"upward": 3} if layout.masters > 1 and "synch" not in form else {}
                rule = strategy_of(form, team, layout, **upward)
                run = fit(model, random_data(samples), rule, SGD(0.05), 1, batch_size)
                assert (team.allreduce(model.counts.copy()) == 1).all(), what
                run.fit(2)
                counts = team.allreduce(model.counts.copy())
                assert (counts == 3).all(), f"{what}: {counts.min()} to {counts.max()}"
                assert [row["epoch"] for row in run.history.epochs] == [1, 2, 3]
                weights = run.replica.parameters
                assert np.isfinite(weights).all() and np.abs(weights - before).max() > 1e-4, what
                np.testing.assert_array_equal(team.broadcast(weights.copy()), weights, what)
                counted(run.history, run, form, layout, samples, batch_size, what)
        everybody.barrier()


def counted(history, run, form, layout, samples, batch_size, what):
    """Check how the history counts updates by staleness and batches by workers."""
    workers = layout.workers_each
    if "synchronous" in form:
        assert not history.staleness, what
        assert run.steps == 3 * -(-samples // batch_size), what
    else:
        full = 3 * -(-samples // batch_size)
        assert sum(history.workers.values()) == full == run.steps, what
        updates = sum(history.staleness.values())
        if layout.masters < 2:
            assert updates == full, what
            mean = sum(tau * n for tau, n in history.staleness.items()) / updates
            rows = np.average(history.column("staleness"))
            assert rows == pytest.approx(mean, abs=0.3), what
        else:  # sub-masters relay every third update, and at the end of epochs
            assert full / 3 <= updates <= full, what
    if workers == 1:
        assert set(history.staleness) <= {0}, what
    assert history.lost == []


SIZES = [(200, 10), (190, 10), (2, 1)]  # 20 batches; 19; fewer samples than workers


def test_every_sample_once_an_epoch(on_ranks):
    on_ranks(4, every_sample, FLAT[::2], SIZES, WITH_MASTER)


@pytest.mark.thorough
def test_every_sample_once_in_layouts(on_ranks):
    on_ranks(7, every_sample, DEEP, SIZES[1:], WITH_MASTER)


@pytest.mark.thorough
@pytest.mark.parametrize("env", [{"NUMBA_KERNELS_WINDOW": "0"}, {"NUMBA_KERNELS_NODE": "2"}])
def test_every_sample_once_over_messages(on_ranks, env):
    """`make soak` has sub-masters with two workers."""
    on_ranks(5, every_sample, LEAN, SIZES[1:2], WITH_MASTER, env=env)


@with_ranks(7)
def test_a_master_serves_at_once():
    """A master that has something to say does not first wait for a further request."""
    next_leaf = Star.next

    def asked(star, seconds):
        leaf = next_leaf(star, seconds)
        assert leaf is not None or not seconds, "all leaves wait for this master"
        return leaf

    everybody = Team()
    with mock.patch.object(master, "LOOK", 60.0), mock.patch.object(Star, "next", asked):
        for numbers in ({"workers": 3}, {"masters": 2, "workers": 2}):
            team = part_of(everybody, Layout(**numbers).ranks)
            for form in WITH_MASTER if team else ():
                rule = strategy_of(form, team, Layout(**numbers))
                run = fit(SoftmaxReplica(7, 5, seed=2), random_data(190), rule, SGD(0.05), 2, 10)
                run.fit(1)
            everybody.barrier()


# Options


@pytest.mark.thorough
@with_ranks(5)
def test_options_change_the_result():
    """With one worker the order of events is fixed, so runs differ by their options only."""
    everybody, data = Team(), random_data()
    team = part_of(everybody, 2)

    def weights(rule, **options):
        options = {"optimizer": SGD(0.1), "epochs": 2, "batch_size": 10} | options
        run = fit(SoftmaxReplica(7, 5, seed=2), data, rule, **options)
        return run.replica.parameters.copy()

    class Old(Downpour):
        """Pretend that every gradient is two updates old."""

        def serve(self, center, sent, answer):
            self.staleness = 2
            super().serve(center, sent, answer)

    if team:
        down = weights(Downpour(team=team))
        assert (weights(Downpour(team=team)) == down).all()  # the order is fixed
        often, seldom = (weights(Downpour(e, team=team), optimizer="adam") for e in (1, 3))
        assert np.abs(often - seldom).max() > 1e-4
        for kind, one, other in (
            (Old, {}, {"staleness_aware": True}),
            (ElasticAveraging, {}, {"every": 3}),
            (ElasticAveraging, {}, {"moving_rate": 0.4}),
            (ElasticAveraging, {}, {"momentum": 0.4}),
            (GradientEnergyMatching, {}, {"kappa": 2.0}),
            (GradientEnergyMatching, {}, {"momentum": 0.5}),
        ):
            found = [weights(kind(team=team, **options)) for options in (one, other)]
            assert np.abs(found[0] - found[1]).max() > 1e-4, f"{kind.__name__} {other}"
        for name, value in (("batch_size", 7), ("seed", 3), ("clip_norm", 0.1), ("epochs", 3)):
            assert np.abs(weights(Downpour(team=team), **{name: value}) - down).max() > 1e-4, name
        rates = weights(Downpour(team=team), learning_rate=lambda step: 0.1 / (1 + step))
        assert np.abs(rates - down).max() > 1e-4
    everybody.barrier()

    # With several workers, check what the master has made of the options.
    run = fit(
        SoftmaxReplica(7, 5), data, Downpour(lower_momentum=True), SGD(0.1, 0.9), 1, batch_size=10
    )
    if everybody.rank == 0:
        assert run.strategy.optimizer.momentum == pytest.approx(0.9 - (1 - 1 / 4))
    relays = {1: 0, 4: 0}

    class Counting(Downpour):
        def serve_relay(self, *vectors):
            relays[self.upward] += 1
            super().serve_relay(*vectors)

    for upward in relays:
        rule = Counting(layout=Layout(masters=2, workers=1), upward=upward)
        run = fit(SoftmaxReplica(7, 5), data, rule, SGD(0.1), 1, batch_size=10)
        assert sum(run.history.staleness.values()) == 20  # counts every update of both groups
        assert run.history.workers == {2: 10, 4: 10}
    if everybody.rank == 0:
        assert relays == {1: 20, 4: 6}  # 10 batches per group: 4, 4 and 2
    for numbers, leaders in (
        ({"workers": 4}, [1, 2, 3, 4]),
        ({"workers": 2, "devices": 2}, [1, 3]),
    ):
        rule = Downpour(layout=Layout(**numbers))
        history = fit(SoftmaxReplica(7, 5), data, rule, SGD(0.1), 1, batch_size=1).history
        assert set(history.workers) <= set(leaders) and len(history.workers) > 1
    with pytest.raises(ValueError, match="5 ranks, but masters 1 x workers 3 x devices 1 need 4"):
        fit(SoftmaxReplica(7, 5), data, Downpour(layout=Layout(workers=3)), SGD(0.1), 1)


class Plain(Around):
    """A model whose class does not say whether its vectors may be swapped."""


def answers_in_place():
    """Training has the same bits if weights arrive in the gradient's place."""
    team, data = Team(), random_data(dtype="float32")
    found = []
    for kind in (Plain, lambda replica: replica):
        model, places = DenseReplica((7, 6000, 5), seed=3), set()  # the worker helps
        compute = model.compute_gradient

        def noting(batch, model=model, compute=compute, places=places):
            places.add(model.parameters.ctypes.data)
            return compute(batch)

        model.compute_gradient = noting
        trainer = fit(kind(model), data, Downpour(team=team), Adam(0.01), 3, batch_size=10)
        losses = [row["loss"] for row in trainer.history.epochs]
        found.append((trainer.replica.parameters.copy(), losses))
        assert len(places) == (0 if team.rank == 0 else 1 if kind is Plain else 2)
    assert (found[0][0] == found[1][0]).all() and found[0][1] == found[1][1]


def test_answers_in_place(on_ranks):
    on_ranks(2, answers_in_place, env={"NUMBA_KERNELS_WINDOW": "1"})


def test_which_models_and_rules_swap():
    class Late(Downpour):
        def serve(self, center, sent, answer):
            answer[:] = center  # the request has not been read yet
            center -= self.rate * sent

    class Views(DenseReplica):
        def _hold(self, parameters, gradient):
            super()._hold(parameters, gradient)
            self.mine = parameters[:3]

    class Placed(DenseReplica):
        def place(self, parameters, gradient):
            super().place(parameters, gradient)
            self.mine = parameters[:3]

    assert Downpour().swaps and not ElasticAveraging().swaps
    assert not (Late().swaps or Downpour(every=2).swaps or Downpour(synchronous=True).swaps)
    model = Views((3, 2))
    assert model.traits.swaps and not Placed((3, 2)).traits.swaps
    assert not replica.of(Plain(model)).traits.swaps
    before = model.parameters
    model.swap()
    assert model.gradient is before and model.mine.base is not before
    assert np.shares_memory(model.mine, model.parameters)
    assert np.shares_memory(model.weights[0], model.parameters)

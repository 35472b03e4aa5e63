"""Local steps and gossip on ranks, against the papers' algorithms in numpy; resumed, failed."""

import re

import numpy as np
import pytest
from counted_runs import Cut, alike, at_step, resumed_bit_for_bit, run_until, some_digits
from rank_tests import with_ranks

from numba_kernels.errors import PeerError
from numba_kernels.optimizers import SGD
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data, models
from tutorial_dl.checkpoint.format import CheckpointError
from tutorial_dl.data import Batches
from tutorial_dl.layout import Layout
from tutorial_dl.replica import SoftmaxReplica
from tutorial_dl.strategies import Gossip, LocalSteps, Synchronous

SAMPLES, BATCH, SEED, EPOCHS = 182, 20, 5, 2  # the last batch has 2 samples, too few for 3 ranks


def problem():
    generator = np.random.default_rng(3)
    part = data.Data.of(generator.normal(size=(SAMPLES, 7)), generator.integers(0, 5, SAMPLES))
    return SoftmaxReplica(7, 5, seed=1, dtype="float64"), data.Dataset("random", part, part, 5)


def trained(strategy, optimizer, **options):
    model, whole = problem()
    if strategy.team.rank:
        model.parameters[:] = 7  # the first rank's weights are used
    options = dict(batch_size=BATCH, seed=SEED, progress=False) | options
    trainer = Trainer(model, whole, strategy, optimizer, **options)
    trainer.fit(EPOCHS)
    return trainer


class Plain:
    """Gradient descent; `mu`: torch.optim.SGD(nesterov=True), which DiLoCo's authors use."""

    def __init__(self, rate, mu=0.0):
        self.rate, self.mu, self.b = rate, mu, 0.0

    def __call__(self, x, g):
        self.b = self.mu * self.b + g
        return x - self.rate * (g + self.mu * self.b if self.mu else g)


class Adam:
    """Algorithm 1 of Kingma and Ba, arXiv 1412.6980, with epsilon as in its section 2, last line"""

    def __init__(self, rate):
        self.rate, self.m, self.v, self.t = rate, 0.0, 0.0, 0

    def __call__(self, x, g):
        self.t += 1
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g * g
        rate = self.rate * np.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
        return x - rate * self.m / (np.sqrt(self.v) + 1e-7)


def in_numpy(groups, steps, inner, exchange, epoch_ends):
    """Train in one process, with a list of ranks for each group; returns (weights, losses).

    `exchange(xs, samples)` ends a round: it changes the groups' weights `xs`, (groups, n), in
    place; so does `epoch_ends(xs)`.
    """
    model, whole = problem()
    xs = np.array([model.parameters] * len(groups))
    rules, losses, ranks = [inner() for _ in groups], [], sum(map(len, groups))
    for epoch in range(EPOCHS):
        done, samples, sums = 0, np.zeros(len(groups)), np.zeros(2)
        columns = [
            Batches(whole.train, BATCH, SEED, rank, ranks).epoch(epoch) for rank in range(ranks)
        ]
        for shares in zip(*columns, strict=True):
            for i, group in enumerate(groups):
                total, seen = 0.0, 0
                for rank in group:
                    model.parameters[:] = xs[i]
                    loss, s = model.compute_gradient(shares[rank])
                    if s:
                        total, seen = total + s * model.gradient, seen + s
                        sums += loss * s, s
                if seen:
                    xs[i] = rules[i](xs[i], total / seen)
                    samples[i] += seen
            done += 1
            if done == steps:
                exchange(xs, samples)
                done, samples = 0, 0 * samples
        if done:
            exchange(xs, samples)
        epoch_ends(xs)
        losses.append(sums[0] / sums[1])
    return xs[0], losses


def diloco(groups, steps, inner, outer):
    """Algorithm 1 of arXiv 2311.08105, with each difference weighted by its samples."""
    w = problem()[0].parameters.copy()

    def exchange(xs, samples):
        w[:] = outer(w, sum(s * (w - x) for s, x in zip(samples, xs, strict=True)) / sum(samples))
        xs[:] = w

    return in_numpy(groups, steps, inner, exchange, lambda xs: None)


def noloco(groups, steps, inner, alpha, beta):
    """The outer step of arXiv 2506.10911 with gamma = beta, in pairs; then the mean of all."""
    n, number = len(groups), [0]
    w = np.array([problem()[0].parameters] * n)
    v = np.zeros_like(w)

    def exchange(xs, samples):
        order = np.random.default_rng(number[0]).permutation(n)
        number[0] += 1
        for pair in (order[k : k + 2] for k in range(0, n, 2)):
            pulled, went = w[pair].mean(axis=0), (xs - w)[pair].mean(axis=0)
            for i in pair:
                v[i] = alpha * v[i] + beta * went + beta * (pulled - w[i])
            w[pair] += v[pair]
        xs[:] = w

    def mean(xs):
        w[:] = xs[:] = w.mean(axis=0)

    return in_numpy(groups, steps, inner, exchange, mean)


CASES = [  # steps, name and rate of the optimizer inside, and outside
    (1, ("sgd", 0.5, Plain), ("sgd", 1.0, Plain)),
    (4, ("adam", 0.02, Adam), ("nesterov", 0.7, lambda rate: Plain(rate, 0.9))),
    (3, ("sgd", 0.5, Plain), ("adam", 0.05, Adam)),
    (1000, ("adam", 0.02, Adam), ("sgd", 1.0, Plain)),  # one exchange an epoch
]


def compared(trainer, expected):
    weights, losses = expected
    np.testing.assert_allclose(trainer.replica.parameters, weights, rtol=0, atol=1e-12)
    np.testing.assert_allclose(trainer.history.column("loss"), losses, rtol=1e-10)
    assert alike(trainer.team, trainer.replica.parameters)
    rows = [[v for k, v in row.items()] for row in trainer.history.epochs]
    assert alike(trainer.team, np.array(rows).ravel())
    assert trainer.steps == EPOCHS * -(-SAMPLES // BATCH)


@pytest.mark.thorough(but="3")
@with_ranks(1, 2, 3)
def test_algorithm_1_of_diloco():
    team = Team()
    for steps, (inside, rate, inner), (outside, outer_rate, outer) in CASES:
        strategy = LocalSteps(team, steps, outside, outer_rate)
        trainer = trained(strategy, inside, learning_rate=rate)
        groups = [[rank] for rank in range(team.size)]
        compared(trainer, diloco(groups, steps, lambda i=inner, r=rate: i(r), outer(outer_rate)))


@with_ranks(4)
def test_groups_are_synchronous_inside():
    team, layout = Team(), Layout(masters=0, workers=2, devices=2)
    trainer = trained(LocalSteps(team, 4, layout=layout), "adam", learning_rate=0.02)
    compared(trainer, diloco([[0, 1], [2, 3]], 4, lambda: Adam(0.02), Plain(0.7, 0.9)))
    trainer = trained(Gossip(team, 4, layout=layout), "adam", learning_rate=0.02)
    compared(trainer, noloco([[0, 1], [2, 3]], 4, lambda: Adam(0.02), 0.3, 0.7))


@pytest.mark.thorough(but="3")
@with_ranks(1, 2, 3, 4)
def test_noloco():
    team = Team()
    groups = [[rank] for rank in range(team.size)]
    for steps, alpha, beta in ((1, 0.0, 1.0), (3, 0.3, 0.7), (1000, 0.0, 1.0)):
        trainer = trained(Gossip(team, steps, beta, alpha), "sgd", learning_rate=0.5)
        compared(trainer, noloco(groups, steps, lambda: Plain(0.5), alpha, beta))


@with_ranks(3)
def test_peers_are_pairs():
    team = Team()
    trainer = trained(Gossip(team, 2), "sgd")
    strategy, met = trainer.strategy, set()
    for number in range(40):
        strategy.outer_state.step = number
        table = team.allgather(np.array([strategy.peer()])).ravel().tolist()
        assert [table[peer] for peer in table] == [0, 1, 2]  # my peer's peer is me
        assert sum(rank == peer for rank, peer in enumerate(table)) == 1
        met.add(table[0])
    assert met == {0, 1, 2}


@with_ranks(3)
def test_one_step_is_synchronous_training():
    """H = 1, SGD inside and SGD(1) outside; other H are not."""
    team = Team()
    together = trained(Synchronous(team), "sgd", learning_rate=0.5)
    apart = []
    for steps in (1, 2, 5):
        local = trained(LocalSteps(team, steps, SGD(1.0)), "sgd", learning_rate=0.5)
        apart.append(np.abs(local.replica.parameters - together.replica.parameters).max())
    assert apart[0] < 1e-13 < 1e-2 < min(apart[1:]), apart


def on_digits(team, place, kind=LocalSteps, compression=None, **more):
    own = {"compression": compression} if compression else {}
    digits = some_digits(203)
    strategy = kind(team, more.pop("inner_steps", 5), **own)
    return Trainer(
        models.dense(digits), digits, strategy, "adam", 20, checkpoint=place, progress=False, **more
    )


@pytest.mark.thorough(but="2")
@with_ranks(1, 2, 3)
def test_resumed_runs_end_with_the_same_bits(folder):
    """Cut in a round, after the last step of an epoch, and where a round has just ended."""
    team = Team()
    for number, (kind, compression) in enumerate((
        (LocalSteps, None), (LocalSteps, "top_k"), (LocalSteps, "powersgd"), (Gossip, None),
    )):  # fmt: skip

        def make(place, kind=kind, compression=compression, **more):
            return on_digits(team, place, kind, compression, **more)

        cuts = (4, 19, 16), (None, 19, 11), (11, 24, 22), (5, 19, 15)
        resumed_bit_for_bit(make, f"{folder}/{number}", cuts, lambda s: s.outer_state.slots)


@with_ranks(2)
def test_what_is_refused(folder):
    team = Team()
    run_until(on_digits(team, folder, checkpoint_every=4), 9)
    for more, words in (
        ({"inner_steps": 6}, "inner steps 5, not 6"),
        ({"kind": Gossip}, "strategy LocalSteps, not Gossip"),
        ({"compression": "top_k"}, "compression None, not TopK"),
    ):
        with pytest.raises(CheckpointError, match=f"was written with {words}"):
            on_digits(team, folder, **more).resume()
        team.recover()
    alone = team.split(team.rank)
    with pytest.raises(CheckpointError, match="was written with ranks 2, not 1"):
        on_digits(alone, folder).resume()
    for make, words in (
        (lambda: LocalSteps(team, 0), "inner_steps must be at least 1, got 0"),
        (lambda: LocalSteps(team, outer_optimizer="sdg"), "unknown optimizer 'sdg'; choose one of"),
        (
            lambda: LocalSteps(team, outer_optimizer="schedule_free_sgd"),
            "shows other weights than it trains",
        ),
        (lambda: LocalSteps(team, compression="zip"), "unknown compression 'zip'; choose one of"),
        (lambda: LocalSteps(team, layout=Layout(workers=2)), "local steps has no master: use"),
        (lambda: LocalSteps(team, layout=Layout(masters=0, workers=3)), "2 ranks, but masters 0"),
        (lambda: Gossip(team, outer_rate=0.2), "peer_momentum must be below outer_rate"),
        (lambda: Gossip(team, peer_momentum=-0.1), "peer_momentum must be at least 0 and below 1"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)) as caught:
            make()
        assert "\n" not in str(caught.value)


@with_ranks(2)
def test_after_a_failure_all_ranks_go_on_alike():
    """Rank 1 fails in a round, twice; rank 0 learns of it when it wants to exchange."""
    team = Team()
    for kind, compression in ((LocalSteps, "bf16"), (Gossip, None)):

        def fail(trainer, failed=[]):  # noqa: B006  (kept from call to call)
            if trainer.team.rank == 1 and trainer.steps not in failed:
                failed.append(trainer.steps)
                raise Cut

        made = on_digits(team, None, kind, compression)
        made.callbacks += [at_step(7, fail), at_step(10, fail)]
        for _ in range(2):
            with pytest.raises((Cut, PeerError)):
                made.fit(3)
            team.recover()
        made.fit(3)
        assert alike(team, made.replica.parameters) and len(made.history.epochs) == 3
        losses = made.history.column("loss")
        assert losses[-1] < losses[0], (kind, losses)


@with_ranks(2)
def test_a_round_begins_at_the_weights_that_are_there():
    """They may be others than after the last round: a callback may have restored the best."""
    team, ended = Team(), []
    for epochs in (2, 0):
        model, whole = problem()
        strategy = LocalSteps(team, 4, SGD(0.5))
        trainer = Trainer(model, whole, strategy, "sgd", BATCH, shuffle=False, progress=False)
        if epochs:
            trainer.fit(epochs)
        trainer.replica.parameters[:] = 0
        trainer.fit(1)
        ended.append(trainer.replica.parameters.copy())
    np.testing.assert_array_equal(*ended)


@with_ranks(2)
def test_a_checkpoint_in_a_round_changes_nothing():
    """It shows the common weights for a moment; the run goes on from each rank's own."""
    team = Team()
    for kind in (LocalSteps, Gossip):
        shown = []

        def settle(trainer, shown=shown):
            trainer.strategy.settle()
            shown.append(trainer.replica.parameters.copy())

        runs = [on_digits(team, None, kind) for _ in range(2)]
        runs[0].callbacks.append(at_step(8, settle))
        for run in runs:
            run.fit(1)
        assert alike(team, shown[0])
        np.testing.assert_array_equal(*(run.replica.parameters for run in runs))

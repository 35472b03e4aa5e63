"""Peak memory of p ranks that train n parameters with Adam, compared with docs/memory.md."""

import gc

import numpy as np
import pytest


def floats(ranks, one_copy):
    """The number in docs/memory.md, in n floats: weights, gradients, Adam's two averages."""
    return (1 if one_copy else ranks) + ranks + 2


def check(peak, ranks, n, one_copy):
    found, expected = peak.bytes / (4 * n), floats(ranks, one_copy)
    print(f"{ranks} ranks, {n} parameters, one copy {one_copy}: {found:.2f} n, {expected} n said")
    assert 0.97 * expected <= found <= 1.15 * expected, found


def step_alone(one_copy):
    import memory

    from numba_kernels import Team
    from numba_kernels.optimizers import Adam
    from numba_kernels.step.step import Step

    team = Team()

    def train(n):
        w, g = team.empty(n, common=one_copy), team.empty(n)
        step = Step(team, Adam(), w, g)
        for _ in range(3):
            g[:] = 1
            step(0.0, 1)
        assert w.max() < 0
        return step

    train(1000)
    with memory.Peak(team) as peak:
        step = train(20_000_000)
    check(peak, team.size, step.parameters.size, one_copy)


def trainer(one_copy):
    """A network with all weights in one layer, the worst case for temporary memory."""
    import memory

    from tutorial_dl import Team, Trainer, data, strategies
    from tutorial_dl.replica import DenseReplica

    team = Team()

    def train(inputs, outputs):
        generator = np.random.default_rng(0)
        x = generator.normal(size=(40, inputs)).astype("float32")
        part = data.Data.of(x, generator.integers(0, outputs, 40))
        strategy = strategies.Synchronous(team, one_copy=one_copy)
        model = DenseReplica((inputs, outputs))
        whole = data.Dataset("random", part, part, outputs)
        trained = Trainer(model, whole, strategy, "adam", batch_size=16, progress=False)
        trained.fit(2)
        return trained  # now it has allocated all its memory

    train(300, 10)
    with memory.Peak(team) as peak:
        trained = train(4000, 2500)
    check(peak, team.size, trained.replica.parameters.size, one_copy)


def each_case():
    """Each case frees its memory; what stayed would be missing from the next one's growth."""
    for one_copy in (False, True):
        for case in (step_alone, trainer):
            case(one_copy)
            gc.collect()


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 4])
def test_step_and_trainer(on_ranks, ranks):
    on_ranks(ranks, each_case, timeout=300, fresh=True)

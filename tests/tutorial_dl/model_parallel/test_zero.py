"""ZeRO: every stage trains as one process does, and each rank holds what the formulas say."""

import doctest
import sys
import tracemalloc

import numpy as np
import pytest

WITHIN = {"float32": 1e-5, "float64": 1e-12}
SAMPLES = 7  # per batch: not a multiple of the ranks


def layers_of(model):
    from tutorial_dl.replica.layered import cnn_layers, mlp_layers
    from tutorial_dl.replica.transformer import transformer_layers

    if model == "mlp":
        return mlp_layers([12, 33, 20, 5]), None
    if model == "cnn":
        return cnn_layers((4, 4, 2), [3, 5], 4), None
    return transformer_layers(11, 6, 12, 3, 2, dropout=0.2), 11


def batches(model, count):
    random = np.random.default_rng(3)
    for _ in range(count):
        if model == "transformer":
            x = random.integers(0, 11, (SAMPLES, 6))
            yield x, np.roll(x, -1, axis=1)
        else:
            shape = (12,) if model == "mlp" else (4, 4, 2)
            yield random.normal(size=(SAMPLES, *shape)), random.integers(0, 4, SAMPLES)


def serial(model, optimizer, dtype, clip_norm, count):
    """Losses, weights and state of one process with the whole batches: two plain steps each."""
    from numba_kernels.optimizers import clip_by_norm
    from tutorial_dl.replica.layered import LayeredReplica

    replica = LayeredReplica(layers_of(model)[0], seed=5, dtype=dtype)
    state, losses = optimizer.init(replica.parameters.size, dtype, replica.segments), []
    for batch in batches(model, count):
        losses.append(replica.compute_gradient(batch)[0])
        if clip_norm is not None:
            clip_by_norm(replica.gradient, clip_norm)
        optimizer.update(replica.parameters, replica.gradient, state)
    return losses, replica.parameters, state.slots


def as_serial(cases):
    from numba_kernels import Team, optimizers
    from tutorial_dl.model_parallel.zero import ZeRO

    team = Team()
    for model, name, dtype, clip_norm in cases:
        optimizer = optimizers.get(name, 0.01)
        losses, weights, slots = serial(model, optimizer, dtype, clip_norm, 20)
        # Uneven shares; the last rank has no samples.
        edges = [SAMPLES * r // max(team.size - 1, 1) for r in range(team.size)] + [SAMPLES]
        mine = slice(*edges[team.rank : team.rank + 2])
        for stage in (0, 1, 2, 3):
            of = ZeRO(
                team, layers_of(model)[0], optimizer, stage, seed=5, dtype=dtype,
                clip_norm=clip_norm,
            )  # fmt: skip
            for expected, (x, y) in zip(losses, batches(model, 20), strict=True):
                loss, samples = of.step((x[mine], y[mine]))
                assert samples == SAMPLES
                assert loss == pytest.approx(expected, rel=10 * WITHIN[dtype]), (model, name, stage)
            # The averages are sums of gradients, in which digits cancel; weights are larger.
            found = ((of.weights(), weights, 1), (of.slots(), slots, 10))
            for ours, theirs, times in found:
                error = np.abs(ours - theirs).max(initial=0) / np.abs(theirs).max(initial=1e-30)
                assert error < times * WITHIN[dtype], (model, name, dtype, stage, error)
            assert of._in_use == 0
    team.barrier()


CASES = {
    2: [["transformer", "sgd", "float64", None], ["cnn", "adam", "float64", 0.1]],
    3: [["mlp", "lamb", "float64", 0.5], ["transformer", "momentum", "float32", None]],
    4: [["mlp", "lars", "float64", None]],
}


@pytest.mark.thorough(but="3")
@pytest.mark.parametrize("ranks", CASES)
def test_equal_to_one_process(on_ranks, ranks):
    on_ranks(ranks, as_serial, CASES[ranks])


def held_as_the_formulas():
    """Sizes are multiples of 16 N, so every slice is 1/N; tracemalloc sees the same bytes."""
    from numba_kernels import Team, optimizers
    from tutorial_dl.model_parallel import zero
    from tutorial_dl.replica.layers import Dense

    team, width = Team(), 64 * Team().size
    adam, itemsize = optimizers.get("adam"), 4
    # (s, width) -> (s, width) without an activation; the bias makes width^2 + width parameters
    x = np.ones((2, width), np.float32), np.zeros((2, width), np.float32)
    layer = width * width + width
    for stage in (0, 1, 2, 3):
        tracemalloc.start()
        of = zero.ZeRO(team, [Dense(f"d{i}", width, width) for i in range(3)], adam, stage, "mse")
        for _ in range(2):
            of.sent = 0
            of.step(x)
        arrays = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
        traces = tracemalloc.take_snapshot().filter_traces([arrays]).traces
        after = sum(trace.size for trace in traces)
        tracemalloc.stop()
        held, n = of.held(), 3 * layer
        assert held == zero.formulas(n, team.size, stage), stage
        # A team keeps links and a table for its collectives, some kilobytes.
        assert sum(held.values()) <= after < sum(held.values()) + 20_000, (stage, after)
        # Of whole layers: in stage 2 the gradient of one; in stage 3 also the weights of two.
        assert of.most_in_use == {0: 0, 1: 0, 2: 1, 3: 3}[stage] * layer * itemsize
        share = (team.size - 1) / team.size
        assert of.sent == pytest.approx((2 * n if stage < 3 else 3 * n - layer) * share * itemsize)
        assert f"{held['state']:,}" in zero.table(of)
    team.barrier()


@pytest.mark.parametrize("ranks", [2, 4])
def test_memory_and_traffic(on_ranks, ranks):
    on_ranks(ranks, held_as_the_formulas)


def failures_and_checkpoints():
    from numba_kernels import PeerError, Team, optimizers
    from numba_kernels.errors import TeamError
    from tutorial_dl.model_parallel.zero import ZeRO

    team, adam = Team(), optimizers.get("adam")
    with pytest.raises(ValueError, match="stage must be 0, 1, 2 or 3, got 4"):
        ZeRO(team, layers_of("mlp")[0], adam, 4)

    def model(stage):
        return ZeRO(team, layers_of("mlp")[0], adam, stage, dtype="float64")

    first, *rest = batches("mlp", 3)
    of = model(3)
    of.step(first)
    kept = of.weights(), of.slots(), of.steps
    for stage in (3, 2, 1, 0):  # a checkpoint of stage 3 goes on under any stage
        again = model(stage)
        again.load(*kept)
        for batch in rest:
            again.step(batch)
        if stage == 3:
            expected = again.weights()
        assert np.abs(again.weights() - expected).max() < 1e-12
    # A rank that fails, here within a step, ends all; a checkpoint makes one model again.
    for stage, layer in ((3, 1), (3, 2), (3, 3), (2, 2)):
        of = model(stage)
        if team.rank == 1:
            of.parts[layer].layer.forward = None
            with pytest.raises(TypeError) as caught:
                of.step(first)
            team.abort(caught.value)
        else:
            with pytest.raises(PeerError, match=r"rank 1 .*not callable"):
                of.step(first)
        team.recover(120)
        of.check()
        if team.rank == 1:
            del of.parts[layer].layer.forward
        of.load(*kept)
        for batch in rest:
            of.step(batch)
        assert np.abs(of.weights() - expected).max() < 1e-12
    of.steps += team.rank
    with pytest.raises(TeamError, match="load a checkpoint"):
        of.check()


def test_failures(on_ranks):
    on_ranks(2, failures_and_checkpoints)


def test_the_examples():
    from tutorial_dl.model_parallel import zero

    found = doctest.testmod(sys.modules[zero.__name__])
    assert found.attempted and not found.failed

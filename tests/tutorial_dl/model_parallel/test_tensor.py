"""Layers split over ranks: the gradient, and 20 updates, are those of the whole model."""

import numpy as np
import pytest

WITHIN = {"float32": 1e-5, "float64": 1e-12}
GPT = {"*_attention": "heads", "*_dense_1": "columns", "*_dense_2": "rows"}
CNN = {"conv_1": "columns", "conv_2": "rows"}
MLP = {"layer_1": "columns", "layer_2": "rows"}


def model(name):
    from tutorial_dl.replica.layered import cnn_layers, mlp_layers
    from tutorial_dl.replica.transformer import transformer_layers

    random = np.random.default_rng(3)
    if name == "gpt":
        x = random.integers(0, 12, (4, 6))
        return transformer_layers(12, 6, 24, 6, 2, dropout=0.2), GPT, (x, np.roll(x, -1, 1))
    y = random.integers(0, 4, 4)
    if name == "cnn":
        return cnn_layers((4, 4, 2), [6, 5], 4), CNN, (random.normal(size=(4, 4, 4, 2)), y)
    return mlp_layers([8, 12, 10, 5]), MLP, (random.normal(size=(4, 8)), y)


def as_the_whole(cases):
    """Strategies train both, so that clipping by the whole model's norm is equal, too."""
    from numba_kernels import Team, optimizers
    from tutorial_dl.model_parallel.tensor import TensorReplica
    from tutorial_dl.replica.layered import LayeredReplica
    from tutorial_dl.strategies import Serial, Synchronous

    team = Team()
    for name, dtype in cases:
        layers, rules, batch = model(name)
        whole = LayeredReplica(layers, seed=5, dtype=dtype)
        part = TensorReplica(layers, team, rules, seed=5, dtype=dtype)
        alone, together = Serial(), Synchronous(team)
        for strategy, one in ((alone, whole), (together, part)):
            strategy.attach(one, optimizers.get("momentum", 0.05), clip_norm=0.3)
        for step in range(20):
            expected, found = alone.begin(batch), together.begin(batch)
            assert found == pytest.approx(expected, rel=10 * WITHIN[dtype]), (name, step)
            if step == 0:
                ours = part.whole(part.gradient)
                for one in whole.segments:
                    theirs = one.view(whole.gradient)
                    error = np.abs(ours[one.name] - theirs).max() / np.abs(whole.gradient).max()
                    assert error < WITHIN[dtype], (name, dtype, one.name, error)
            assert alone.end(*expected)[1] == together.end(*found)[1] == 4
        ours = np.concatenate([array.reshape(-1) for array in part.whole().values()])
        error = np.abs(ours - whole.parameters).max() / np.abs(whole.parameters).max()
        assert error < WITHIN[dtype], (name, dtype, error)
        cut = sum(s.size for s in part.segments if part.axes[s.name] is not None)
        alike = sum(s.size for s in part.segments if part.axes[s.name] is None)
        assert team.size * cut + alike == whole.parameters.size
    team.barrier()


@pytest.mark.thorough(but="2")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_equal_to_the_whole_model(on_ranks, ranks):
    on_ranks(
        ranks,
        as_the_whole,
        [
            ["gpt", "float64"],
            ["cnn", "float64"],
            ["mlp", "float32" if ranks == 3 else "float64"],
        ],
    )


def reductions():
    from numba_kernels import Team
    from tutorial_dl.model_parallel.tensor import TensorReplica
    from tutorial_dl.replica.layers import Activation, Chain, Dense

    team, calls = Team(), []
    allreduce = team.allreduce

    def counted(x):
        calls.append(x.nbytes)
        return allreduce(x)

    team.allreduce = counted
    pair = [Dense("a", 4, 8), Activation("act", "gelu"), Dense("b", 8, 4)]
    rules, x = {"a": "columns", "b": "rows"}, np.ones((2, 8, 4))
    part = TensorReplica([Chain("c", pair)], team, rules, "mse", dtype="float64")
    calls.clear()
    part.compute_gradient((x, x))
    assert calls == [x.nbytes] * 2
    team.barrier()


def test_one_reduction_each_way(on_ranks):
    on_ranks(2, reductions)


def refused():
    from numba_kernels import Team, optimizers
    from tutorial_dl.model_parallel.tensor import TensorReplica, split
    from tutorial_dl.replica.layered import mlp_layers
    from tutorial_dl.replica.layers import Dense, Dropout
    from tutorial_dl.strategies import Synchronous

    team = Team()
    layers = mlp_layers([8, 9, 10, 5])
    gpt = model("gpt")[0]
    drop = [Dense("a", 4, 4), Dropout("drop", 0.5, 1), Dense("b", 4, 4)]
    for of, rules, why in (
        (layers, {"dense": "columns"}, "'dense' matches no layer: the model has layer_1, layer_2"),
        (layers, {"layer_1": "columns", "layer_2": "rows"}, "'layer_1' has 9 units.*1, 3, 9 ranks"),
        (layers, {"layer_2": "columns"}, "'layer_3' lies behind 'layer_2', which is cut by colu"),
        (layers, {"layer_3": "rows"}, "'layer_3' is cut by rows: it needs a layer"),
        (drop, {"a": "columns", "b": "rows"}, "'drop' lies behind 'a'"),
        ([Dense("a", 4, 4)] * 2, {"a": "columns"}, "'a' occurs twice"),
        (gpt, {"norm": "columns"}, "'norm', a LayerNorm: replicate, not columns"),
    ):
        with pytest.raises(ValueError, match=why):
            split(of, team, rules)
    words = r"takes no sequence: leave it out, or train a Keras model by KerasTensorReplica\("
    for old, named in (([True], {}), ([], {"sequence": True})):
        with pytest.raises(TypeError, match=words):
            TensorReplica(gpt, team, GPT, *old, **named)
    strategy = Synchronous(team)
    with pytest.raises(ValueError, match="lamb needs norms of whole layers"):
        strategy.attach(TensorReplica(gpt, team, GPT), optimizers.get("lamb"))


def test_refusals(on_ranks):
    on_ranks(2, refused)

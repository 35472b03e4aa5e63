"""Layers split over ranks: the gradient, and 20 updates, are those of the whole model."""

import numpy as np
import pytest

WITHIN = {"float32": 1e-5, "float64": 1e-12}
GPT = {
    "embedding": "rows",
    "*_attention": "heads",
    "*_dense_1": "columns",
    "*_dense_2": "rows",
}
CNN = {"conv_1": "columns", "conv_2": "rows"}
MLP = {"layer_1": "columns", "layer_2": "rows"}


def model(name):
    from tutorial_dl.replica.layered import cnn_layers, mlp_layers
    from tutorial_dl.replica.transformer import transformer_layers

    random = np.random.default_rng(3)
    if name.startswith("gpt"):  # 6 divides by 2 and 3: heads, tokens, positions; 5 does not
        x = random.integers(0, 12, (4, 6 if name == "gpt" else 5))
        return transformer_layers(12, 6, 24, 6, 2, dropout=0.2), GPT, (x, np.roll(x, -1, 1))
    y = random.integers(0, 4, 4)
    if name == "cnn":
        return cnn_layers((4, 4, 2), [6, 5], 4), CNN, (random.normal(size=(4, 4, 4, 2)), y)
    return mlp_layers([8, 12, 10, 5]), MLP, (random.normal(size=(4, 8)), y)


def as_the_whole(cases):
    from numba_kernels import Team, optimizers
    from numba_kernels.optimizers import clip_by_norm
    from tutorial_dl.model_parallel.tensor import TensorReplica
    from tutorial_dl.replica.layered import LayeredReplica

    team = Team()
    for name, sequence, dtype in cases:
        layers, rules, batch = model(name)
        whole = LayeredReplica(layers, seed=5, dtype=dtype)
        how = {"sequence": bool(sequence), "keep": sequence != "again"}
        part = TensorReplica(layers, team, rules, seed=5, dtype=dtype, **how)
        rule = optimizers.get("momentum", 0.05)
        states = [rule.init(one.parameters.size, dtype) for one in (whole, part)]
        part.check_optimizer(rule)
        for step in range(20):
            expected, found = whole.compute_gradient(batch), part.compute_gradient(batch)
            assert found == pytest.approx(expected, rel=10 * WITHIN[dtype]), (name, sequence, step)
            if step == 0:
                ours = part.whole(part.gradient)
                for one in whole.segments:
                    theirs = one.of(whole.gradient)
                    error = np.abs(ours[one.name] - theirs).max() / np.abs(whole.gradient).max()
                    assert error < WITHIN[dtype], (name, sequence, dtype, one.name, error)
            norm = clip_by_norm(whole.gradient, 0.3)
            assert part.clip(0.3) == pytest.approx(norm, rel=100 * WITHIN[dtype])
            for one, state in zip((whole, part), states, strict=True):
                rule.update(one.parameters, one.gradient, state)
        ours = np.concatenate([array.reshape(-1) for array in part.whole().values()])
        error = np.abs(ours - whole.parameters).max() / np.abs(whole.parameters).max()
        assert error < WITHIN[dtype], (name, sequence, dtype, error)
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
            ["gpt", False, "float64"],
            ["gpt", True, "float64"],
            ["gpt of 5 positions", "again", "float64"],
            ["gpt", ranks == 2, "float32"],
            ["cnn", False, "float64"],
            ["mlp", False, "float32" if ranks == 3 else "float64"],
        ],
    )


def reductions():
    """One reduction forward and one backward per pair; the sequence form sends as many bytes."""
    from numba_kernels import Team
    from tutorial_dl.model_parallel.tensor import TensorReplica
    from tutorial_dl.replica.layers import Activation, Chain, Dense

    team, calls = Team(), []

    def count(name, call):
        def counted(x, *more):
            calls.append((name, x.nbytes))
            return call(x, *more)

        setattr(team, name, counted)

    for name in ("allreduce", "reduce_scatter", "allgather"):
        count(name, getattr(team, name))
    pair = [Dense("a", 4, 8), Activation("act", "gelu"), Dense("b", 8, 4)]
    rules, x = {"a": "columns", "b": "rows"}, np.ones((2, 8, 4))
    for sequence in (False, True):
        part = TensorReplica([Chain("c", pair)], team, rules, sequence, "mse", dtype="float64")
        calls.clear()
        part.compute_gradient((x, x))
        if not sequence:
            assert calls == [("allreduce", x.nbytes)] * 2
        else:  # f and g; what divides and joins at the ends; and the bias, of 4 numbers
            scatters, gathers = (
                [call for call in calls if call[0] == name]
                for name in ("reduce_scatter", "allgather")
            )
            assert scatters == [("reduce_scatter", x.nbytes)] * 2
            assert gathers == [("allgather", x.nbytes // team.size)] * 4
            assert ("allreduce", 4 * 8) in calls
    team.barrier()


def test_one_reduction_each_way(on_ranks):
    on_ranks(2, reductions)


def as_the_formulas_say():
    """Bytes sent in a step, and bytes held between the passes, of a small GPT of two blocks."""
    import tracemalloc

    from numba_kernels import Team
    from tutorial_dl.model_parallel.tensor import TensorReplica
    from tutorial_dl.replica.layers import At
    from tutorial_dl.replica.transformer import transformer_layers

    team, (s, t, d, h, blocks, vocabulary) = Team(), (2, 96, 48, 6, 2, 12)
    ranks = team.size
    layers = transformer_layers(vocabulary, t, d, h, blocks, dropout=0.2)
    x = np.random.default_rng(3).integers(0, vocabulary, (s, t))
    for sequence, keep in ((False, True), (True, True), (True, False)):
        part = TensorReplica(layers, team, GPT, sequence, dtype="float64", keep=keep)
        part.compute_gradient((x, x))
        sent, each = part.reductions.sent, 8 * s * t * d  # bytes of what lies between pairs
        pairs = 2 * blocks
        expected = 2 * (2 * pairs + 1) * each  # f backward, g forward; g of the embedding
        if sequence:  # what divides and joins at the ends; weights that saw a part: norms, biases
            expected += 2 * each + 2 * 8 * blocks * 6 * d + (not keep) * pairs * each
        assert sent == pytest.approx((ranks - 1) / ranks * expected, rel=1e-12), sequence
        tracemalloc.start()
        try:
            pass_ = part.chain.forward(x, part.weights, At(training=True))
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        undivided, divided = (2 * d, 4 * d + 2) if sequence else (6 * d + 2, 0)
        if not keep:
            undivided, divided = 0, 6 * d + 2
        block = undivided + (divided + 16 * d + h * t) / ranks
        # The last norm and what the output layer takes, and the logits
        last = d + 1 + d + vocabulary
        numbers = s * t * (blocks * block + last)
        assert held == pytest.approx(8 * numbers, rel=0.03), (sequence, keep, held, 8 * numbers)
        del pass_
    team.barrier()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_bytes_sent_and_held_are_those_of_the_formulas(on_ranks, ranks):
    on_ranks(ranks, as_the_formulas_say)


def refused():
    from numba_kernels import PeerError, Team, optimizers
    from tutorial_dl.model_parallel.tensor import TensorReplica, split
    from tutorial_dl.replica.layered import mlp_layers
    from tutorial_dl.replica.layers import Dense, Dropout

    team = Team()
    layers = mlp_layers([8, 9, 10, 5])
    gpt = model("gpt")[0]
    drop = [Dense("a", 4, 4), Dropout("drop", 0.5, 1), Dense("b", 4, 4)]
    for of, rules, why in (
        (layers, {"dense": "columns"}, "'dense' matches no layer: the model has layer_1, layer_2"),
        (layers, {"layer_1": "halves"}, "columns, rows, heads, replicate, not 'halves'"),
        (layers, {"layer_1": "heads"}, "'layer_1', a Dense: columns or rows or replicate"),
        (layers, {"layer_1": "columns", "layer_2": "rows"}, "'layer_1' has 9 units.*1, 3, 9 ranks"),
        (layers, {"layer_2": "columns"}, "'layer_3' lies behind 'layer_2', which is cut by colu"),
        (layers, {"layer_3": "rows"}, "'layer_3' is cut by rows: it needs a layer"),
        (drop, {"a": "columns", "b": "rows"}, "'drop' lies behind 'a'"),
        ([Dense("a", 4, 4)] * 2, {"a": "columns"}, "'a' occurs twice"),
        (gpt, {"norm": "columns"}, "'norm', a LayerNorm: replicate, not columns"),
    ):
        with pytest.raises(ValueError, match=why):
            split(of, team, rules)
    with pytest.raises(ValueError, match="keep=False has no effect without sequence=True"):
        TensorReplica(gpt, team, GPT, keep=False)
    part = TensorReplica(gpt, team, GPT, sequence=True)
    with pytest.raises(ValueError, match="a sequence of 1 positions is too short for 2 ranks"):
        part.compute_gradient((np.zeros((1, 1), int), np.zeros((1, 1), int)))
    rows = TensorReplica(mlp_layers([8, 4, 6, 5]), team, MLP, sequence=True)
    with pytest.raises(ValueError, match=r"\(samples, positions, ...\), got \(4, 8\): use"):
        rows.compute_gradient((np.zeros((4, 8)), np.zeros(4, int)))
    with pytest.raises(ValueError, match="lamb needs norms of whole layers"):
        part.check_optimizer(optimizers.get("lamb"))
    # A rank that fails ends all; the team recovers.
    batch = model("gpt")[2]
    if team.rank == 1:
        team.abort(ZeroDivisionError("of rank 1"))
    else:
        with pytest.raises(PeerError, match=r"rank 1 .*of rank 1"):
            part.compute_gradient(batch)
    team.recover(120)
    part.compute_gradient(batch)


def test_refusals(on_ranks):
    on_ranks(2, refused)

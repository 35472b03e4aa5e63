"""Sequences divided over ranks, also in stages: the same history and weights as one process."""

import re
from pathlib import Path

import numpy as np
import pytest
from commands_on_ranks import told
from divided_models import Fails, fails_and_recovers, options_of, same_commands

from numba_kernels.team.team import Team
from tutorial_dl import Trainer, strategies
from tutorial_dl.config import RunConfig
from tutorial_dl.data import Data, Dataset, stream
from tutorial_dl.model_parallel import ContextReplica, Grid, PipelinedReplica
from tutorial_dl.replica import DenseReplica, LayeredReplica, TransformerReplica
from tutorial_dl.replica.layered import mlp_layers
from tutorial_dl.replica.layers import Dense
from tutorial_dl.replica.transformer import Attention, transformer_layers
from tutorial_dl.training import callbacks
from tutorial_dl.training.setup import part_of_model

WITHIN = {"float32": 1e-5, "float64": 1e-12}
RANDOM = np.random.default_rng(5)
TOKENS = RANDOM.integers(0, 9, (61, 13))
DATA = Dataset(
    "tokens",
    Data.of(TOKENS[:40, :-1], TOKENS[:40, 1:]),
    Data.of(TOKENS[40:, :-1], TOKENS[40:, 1:]),
    classes=9,
)
HOW = {"optimizer": "momentum", "learning_rate": 0.1, "batch_size": 12, "progress": False}


def whole(causal=True, dropout=0.0, dtype="float64"):
    """A small GPT; if not causal, one whose attention sees all positions."""
    if causal:
        return TransformerReplica(9, 12, 8, 2, 2, dropout, seed=2, dtype=dtype)
    layers = transformer_layers(9, 12, 8, 2, 2, dropout)
    for layer in (one for chain in layers[1:-2] for one in chain.layers):
        if isinstance(layer, Attention):
            layer.causal = False
    return LayeredReplica(layers, seed=2, dtype=dtype)


class Counts(callbacks.Callback):
    def __init__(self):
        self.samples = 0

    def on_step_end(self, trainer, loss, samples):
        self.samples += samples


def divided(ranks, model=(), how=None, **options):
    """A Trainer whose sequences are divided; `how` are options of the strategy."""
    grid = Grid(Team(), context=ranks)
    replica = ContextReplica(whole(*model), grid)
    strategy = strategies.Synchronous(grid.team, **how or {})
    return Trainer(replica, DATA, strategy, **HOW | options)


CUT = ["block_1_mlp"]  # attention on both sides


def in_stages(stages, ranks, model=(), how=None, **options):
    """A Trainer whose sequences are divided and whose layers are cut; `how` are a pipeline's."""
    grid = Grid(Team(), stages, context=ranks)
    how = {"schedule": "1f1b", "micro_batches": 5, "layers": CUT} | (how or {})
    part = ContextReplica(whole(*model), grid)
    replica = PipelinedReplica(part, grid, sample=TOKENS[:3, :-1], **how)
    return Trainer(replica, DATA, "synchronous", **HOW | options)


def alone(epochs, model=(), strategy="serial", team=None, **options):
    team = team or Team().split(Team().rank)
    one = Trainer(whole(*model), DATA, strategy, team=team, **HOW | options)
    one.fit(epochs)
    return one


def same(found, one, near=1e-12):
    """Equal histories, metrics, weights and predictions."""
    assert len(found.history.epochs) == len(one.history.epochs)
    for mine, theirs in zip(found.history.epochs, one.history.epochs, strict=True):
        for name in ("loss", "val_loss", "val_accuracy"):
            assert mine[name] == pytest.approx(theirs[name], rel=10 * near), name
    close(found.replica.parameters, one.replica.parameters, found, near)
    x = DATA.validation.inputs
    np.testing.assert_allclose(found.predict(x), one.replica.predict(x), rtol=0, atol=10 * near)


def close(part, expected, found, near):
    """A vector of this rank's stages is the same part of the whole model's, `expected`."""
    if isinstance(found.replica, PipelinedReplica):
        expected = np.concatenate([expected[low:high] for low, high in found.replica.slices])
    error = np.abs(part - expected).max() / np.abs(expected).max()
    assert error < near, error


def trains(folder):
    """20 steps, causal and full, in both precisions; masks are those of one process, too."""
    ranks = Team().size
    cases = [(True, 0.3, "float64"), (False, 0.3, "float64"), (True, 0.0, "float32")]
    for case in cases:
        counts = Counts()
        found = divided(ranks, case, callbacks=[counts])
        found.fit(5)
        assert found.steps == 20 and counts.samples == 5 * len(DATA.train)
        same(found, alone(5, case), WITHIN[case[2]])
        replica, before = found.replica, found.replica.sequences.sent
        replica.compute_gradient(DATA.train.take(slice(0, 6)))
        block = 6 * 2 * 12 // ranks * 4 * replica.dtype.itemsize  # samples, heads, positions, width
        ring = 2 * (ranks - 1) + 2 * (ranks - 1) + 2 * ranks  # k and v twice, and their gradients
        assert replica.sequences.sent - before == 2 * ring * block  # of two layers
        evaluated = replica.evaluate([DATA.validation.take(slice(None))])
        assert evaluated["samples"] == len(DATA.validation)
        assert evaluated["loss"] == pytest.approx(found.history.epochs[-1]["val_loss"])
    found.save(Path(folder, "divided.npz"))
    with np.load(Path(folder, "divided.npz")) as arrays:
        for one in found.replica.segments:
            assert (arrays[one.name] == one.of(found.replica.parameters)).all()


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_of_sequences_train_as_one_process(on_ranks, ranks, tmp_path):
    on_ranks(ranks, trains, str(tmp_path))


@pytest.mark.thorough
def test_stages_of_parts_train_as_one_process(on_ranks, tmp_path):
    on_ranks(4, stages_train, str(tmp_path))


def stages_train(folder):
    """D x S x C = 1 x 2 x 2: 20 steps of 12 and 4 samples in 5 micro-batches, by each schedule."""
    for case, schedule, recompute in (
        ((True, 0.3, "float64"), "1f1b", True),
        ((False, 0.0, "float64"), "zb_h1", False),
        ((True, 0.0, "float32"), "gpipe", False),
    ):
        counts, near = Counts(), WITHIN[case[2]]
        how = {"schedule": schedule, "recompute": recompute}
        found = in_stages(2, 2, case, how, callbacks=[counts])
        first_gradient(found, case, near)
        found.fit(5)
        assert found.steps == 20 and counts.samples == 5 * len(DATA.train)
        one = alone(5, case)
        same(found, one, near)
        evaluated = found.replica.evaluate([DATA.validation.take(slice(None))])
        assert evaluated["samples"] == len(DATA.validation)
        assert evaluated["loss"] == pytest.approx(found.history.epochs[-1]["val_loss"])
    found.save(Path(folder, "stages.npz"))
    with np.load(Path(folder, "stages.npz")) as arrays:
        for each in one.replica.segments:
            np.testing.assert_allclose(
                arrays[each.name], each.of(one.replica.parameters), rtol=1e-3, atol=1e-6
            )
    # Two stages on each rank, and the cut by measured cost; then D x C = 2 x 2 beside them
    how = {"schedule": "interleaved", "micro_batches": 4, "chunks": 2, "layers": None}
    counts, options = Counts(), {"clip_norm": 0.2, "batch_size": 13}
    one = alone(2, **options)
    for stages in (2, 1):
        found = in_stages(stages, 2, (), how, callbacks=[counts], **options)
        found.fit(2)
        same(found, one)
    assert counts.samples == 2 * 2 * len(DATA.train)


def first_gradient(found, case, near):
    """Loss and gradient of a batch are those of one process; rings send what they must."""
    replica, serial, sequences = found.replica, whole(*case), found.replica.sequences
    batch, before, random = DATA.train.take(slice(0, 12)), sequences.sent, replica.random
    loss, samples = replica.compute_gradient(batch)
    block = 12 * 2 * 6 * 4 * replica.dtype.itemsize  # samples, heads, positions, width
    ring = 2 * 1 + 2 * 1 + 2 * 2  # k and v twice, and their gradients
    ring += 2 * 1 * replica.pipeline.recompute
    assert sequences.sent - before == ring * block and samples == 12  # an attention per stage
    replica.random = random
    expected, _ = serial.compute_gradient(batch)
    team = found.replica.grid.context  # which gives the mean over all positions
    assert team.allreduce(np.array([loss]))[0] / 2 == pytest.approx(expected, rel=near)
    close(team.allreduce(replica.gradient.copy()) / 2, serial.gradient, found, near)


def test_stages_and_parts_from_one_folder(on_ranks, tmp_path):
    on_ranks(4, stages_go_on, str(tmp_path))


def stages_go_on(folder):
    """One process, then S x C = 2 x 2, C = 4, and 2 x 2 again, from a folder; then rank 1 fails."""
    model, options, rank = (True, 0.3), {"clip_norm": 0.2}, Team().rank
    one = fails_alone(model, 4, 14, **options)
    alone(1, model, "synchronous", checkpoint=str(Path(folder, str(rank))), **options)
    options["checkpoint"] = str(Path(folder, "0"))
    second = in_stages(2, 2, model, **options)
    assert second.resume() and second.steps == 4
    second.fit(1)
    third = divided(4, model, **options)
    assert third.resume() and len(third.history.epochs) == 2
    third.fit(1)
    fourth = in_stages(2, 2, model, **options)
    assert fourth.resume() and fourth.steps == 12
    # Rank 1 fails in the last action of step 15, when others have made their part of its gradient.
    stage, calls = fourth.replica.pipeline.stages[0], []
    proper = stage.backward_weights

    def fails(*arguments):
        calls.append(arguments)
        if len(calls) == 3 * 5:
            stage.backward_weights = proper
            raise ArithmeticError("no more")
        proper(*arguments)

    if rank == 1:
        stage.backward_weights = fails
    fails_and_recovers(fourth, 1)
    fourth.fit(1)
    same(fourth, one)
    refused_in_stages(fourth.replica.grid)


def fails_alone(model, epochs, step, **options):
    """One process that fails after a step of its last epoch, and makes this epoch again."""
    fails, team = [Fails(True, step)], Team().split(Team().rank)
    one = Trainer(whole(*model), DATA, "serial", team=team, callbacks=fails, **HOW | options)
    with pytest.raises(ArithmeticError):
        one.fit(epochs)
    one.team.recover()
    one.fit(1)
    return one


def refused_in_stages(grid):
    for other, replica, why in (
        (grid, whole(), "2 ranks of this grid share each sequence, but a TransformerReplica takes"),
        (Grid(Team(), 2, context=2), ContextReplica(whole(), grid), "have two grids: make both"),
    ):
        with pytest.raises(ValueError, match=why):
            PipelinedReplica(replica, other, sample=TOKENS[:3, :-1])
    with pytest.raises(ValueError, match="a sequence of 11 positions can't be divided evenly"):
        PipelinedReplica(ContextReplica(whole(), grid), grid, sample=TOKENS[:3, :11])


def test_data_and_context_from_one_folder(on_ranks, tmp_path):
    on_ranks(4, go_on, str(tmp_path))


def go_on(folder):
    """D x C = 2 x 2 with clipping, then ranks with whole sequences, then C = 4, from a folder."""
    options = {"clip_norm": 0.2, "checkpoint": f"{folder}/run"}
    one = alone(5, clip_norm=0.2)
    divided(2, **options).fit(2)
    second = Trainer(whole(), DATA, "synchronous", team=Team(), **HOW | options)
    assert second.resume() and len(second.history.epochs) == 2
    second.fit(1)
    third = divided(4, how={"one_copy": True}, **options)
    assert third.resume() and third.steps == 12
    third.fit(1)
    fourth = divided(2, **options, callbacks=[Counts()])
    assert fourth.resume()
    fourth.fit(1)
    assert fourth.callbacks[0].samples == len(DATA.train)
    same(fourth, one)
    masks_of_groups(folder)
    pieces = divided(4, (True, 0.3), accumulate=3)  # with the masks of one process in pieces
    pieces.fit(1)
    same(pieces, alone(1, (True, 0.3), accumulate=3))
    rounded = divided(2, how={"compression": "fp16"}, clip_norm=0.2)
    rounded.fit(1)
    near = pytest.approx(one.history.epochs[0]["val_loss"], rel=1e-3)
    assert rounded.history.epochs[0]["val_loss"] == near


def masks_of_groups(folder):
    """One group has no sample of an epoch's last batch, and draws no masks; resumed, it knows."""
    model, options = (True, 0.3), {"batch_size": 13}
    unbroken = divided(2, model, **options)
    unbroken.fit(2)
    divided(2, model, **options, checkpoint=f"{folder}/masks").fit(1)
    resumed = divided(2, model, **options, checkpoint=f"{folder}/masks")
    assert resumed.resume()
    resumed.fit(1)
    np.testing.assert_array_equal(resumed.replica.parameters, unbroken.replica.parameters)


def test_masks_go_on_and_ranks_fail(on_ranks, tmp_path):
    on_ranks(2, masks_go_on, str(tmp_path))


def masks_go_on(folder):
    """One process writes a checkpoint, and two go on with its masks; then rank 1 fails."""
    model, rank = (True, 0.3), Team().rank
    one = fails_alone(model, 3, 10)
    alone(2, model, "synchronous", checkpoint=str(Path(folder, str(rank))))
    team = Team()
    found = divided(
        2, model, checkpoint=str(Path(folder, "0")), callbacks=[Fails(team.rank == 1, 10)]
    )
    assert found.resume() and found.steps == 8
    fails_and_recovers(found, 2)
    found.fit(1)
    same(found, one)
    refused(found.replica.grid)
    strategy = strategies.Synchronous(found.team, compression="adasum")
    with pytest.raises(ValueError, match="adasum does not fit context parallelism"):
        Trainer(found.replica, DATA, strategy, **HOW)


def refused(grid):
    with pytest.raises(ValueError, match="layer 'flatten', a Flatten, mixes positions of a seq"):
        ContextReplica(LayeredReplica(mlp_layers([4, 3, 2])), grid)
    gpt = ContextReplica(whole(), grid)
    dense = ContextReplica(LayeredReplica([Dense("dense", 3, 2)], "mse"), grid)
    other = TransformerReplica(9, 12, 8, 2, 1, 0.3, seed=grid.team.rank)
    assert ContextReplica(other, grid).random.tolist() == [0, 0]  # as rank 0 draws
    tokens = np.zeros((2, 12), int)
    for replica, batch, why in (
        (gpt, (tokens[:, :7], tokens[:, :7]),
         "a sequence of 7 positions can't be divided evenly over 2 ranks: use sequences of 6 or 8, "
         "or 1, 7 ranks"),
        (gpt, (tokens, tokens[:, 0]),
         "targets of shape (2,): context parallelism takes one per position, (samples, 12, ...)"),
        (gpt, (np.zeros((2, 14), int),) * 2, "expected (samples, positions), at most 12 positions"),
        (dense, (np.zeros((2, 3)), np.zeros((2, 2))), "expected (samples, positions, ...)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(why)):
            replica.try_out(batch, True)


LINES = "from test_context_replica import DATA, whole", "def data(): return DATA"


def test_the_command_line(on_ranks, tmp_path):
    """--context with --pipeline trains, and writes what a run of one rank writes."""
    options = options_of(tmp_path, __file__, *LINES)
    four = same_commands(tmp_path, options, ["--context", 2, "--pipeline", 2], on_ranks, 4)
    assert four["ranks"] == 4 and four["config"]["context"] == {"context": 2}


def test_ranks_that_share_samples_take_no_stream():
    """Each rank would read samples of its own."""
    grid = Grid(Team(), context=1)
    model = TransformerReplica(7, 8, 8, heads=2, blocks=1, seed=1)
    tokens = np.zeros((4, 8), np.int64)
    found = ContextReplica(model, grid), (tokens, tokens), "synchronous"
    batches = stream(((tokens, tokens) for _ in range(2)), steps=2)
    with pytest.raises(ValueError, match=r"needs samples by number, and data .* are a stream"):
        Trainer(found[0], batches, found[2], progress=False)
    trainer = Trainer(*found, progress=False, batch_size=4)
    with pytest.raises(ValueError, match="this needs samples by number, not a stream"):
        trainer.evaluate(batches)


def test_what_does_not_fit_is_refused_in_one_line(on_ranks, tmp_path):
    words = ["--context", 3, "--data", "text", "--model", "transformer"]
    status, said = told(on_ranks, 3, tmp_path, words)
    line = "a sequence of 64 positions can't be divided evenly over 3 ranks: use sequences of 63 or"
    assert status == 2 and line in said and said.count("\n") == 1
    config = RunConfig.of(context=2, model="dense")
    with pytest.raises(ValueError, match=r"--context takes Keras models.*'dense' is a Den"):
        part_of_model("context", config, None, DenseReplica((4, 3, 2)))

"""Keras models that ranks divide, in every way: they train, save, resume and fail as one process.

`CUTS` has the ways and `MODELS` what each is tried on. Other files: what is refused, and what a
single layer or pass computes.
"""

import re
from pathlib import Path
from types import SimpleNamespace

import divided_models
import numpy as np
import pytest
from cut_models import (
    EACH,
    IMAGES,
    LABELS,
    SERIES,
    TEXT,
    by_position,
    cnn,
    compiled,
    convolutional,
    gpt,
    mlp,
    pooled,
    several,
    skipping,
    unusual,
)
from divided_models import (
    Fails,
    fails_and_recovers,
    in_float64,
    options_of,
    same_commands,
    same_file,
    same_training,
    same_vectors,
    train_command,
)
from keras_networks import keras, layers

from numba_kernels import optimizers
from numba_kernels.errors import PeerError
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data, model_parallel, models, replica, strategies, timeline
from tutorial_dl.config import RunConfig
from tutorial_dl.model_parallel import Grid, PipelinedReplica
from tutorial_dl.replica.consistency import DriftError
from tutorial_dl.training import callbacks
from tutorial_dl.training.setup import prepare

pytestmark = pytest.mark.xdist_group("keras")

# The ways, and the models ----------------------------------------------------------------------

PAIRS = {"*_dense_1": "columns", "*_dense_2": "rows", "positions": "rows", "*": "replicate"}
RULES = {
    gpt: {"*_attention": "heads", **PAIRS},
    cnn: {"conv_1": "columns", "conv_2": "rows",
          "gate": "columns", "up": "columns", "down": "rows"},
    pooled: {"attend": "heads", "pair_1": "columns", "pair_2": "rows"},
}  # fmt: skip
SCHEDULE = {gpt: "1f1b", convolutional: "zb_h1", skipping: "gpipe"}
# Sums forward and backward; the inputs of a model need no gradient
SUMS = {gpt: (3, 2), mlp: (1, 0), cnn: (2, 1)}


def tensor(build, model, team):
    return model_parallel.KerasPartReplica(model, Grid(team, tensor=team.size), RULES.get(build))


def sequence(build, model, team):
    rules = None if build is gpt else RULES[build]
    return model_parallel.KerasPartReplica(
        model, Grid(team, tensor=team.size), rules, sequence=True
    )


def context(build, model, team):
    return model_parallel.KerasPartReplica(model, Grid(team, context=team.size))


def pipeline(build, model, team):
    grid, sample = Grid(team, team.size), keras.tree.map_structure(lambda a: a[:2], build()[1][0])
    return PipelinedReplica(replica.of(model), grid, SCHEDULE[build], 3, sample=sample)


def shard_2(build, model, team):
    return model_parallel.ShardedReplica(model, team, 2)


def shard_3(build, model, team):
    return model_parallel.ShardedReplica(model, team, 3)


MODELS = {
    tensor: {mlp: {}, cnn: {"accumulate": 3}, gpt: {}},
    sequence: {gpt: {"validate": False}, pooled: {"validate": False, "eager": True}},
    context: {by_position: {"batch_size": 4}, gpt: {"batch_size": 4}},
    pipeline: {gpt: {}, convolutional: {}, skipping: {}},
    shard_2: {convolutional: {}},
    shard_3: {gpt: {"clip_norm": 0.3}, several: {}, unusual: {}},
}


def trains(cut, build, folder, near, fails=None, **options):
    """20 updates of 7 and 6 samples; the file is a plain .keras file; a failure, and on."""
    options = {"eager": False} | options
    epochs = 5 if options.get("batch_size") == 4 else 10
    serial, found, batch = divided_models.trainers(
        build, lambda model: cut(build, model, Team()), "synchronous",
        callbacks=[fails] * (fails is not None), **options,
    )  # fmt: skip
    if serial is not None:
        serial.fit(epochs)
    found.fit(epochs)
    same_training(found, serial, batch, near)
    if build is not unusual:  # whose classes Keras could not load
        path = Path(folder, f"{cut.__name__}_{build.__name__}.keras")
        found.save(path)
        if serial is not None:
            assert int(same_file(path, serial, batch, near).optimizer.iterations) == 20
    if serial is not None:
        serial.fit(1)
    found.fit(1)  # the weights still lie where they are trained
    same_training(found, serial, batch, near)
    CHECKS.get(cut, lambda *_: None)(found, build, batch, options)
    if fails is not None:
        fails.armed = found.team.rank == 1
        fails_and_recovers(found, 2)
        found.fit(1)  # masks agree again, too
        assert found.history.epochs[-1]["loss"] < found.history.epochs[0]["loss"]
    return found


def sums_of_tensor(found, build, batch, options):
    sums = found.replica.sums
    forward, backward = sums.forward, sums.backward
    with timeline.record() as seen:
        found.replica.compute_gradient(batch)
    expected = tuple(n * options.get("accumulate", 1) for n in SUMS[build])
    assert (sums.forward - forward, sums.backward - backward) == expected
    # Each is seen as what it is, with its waits, though a thread of TensorFlow's may compute it
    names = [name for name, *_ in seen.taken["spans"]]
    assert (names.count("sum forward"), names.count("sum backward")) == expected
    assert seen.taken["others"] == 0


def bytes_of_sequence(found, build, batch, options):
    """One allgather in front of and one behind each of two pairs, one to divide, one to join.

    `pooled` also divides and joins around the convolution, and joins for the norm that computes
    whole sequences; behind that norm there is an allreduce, which sends as much as two allgathers.
    """
    one, ranks = found.replica, found.team.size
    gathers, reduced = (6, 4) if build is gpt else (8, 5)
    see_parts = (8 if build is gpt else 6) * 12  # weights: two norms and two biases, the last norm
    sums = one.sums
    before = sums.forward, sums.backward, sums.gathers, sums.sent
    one.compute_gradient(batch)
    *counts, sent = np.subtract((sums.forward, sums.backward, sums.gathers, sums.sent), before)
    assert counts == [2, 2, gathers]
    sent = sums.team.allreduce(np.array([sent]))[0] / ranks  # parts may be uneven
    each = np.prod(batch[0].shape[:2]) * 12  # numbers between two pairs
    numbers = (reduced + gathers) * each + 2 * see_parts
    assert sent == pytest.approx((ranks - 1) / ranks * numbers * one.dtype.itemsize, rel=1e-12)


def bytes_of_rings(found, build, batch, options):
    one = found.replica
    ranks, before = one.grid.context.size, one.sequences.sent
    one.compute_gradient(batch)
    block = len(batch[1]) * (12 if build is gpt else 6) * 12 // ranks * one.dtype.itemsize
    rings = 2 * (ranks - 1) + 2 * (ranks - 1) + 2 * ranks  # k and v twice, and their gradients
    assert one.sequences.sent - before == rings * block


def held_by_shards(found, build, batch, options):
    shards, item = found.replica.shards, found.replica.dtype.itemsize
    held, n = shards.held(), found.strategy.holding.size
    share = n * item / found.team.size + 100 * item
    assert held["gradients"] <= share
    assert held["weights"] <= (share if found.replica.stage == 3 else n * item)
    assert shards._in_use == 0 and len(found.replica.stages) >= 2


CHECKS = {
    tensor: sums_of_tensor, sequence: bytes_of_sequence, context: bytes_of_rings,
    shard_2: held_by_shards, shard_3: held_by_shards,
}  # fmt: skip


def all_of(cut, folder, precise):
    """Each model of a way; `precise`: to twelve digits, without graphs, which take long to make."""
    cut = globals()[cut]
    for number, (build, options) in enumerate(MODELS[cut].items()):
        if not precise:
            fails = Fails() if number == 0 else None
            AFTER.get((cut, build), lambda _: None)(
                trains(cut, build, folder, 1e-5, fails, **options)
            )
            continue
        if build is unusual:
            continue
        with in_float64():
            how = {"eager": cut not in (pipeline, shard_2, shard_3), "validate": False}
            found = trains(cut, build, folder, 1e-12, **options | how)
            assert found.replica.dtype == np.float64


@pytest.mark.thorough(but=("tensor", "context", "pipeline", "shard_3"))
@pytest.mark.parametrize("cut", [cut.__name__ for cut in MODELS])
def test_two_ranks_train_save_and_fail_as_one(on_ranks, tmp_path, cut):
    on_ranks(2, all_of, cut, str(tmp_path), False, keras=True)


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [cut.__name__ for cut in MODELS if cut is not pipeline])
def test_three_ranks_train_as_one_to_twelve_digits(on_ranks, tmp_path, cut):
    on_ranks(3, all_of, cut, str(tmp_path), True, keras=True)


# What only some of them do ---------------------------------------------------------------------


def drift(found):
    """The weights of rank 1 are not the others', which is an error; refused options."""
    if found.team.rank == 1:
        mine = found.replica.holding.mine
        segment = next(one.here for one in mine if "norm_1" in one.here.name)
        segment.view(found.replica.parameters)[0] += 1
    with pytest.raises(DriftError, match="ranks hold different weights"):
        found.fit(1)
    found.team.recover()
    compressed = strategies.Synchronous(found.team, compression="fp16")
    with pytest.raises(ValueError, match="tensor groups of 2, 1 copy: leave out algorithm, one_c"):
        Trainer(found.replica, found.run.dataset, compressed)
    with pytest.raises(ValueError, match="lamb needs norms of whole layers, of which each rank ha"):
        found.strategy.check_optimizer(optimizers.get("lamb"))
    config = RunConfig.of(model="mlp", tensor=2, tensor_rules="dense_1=columns", quiet=True)
    with pytest.raises(ValueError, match="layer 'dense_2' lies behind 'dense_1', which is cut"):
        prepare(config, found.team)
    with pytest.raises(ValueError, match=r"a part of the weights: save by Trainer\.save, or give"):
        found.replica.save("part.keras")


def refused_sequences(found):
    config = RunConfig.of(model="mlp", tensor=2, sequence_parallel=True, quiet=True)
    with pytest.raises(ValueError, match="model 'mlp' has nothing between layers that are cut"):
        prepare(config, found.team)
    with pytest.raises(ValueError, match="leave it out, or use a grid without context"):
        model_parallel.KerasPartReplica(gpt()[0], Grid(found.team, context=2), sequence=True)
    with in_policy("mixed_bfloat16"):
        half = gpt()[0]
    with pytest.raises(ValueError, match=r"computes in bfloat16, .* sequence-parallel form"):
        model_parallel.KerasPartReplica(half, found.replica.grid, sequence=True)


def refused_context(found):
    # Layers without a seed of their own: all ranks draw the same masks.
    x, grid = keras.Input((12, 3)), found.replica.grid
    drop = keras.Model(x, layers.Dense(2)(layers.Dropout(0.5)(x)))
    one = model_parallel.KerasPartReplica(compiled(drop, loss="mse", metrics=None), grid)
    assert (grid.team.broadcast(one.random.copy()) == one.random).all()
    with pytest.raises(ValueError, match=r"targets of shape \(4,\); context parallelism"):
        one.try_out((SERIES[:4], EACH[:4, 0]), True)
    # A loss that is none of single positions
    model, one_hot = by_position()[0], np.eye(4, dtype="f4")[EACH]
    model.compile(loss=keras.losses.CosineSimilarity(axis=1))
    with pytest.raises(ValueError, match="'by_position': its loss is not a mean over positions"):
        model_parallel.KerasPartReplica(model, grid).try_out((SERIES, one_hot), True)
    model.compile(loss="mse", metrics=[lambda y, z: keras.ops.mean(z)])
    with pytest.raises(ValueError, match="'by_position': context parallelism takes metrics of K"):
        model_parallel.KerasPartReplica(model, grid).try_out((SERIES, one_hot), True)
    strategy = strategies.Synchronous(grid.team, compression="adasum")
    with pytest.raises(ValueError, match="adasum does not fit context parallelism"):
        Trainer(found.replica, found.run.dataset, strategy, progress=False)
    tokens = TEXT.train.take(slice(0, 4))
    stream = data.stream((tokens for _ in range(2)), steps=2)
    with pytest.raises(ValueError, match=r"needs samples by number, and data .* are a stream"):
        Trainer(found.replica, stream, "synchronous", progress=False)
    with pytest.raises(ValueError, match="this needs samples by number, not a stream"):
        found.evaluate(stream)


AFTER = {
    (tensor, gpt): drift, (sequence, pooled): refused_sequences, (context, gpt): refused_context,
}  # fmt: skip


class in_policy:
    """Within, Keras makes layers of this dtype policy."""

    def __init__(self, policy):
        self.policy = policy

    def __enter__(self):
        self.before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.policy)

    def __exit__(self, *error):
        keras.config.set_dtype_policy(self.before)


def in_half_precision():
    """20 steps as one process in half precision makes them; a step that overflows is skipped."""
    for policy, near in (("mixed_bfloat16", 2e-2), ("mixed_float16", 4e-3)):
        with in_policy(policy):
            serial, found, _ = divided_models.trainers(
                cnn, lambda model: tensor(cnn, model, Team()), "synchronous", "sgd", validate=False
            )
        found.replica.model.run_eagerly = True
        for one in (serial, found):
            if one is not None:
                one.fit(10)
        assert found.replica.dtype == np.float32
        holding = found.replica.holding
        ours = holding.joined(found.replica.parameters, 0, holding.size)
        if serial is not None:
            expected = serial.replica.parameters
            np.testing.assert_allclose(ours, expected, rtol=0, atol=near * np.abs(expected).max())
            for mine, theirs in zip(found.history.epochs, serial.history.epochs, strict=True):
                assert mine["loss"] == pytest.approx(theirs["loss"], rel=near)
            scales = [one.strategy.loss_scale for one in (serial, found)]
            assert scales == [None, None] or scales[0].values == scales[1].values
    scale = found.strategy.loss_scale
    scale.values = [2.0**60, 0]
    weights = found.replica.parameters.copy()
    loss, samples = found.strategy.step((IMAGES[:4], LABELS[:4]))
    assert samples == 4 and np.isfinite(loss)
    np.testing.assert_array_equal(found.replica.parameters, weights)
    assert scale.values == found.strategy.save()[0]["loss_scale"] == [2.0**59, 0]


def test_half_precision(on_ranks):
    on_ranks(2, in_half_precision, keras=True)


@pytest.mark.thorough(but="convolutional-cut2")
@pytest.mark.parametrize(
    ("build", "cut"),
    [
        (gpt, ["block_1_norm_2", "norm"]),
        (skipping, ["middle", "last"]),
        (convolutional, ["dense", "last"]),
    ],
)
def test_stages_are_the_whole_model(build, cut):
    """Three stages on one rank, B and W together or apart, and B with activations anew."""
    model, batch = build()
    whole = replica.of(model)
    loss, _ = whole.compute_gradient(batch)
    gradient, weights, found = (
        whole.gradient.copy(),
        whole.parameters.copy(),
        whole.predict(batch[0]),
    )
    metrics = whole.evaluate([batch])
    for apart, recompute in ((False, False), (True, False), (True, True)):
        again = replica.of(model)
        again.parameters[:] = weights
        parts = PipelinedReplica(
            again, Grid(Team(), 1), "interleaved", 4, 3, cut, batch[0], recompute
        )
        for stage in parts.pipeline.stages:
            stage.apart = apart
        assert parts.compute_gradient(batch) == (pytest.approx(loss, rel=1e-5), 13)
        size = np.abs(gradient).max()
        np.testing.assert_allclose(parts.gradient, gradient, rtol=0, atol=1e-5 * size)
        assert parts.evaluate([batch]) == pytest.approx(metrics, rel=1e-5)
        np.testing.assert_allclose(parts.predict(batch[0]), found, rtol=1e-4, atol=1e-6)


# Checkpoints -----------------------------------------------------------------------------------


class Counts(callbacks.Callback):
    """Counts the samples of all steps."""

    samples = 0

    def on_step_end(self, trainer, loss, samples):
        self.samples += samples


def in_stages(model, grid, schedule="zb_h1", **options):
    part = model_parallel.KerasPartReplica(model, grid, **options)
    sample = TEXT.train.take(slice(0, 2))[0]
    return PipelinedReplica(part, grid, schedule, 3, layers=["block_1_norm_2"], sample=sample)


def goes_on(folder):
    """One rank, then every way on 4 ranks, then one, from one folder: an epoch of 2 steps each."""
    ways = [
        lambda model: model_parallel.KerasPartReplica(model, Grid(Team(), tensor=2)),
        lambda model: model_parallel.KerasPartReplica(model, Grid(Team(), tensor=2), sequence=True),
        lambda model: model_parallel.KerasPartReplica(model, Grid(Team(), context=2)),
        lambda model: model_parallel.KerasPartReplica(model, Grid(Team(), tensor=2, context=2)),
        lambda model: model_parallel.ShardedReplica(model, Team(), 3),
        lambda model: model_parallel.ShardedReplica(model, Team(), 2),
        lambda model: in_stages(model, Grid(Team(), 2, 2), "1f1b"),
        lambda model: in_stages(model, Grid(Team(), 2, 2), sequence=True),
        lambda model: in_stages(model, Grid(Team(), 2, context=2)),
    ]
    # With Adam's usual epsilon, the last digit of a gradient near 0 decides an update's sign.
    adam, batch = optimizers.Adam(learning_rate=0.01, epsilon=0.01), gpt()[1]
    samples = data.Data.of(*batch)
    dataset = data.Dataset("some", samples, samples, int(batch[1].max()) + 1)
    fails, counts = Fails(), Counts()
    how = {
        "optimizer": adam, "learning_rate": 0.01, "progress": False, "clip_norm": 0.5,
        "batch_size": 12,  # of 13 samples, so in each second step some copies have none
        "checkpoint": f"{folder}/run",
    }  # fmt: skip
    serial = None
    if Team().rank == 0:
        serial = Trainer(gpt()[0], dataset, team=Team().split(0), **how)
        serial.fit(1)
        saving, serial.run.saving = serial.run.saving, None
        serial.fit(len(ways))
    else:
        Team().split(1)
    Team().barrier()
    for number, way in enumerate(ways, start=1):
        model = gpt()[0]
        part = way(model)
        if not isinstance(part, PipelinedReplica | model_parallel.ShardedReplica):
            part.model.run_eagerly = True  # a graph takes longer to make than two steps
        counts.samples = 0
        found = Trainer(part, dataset, callbacks=[fails, counts], **how)
        assert found.resume() and found.steps == 2 * number
        found.fit(1)
        assert counts.samples == 13
    same_training(found, serial, batch, 2e-5)
    found.save(f"{folder}/whole.keras")
    if serial is not None:
        same_file(f"{folder}/whole.keras", serial, batch, 1e-5)
        same_vectors(serial, saving, 1 + len(ways), 1e-5)
    # Rank 1 fails while rank 0, of the same stage, waits for its keys within a graph.
    found.run.saving = None
    fails.armed = Team().rank == 1
    fails_and_recovers(found, 2)
    found.fit(1)
    assert found.history.epochs[-1]["loss"] < found.history.epochs[0]["loss"]


@pytest.mark.thorough
def test_every_way_goes_on_from_every_other(on_ranks, tmp_path):
    on_ranks(4, goes_on, str(tmp_path), keras=True)


def masks_of_ranks(folder):
    """Of shards each rank has masks and statistics of its own, as in data parallelism."""
    team = Team()

    def trainer(stage, **options):
        model, batch = mlp()
        dataset = data.Dataset("some", data.Data.of(*batch), data.Data.of(*batch), 3)
        part = model_parallel.ShardedReplica(model, team, stage) if stage > 1 else model
        strategy = strategies.Synchronous(team, shard=1 if stage < 2 else 0) if stage < 2 else None
        how = {"batch_size": 6, "progress": False, "optimizer": "momentum"}
        return Trainer(part, dataset, strategy or "synchronous", **how | options)

    expected = trainer(1)
    expected.fit(3)
    for number, stage in enumerate((3, 1, 2), start=1):
        found = trainer(stage, checkpoint=f"{folder}/run")
        assert found.resume() == (number > 1)
        found.fit_to(number)
    for mine, theirs in zip(found.history.epochs, expected.history.epochs, strict=True):
        assert mine["val_loss"] == pytest.approx(theirs["val_loss"], rel=3e-5)
    ours, theirs = found.strategy.update.weights(), expected.replica.parameters
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    # The best epoch's weights come back; parts of two epochs make no model
    best = callbacks.EarlyStopping("epoch", patience=9, mode="min", restore_best=True)
    found = trainer(3, callbacks=[best])
    found.fit(1)
    first = found.replica.shards.weights()
    found.fit(1)
    np.testing.assert_array_equal(found.replica.shards.weights(), first)
    # A loss that is not finite is reported by the rank that has it, before it reaches the others.
    bad = np.full((2, 6, 6, 1), np.nan if team.rank == 0 else 0.0, "f4")
    error = FloatingPointError if team.rank == 0 else PeerError
    with pytest.raises(error, match="loss is nan"):
        try:
            found.strategy.step((bad, np.zeros(2, int)))
        except FloatingPointError as error:
            team.abort(error)
            raise
    team.recover()


@pytest.mark.thorough
def test_shards_have_masks_of_their_own(on_ranks, tmp_path):
    on_ranks(2, masks_of_ranks, str(tmp_path), keras=True)


# The command -----------------------------------------------------------------------------------

LINES = "from test_cuts import DATA, whole", "def data(): return DATA"
PARTS = [data.Data.of(*TEXT.train.take(slice(*ends))) for ends in ((0, 36), (36, 60))]
DATA = data.Dataset("text", *PARTS, TEXT.classes)


def whole():
    return models.gpt(TEXT, seed=1, width=12, heads=2, blocks=1)


@pytest.mark.thorough
@pytest.mark.parametrize("cut", ["--tensor 2 --sequence-parallel", "--context 2 --pipeline 2"])
def test_the_command_line(on_ranks, tmp_path, cut):
    """A cut by options trains, and writes what a run of one rank writes."""
    ranks, options = 4 if "--pipeline" in cut else 2, options_of(tmp_path, __file__, *LINES)
    found = same_commands(tmp_path, options, cut.split(), on_ranks, ranks, 1e-5)
    axis = cut[2:].split()[0]
    assert found["ranks"] == ranks and found["config"][axis][axis] == 2


DIES = """
from tutorial_dl.data import digits
DATA = digits()
import os, signal
from mpi4py import MPI
from tutorial_dl.data import Data, Dataset
class Dies(Data):
    times = 0
    def take(self, samples):
        Dies.times += 1
        if MPI.COMM_WORLD.rank == 1 and Dies.times > 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().take(samples)
def data():
    train = Dies(DATA.train.inputs, DATA.train.targets)
    return Dataset('some', train, DATA.validation, classes=DATA.classes)
"""


def a_rank_dies(tmp_path):
    """The command ends, in one line; `make soak` does it, too."""
    _, _, *data = options_of(tmp_path, __file__, DIES)
    done = train_command("--model", "mlp", *data, "--tensor", 2, "--quiet")
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    line = (
        r"error: rank 1 failed: its process \d+ has ended, by signal SIGKILL \(out of memory\?\)\n"
    )
    assert re.fullmatch(line, done.stderr), done.stderr


@pytest.mark.thorough
def test_a_rank_that_dies_ends_all(tmp_path):
    a_rank_dies(tmp_path)


def test_models_of_numpy_are_refused_with_what_to_use():
    from tutorial_dl.training.setup import cut

    team = SimpleNamespace(size=2, rank=0)
    dataset = SimpleNamespace(train=None, name="some")
    for axis, lesson in (("tensor", "TensorReplica"), ("context", "RingAttention")):
        config = RunConfig.of(model="dense", **{axis: 2})
        words = rf"--{axis} takes Keras models, such as --model gpt .*'dense' is a Dense.*{lesson}"
        with pytest.raises(ValueError, match=words):
            cut(config, team, replica.DenseReplica((4, 3, 2)), dataset)
    words = "ContextReplica is gone: train a Keras model, such as gpt, by KerasContextReplica or"
    with pytest.raises(ImportError, match=words):
        from tutorial_dl.model_parallel import ContextReplica  # noqa: F401
    with pytest.raises(ImportError, match="LayeredTensorReplica is gone: train a Keras model"):
        _ = model_parallel.LayeredTensorReplica
    with pytest.raises(
        ValueError, match=r"shard 3 takes Keras models.*a DenseReplica: use shard 1"
    ):
        model_parallel.ShardedReplica(replica.DenseReplica((4, 3)), Team())

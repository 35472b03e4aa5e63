"""A Trainer with a pipeline: the same history and weights as one process, in any cut."""

import re
from pathlib import Path

import numpy as np
import pytest
from commands_here import run_here
from commands_on_ranks import told
from divided_models import Fails, fails_and_recovers, options_of, same_commands, train_command

from numba_kernels.team.team import Team
from tutorial_dl import Trainer
from tutorial_dl.data import Data, Dataset
from tutorial_dl.model_parallel import Grid, PipelinedReplica
from tutorial_dl.replica import TransformerReplica

RANDOM = np.random.default_rng(5)
TOKENS = RANDOM.integers(0, 9, (61, 7))
DATA = Dataset(
    "tokens",
    Data.of(TOKENS[:40, :-1], TOKENS[:40, 1:]),
    Data.of(TOKENS[40:, :-1], TOKENS[40:, 1:]),
    classes=9,
)
HOW = {"optimizer": "momentum", "learning_rate": 0.1, "batch_size": 12, "progress": False}


def whole(dropout=0.0):
    return TransformerReplica(9, 6, 8, heads=2, blocks=3, seed=2, dtype="float64", dropout=dropout)


def trainer(pipeline, layers=None, dropout=0.0, **options):
    grid = Grid(Team(), pipeline)
    replica = PipelinedReplica(
        whole(dropout),
        grid,
        "1f1b",
        5,
        layers=layers,
        sample=TOKENS[:3, :-1],
        recompute=pipeline == 4,
    )  # fmt: skip
    return Trainer(replica, DATA, "synchronous", **HOW | options)


def serial(epochs, dropout=0.0, strategy="serial", **options):
    alone = Trainer(whole(dropout), DATA, strategy, team=Team().split(Team().rank), **HOW | options)
    alone.fit(epochs)
    return alone


def same(found, alone, folder):
    """Equal histories, metrics, predictions, and the same file on disk."""
    for mine, theirs in zip(found.history.epochs, alone.history.epochs, strict=True):
        for name in ("loss", "val_loss", "val_accuracy"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-11), name
    x = DATA.validation.inputs
    np.testing.assert_allclose(found.predict(x), alone.replica.predict(x), rtol=1e-10)
    found.save(Path(folder, "pipelined.npz"))
    with np.load(Path(folder, "pipelined.npz")) as arrays:
        for one in alone.replica.segments:
            np.testing.assert_allclose(
                arrays[one.name], one.view(alone.replica.parameters), rtol=1e-9, atol=1e-13
            )


def test_copies_of_a_pipeline_train_as_one_process(on_ranks, tmp_path):
    on_ranks(4, train, str(tmp_path))


def train(folder):
    for clip_norm in (None, 0.2):  # the norm of the first gradients is about 1
        alone = serial(3, clip_norm=clip_norm)
        found = trainer(2, clip_norm=clip_norm)
        found.fit(3)
        same(found, alone, folder)


def test_a_checkpoint_goes_on_under_another_cut(on_ranks, tmp_path):
    on_ranks(4, go_on, str(tmp_path))


def go_on(folder):
    """Two pipelines of two, then one of four cut by hand, then no pipeline, from one folder."""
    checkpoint = {"checkpoint": f"{folder}/run"}
    alone = serial(4)
    trainer(2, **checkpoint).fit(1)
    cut = ["block_1_mlp", "block_2_mlp", "norm"]
    second = trainer(4, cut, **checkpoint)
    assert second.resume()
    second.fit(2)
    third = Trainer(whole(), DATA, "synchronous", team=Team(), **HOW, **checkpoint)
    assert third.resume() and len(third.history.epochs) == 3
    third.fit(1)
    same(third, alone, folder)


def test_masks_go_on_in_a_pipeline(on_ranks, tmp_path):
    on_ranks(4, masks_go_on, str(tmp_path))


def masks_go_on(folder):
    """One process writes a checkpoint, and a pipeline of four goes on with its dropout masks."""
    alone = serial(2, dropout=0.3)
    folder = Path(folder)
    serial(1, dropout=0.3, strategy="synchronous", checkpoint=str(folder / str(Team().rank)))
    found = trainer(4, dropout=0.3, checkpoint=str(folder / "0"))
    assert found.resume()
    found.fit(1)
    same(found, alone, folder)


def test_training_goes_on_after_a_failure(on_ranks, tmp_path):
    on_ranks(3, fails_and_goes_on, str(tmp_path))


def fails_and_goes_on(folder):
    """One process fails in its first epoch, and so does rank 1; both go on with a whole epoch."""
    rank = Team().rank
    alone = Trainer(
        whole(), DATA, "serial", team=Team().split(rank), callbacks=[Fails(True, 3)], **HOW
    )
    with pytest.raises(ArithmeticError):
        alone.fit(2)
    alone.team.recover()
    alone.fit(2)
    found = trainer(3, callbacks=[Fails(rank == 1, 3)])
    fails_and_recovers(found, 2)
    found.fit(2)
    same(found, alone, folder)


LINES = "from test_pipelined_training import DATA, whole", "def data(): return DATA"


@pytest.mark.thorough
def test_the_command_line(tmp_path):
    """--pipeline with its options trains, and writes what a run of one rank writes."""
    cut = ["--pipeline", 2, "--pipeline-schedule", "zb_h1"]
    two = same_commands(tmp_path, options_of(tmp_path, __file__, *LINES), cut)
    assert two["ranks"] == 2 and two["config"]["pipeline"]["pipeline_schedule"] == "zb_h1"


@pytest.mark.thorough
@pytest.mark.parametrize(("rank", "stage"), [(3, 1), (0, 0)])
def test_a_killed_stage_is_named_by_the_command_line(tmp_path, rank, stage):
    dies = """
import os, signal
from mpi4py import MPI
from tutorial_dl.data import Data, Dataset
class Dies(Data):
    times = 0
    def take(self, samples):
        Dies.times += 1
        if MPI.COMM_WORLD.rank == KILLED and Dies.times > 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().take(samples)
def data():
    train = Dies(DATA.train.inputs, DATA.train.targets)
    return Dataset('tokens', train, DATA.validation, classes=9)
"""
    options = options_of(tmp_path, __file__, LINES[0], f"KILLED = {rank}", dies)[2:]
    cut = ["--pipeline", 2, "--context", 2, "--model", "gpt", "--cut-at", "block_2_norm_1"]
    done = train_command(*options, *cut, "--batch-size", 4, "--epochs", 3, "--quiet")
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    # Either neighbour may be the one that tells, by its own numbers
    line = rf"(?=.*rank {rank} )rank \d \(stage {stage}: \w+ to \w+.*\) failed: its process"
    assert re.match(f"error: {line}.* by signal SIGKILL", done.stderr), done.stderr


@pytest.mark.thorough
def test_a_stage_that_raises_in_a_graph_is_told_in_one_line(tmp_path):
    raises = """
import keras, tensorflow as tf
from mpi4py import MPI
CALLS = []
@keras.saving.register_keras_serializable()
class Raises(keras.layers.Layer):
    makes_no_mask = by_position = True
    def call(self, x):
        def fails(a):
            CALLS.append(1)
            if len(CALLS) > 60 and MPI.COMM_WORLD.rank == 1:
                raise ArithmeticError("no more")
            return a
        y = tf.numpy_function(fails, [x], x.dtype)
        y.set_shape(x.shape)
        return y
def model():
    layers = keras.layers
    one = keras.Sequential([keras.Input((9,)), layers.Dense(4, name="a"), layers.Dense(4, name="b"),
                            Raises(name="raises"), layers.Dense(3, name="c")])
    one.compile("sgd", "mse")
    return one
def rows():
    import numpy as np
    return np.ones((24, 9), "f4"), np.ones((24, 3), "f4")
"""
    file = tmp_path / "mine.py"
    file.write_text(raises)
    options = ["--model", f"{file}:model", "--data", f"{file}:rows"]
    done = train_command(*options, "--pipeline", 2, "--cut-at", "b", "--epochs", 99, "--quiet")
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert re.match(r"error: rank 1 \(stage 1: b, raises, c\) failed: .*no more", done.stderr)
    assert f"({file}, line 12)" in done.stderr, done.stderr


@pytest.mark.thorough
def test_a_rank_that_dies_as_python_ends_holds_up_nobody(tmp_path):
    """MPI_Finalize of the others would wait for it for ever."""
    dies = """
import atexit, os, signal
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    atexit.register(os.kill, os.getpid(), signal.SIGKILL)
"""
    options = options_of(tmp_path, __file__, *LINES, dies)
    done = train_command(*options, "--pipeline", 2, "--batch-size", 12, "--epochs", 1, "--quiet")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["-n", 3, "--pipeline", 2], "-n 3 can't be divided into pipelines of 2 ranks: use a mult"),
        (["--chunks", 2], "--chunks has no effect without --pipeline"),
        (["--pipeline", 2, "--chunks", 2], "--chunks 2 needs --pipeline-schedule interleaved"),
        (["--pipeline", 2, "--accumulate", 2], "--accumulate does not fit --pipeline: use --micro"),
        (["--pipeline", 2, "--strategy", "downpour"], "--pipeline with strategy 'downpour'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_ranks_are_started(capfd, options, line):
    done = run_here(capfd, "train", "--quiet", *map(str, options))
    assert done.returncode == 2 and line in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--pipeline", 2, "--model", "dense"], "a DenseReplica can't be cut into stages"),
        (["--pipeline", 2, "--data", "text", "--model", "transformer", "--cut-at", "no"],
         "the model has no layer 'no': embedding, block_1_attend"),
    ],
)  # fmt: skip
def test_what_ranks_refuse_is_told_in_one_line(on_ranks, tmp_path, options, line):
    status, said = told(on_ranks, 2, tmp_path, options)
    assert status == 2 and line in said and said.count("\n") == 1

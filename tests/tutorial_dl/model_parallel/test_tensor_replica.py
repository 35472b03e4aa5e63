"""Numpy models whose layers are cut train as one process, from Python and the command line."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from divided_models import (
    Fails,
    fails_and_recovers,
    options_of,
    same_commands,
    same_training,
    same_vectors,
    train_command,
)

from numba_kernels.team.team import Team
from tutorial_dl import Trainer
from tutorial_dl.config import RunConfig
from tutorial_dl.data import Data, Dataset
from tutorial_dl.model_parallel import Grid, LayeredTensorReplica
from tutorial_dl.model_parallel.tensor_replica import rules_of
from tutorial_dl.replica import DenseReplica, LayeredReplica, TransformerReplica
from tutorial_dl.replica.layered import cnn_layers, mlp_layers
from tutorial_dl.replica.layers import Dense
from tutorial_dl.training.setup import part_of_model

TOKENS = np.random.default_rng(5).integers(0, 9, (40, 12))
SOME = Data.of(TOKENS[:, :-1], TOKENS[:, 1:])  # 11 positions, which neither 2 nor 3 ranks divide
DATA = Dataset("tokens", SOME, SOME, classes=9)


def whole(dropout=0.0):
    return TransformerReplica(9, 11, 12, 6, 1, dropout, seed=3, dtype="float64")


def trainers(grid, dropout, sequence, callbacks=(), **options):
    """The same training by one process, on rank 0 only, and by the ranks of a grid."""
    how = dict(optimizer="momentum", learning_rate=0.05, batch_size=13, progress=False, **options)
    alone, serial = Team().split(Team().rank), None
    if Team().rank == 0:
        serial = Trainer(whole(dropout), DATA, "synchronous", team=alone, **how)
    part = LayeredTensorReplica(whole(dropout), grid, sequence=sequence)
    strategy = "synchronous"
    return serial, Trainer(part, DATA, strategy, callbacks=callbacks, **how)


def trains(folder):
    """Uneven parts; the file is that of the whole model; a failure, and on."""
    grid, fails = Grid(Team(), tensor=Team().size), Fails()
    batch = SOME.take(slice(0, 13))
    for sequence in (False, True):
        serial, found = trainers(grid, 0.2, sequence, callbacks=[fails])
        if serial is not None:
            serial.fit(5)
        found.fit(5)
        same_training(found, serial, batch, 1e-12)
        found.save(f"{folder}/{sequence}.npz")
        if serial is not None:
            with np.load(f"{folder}/{sequence}.npz") as file:
                for one in serial.replica.segments:
                    theirs = one.of(serial.replica.parameters)
                    np.testing.assert_allclose(file[one.name], theirs, rtol=0, atol=1e-12)
    if grid.team.size == 2:
        fails.armed = grid.team.rank == 1
        fails_and_recovers(found, 3)
        found.fit(1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_train_as_one(on_ranks, tmp_path, ranks):
    on_ranks(ranks, trains, str(tmp_path))


def together(folder):
    """One rank, then D x T = 2 x 2 in both forms, then one, from one folder, with clipping."""
    options = {"checkpoint": f"{folder}/run", "clip_norm": 0.5}
    grid = Grid(Team(), tensor=2)
    serial, first = trainers(grid, 0.0, False, **options)
    if serial is not None:
        serial.fit(1)
        saving, serial.run.saving = serial.run.saving, None
        serial.fit(2)
    Team().barrier()
    second = trainers(grid, 0.0, True, **options)[1]
    for found in (first, second):
        assert found.resume()
        found.fit(1)
    same_training(second, serial, SOME.take(slice(0, 13)), 1e-12)
    if serial is not None:
        same_vectors(serial, saving, 3, 1e-12)


def test_with_data_parallelism_and_checkpoints(on_ranks, tmp_path):
    on_ranks(4, together, str(tmp_path))


def test_the_command_line(on_ranks, tmp_path):
    """--tensor with --sequence-parallel trains, and writes what a run of one rank writes."""
    lines = "from test_tensor_replica import DATA, whole", "def data(): return DATA"
    words = ["--tensor", 2, "--sequence-parallel"]
    options = options_of(tmp_path, __file__, *lines)
    found = same_commands(tmp_path, options, words, on_ranks, 2)
    assert found["ranks"] == 2 and found["config"]["tensor"]["sequence_parallel"] is True


DIES = """
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


@pytest.mark.thorough
def test_a_rank_that_dies_ends_all(tmp_path):
    """`make soak` does it with a Keras model, too."""
    options = options_of(tmp_path, __file__, "from test_tensor_replica import DATA, whole", DIES)
    a_rank_dies(*options, "--batch-size", 4)


def a_rank_dies(*options):
    done = train_command(*options, "--tensor", 2, "--quiet")
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "a rank was ended by signal SIGKILL" in done.stderr


def test_rules_that_fit():
    heads = {"block_1_attention": "heads"}
    pair = {"block_1_dense_1": "columns", "block_1_dense_2": "rows"}
    assert rules_of(whole().layers) == heads | pair
    dense = {"layer_1": "columns", "layer_2": "rows"}  # and not layer_2 with layer_3
    assert rules_of(mlp_layers([4, 6, 6, 2])) == dense
    assert rules_of(cnn_layers((4, 4, 1), [2, 2], 3)) == {"conv_1": "columns", "conv_2": "rows"}


def test_what_does_not_fit_is_refused_in_one_line():
    config = RunConfig.of(tensor=2, model="dense")
    with pytest.raises(ValueError, match=r"--tensor takes Keras models.*'dense' is a Dense"):
        part_of_model("tensor", config, None, DenseReplica((4, 3, 2)))
    grid = SimpleNamespace(axes={"data": 1, "pipeline": 1, "context": 2, "tensor": 2})
    with pytest.raises(ValueError, match=re.escape("leave --context out, or use a Keras model")):
        LayeredTensorReplica(whole(), grid)
    grid = SimpleNamespace(axes={"data": 1, "pipeline": 1, "tensor": 2})
    with pytest.raises(ValueError, match="the model has no layers to cut: neither Attention, nor"):
        LayeredTensorReplica(LayeredReplica([Dense("only", 4, 2)]), grid)

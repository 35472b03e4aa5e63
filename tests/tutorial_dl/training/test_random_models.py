"""Random Keras models: three ranks, one rank and Keras's own loop end with the same weights."""

import pytest

pytestmark = pytest.mark.xdist_group("keras")

# Of the first 18 numbers, the first ten here have every kind of data, layer, loss, optimizer,
# regulariser, constraint and way that occurs in any of them. `make soak` trains 500 models.
MODELS = [0, 2, 5, 6, 9, 10, 11, 12, 16, 17, 24, 38]


def several(numbers):
    from mpi4py import MPI
    from random_models import check

    from tutorial_dl import Team

    check(numbers, Team(), Team(MPI.COMM_SELF))


def test_ranks_train_random_models_as_keras_does(on_ranks):
    on_ranks(3, several, MODELS, keras=True)

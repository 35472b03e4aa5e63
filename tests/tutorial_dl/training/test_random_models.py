"""Random Keras models: three ranks, one rank and Keras's own loop end with the same weights."""

import pytest

pytestmark = pytest.mark.xdist_group("keras")

MODELS = 18  # `make soak` trains 500


def several(first, last):
    from mpi4py import MPI
    from random_models import check

    from tutorial_dl import Team

    check(range(first, last), Team(), Team(MPI.COMM_SELF))


def test_ranks_train_random_models_as_keras_does(on_ranks):
    on_ranks(3, several, 0, MODELS, keras=True)

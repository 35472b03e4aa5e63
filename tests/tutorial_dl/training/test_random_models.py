"""Random Keras models: three ranks, one rank and Keras's own loop end with the same weights."""

import pytest
from mpi4py import MPI
from random_models import check

from tutorial_dl import Team

pytestmark = pytest.mark.xdist_group("keras")

# Chosen so that few models have every choice and layer, and most pairs of choices, that
# random_models.py draws for the first 60. `make soak` trains the first 500.
MODELS = (5, 9, 24, 31, 37, 40, 42, 48, 49, 51, 52, 55)


def several(numbers):
    check(numbers, Team(), Team(MPI.COMM_SELF))


@pytest.mark.thorough
def test_ranks_train_random_models_as_keras_does(on_ranks):
    on_ranks(3, several, MODELS, keras=True)

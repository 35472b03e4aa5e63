"""Random Keras models: three ranks, one rank and Keras's own loop end with the same weights."""

import itertools

import pytest
from random_models import Drawn

pytestmark = pytest.mark.xdist_group("keras")

# Chosen so that few models have every choice, and most pairs of choices, of random_models.py.
# `make soak` trains the first 500.
MODELS = (3, 6, 41, 24, 36, 31, 12, 9, 25, 54, 42, 37)


def several(numbers):
    from mpi4py import MPI
    from random_models import check

    from tutorial_dl import Team

    check(numbers, Team(), Team(MPI.COMM_SELF))


def test_ranks_train_random_models_as_keras_does(on_ranks):
    on_ranks(3, several, MODELS, keras=True)


def choices(number):
    drawn = Drawn(number)
    of_heads = [f"loss {loss}" for *_, loss in drawn.heads]
    names = ("dtype", "kind", "optimizer", "way", "weighted", "by_step")
    return {*of_heads, f"{len(drawn.heads)} heads", *(f"{n} {getattr(drawn, n)}" for n in names)}


def test_the_models_have_every_choice_and_most_pairs():
    def pairs(numbers):
        return {p for n in numbers for p in itertools.combinations(sorted(choices(n)), 2)}

    everything = set().union(*map(choices, range(60)))
    assert set().union(*map(choices, MODELS)) == everything
    assert len(pairs(MODELS)) >= len(pairs(range(18)))

"""Random Keras models: three ranks, one rank and Keras's own loop end with the same weights."""

import itertools
import sys
from unittest import mock

import pytest
from random_models import Drawn

pytestmark = pytest.mark.xdist_group("keras")

# Chosen so that few models have every choice and layer, and most pairs of choices, that
# random_models.py draws for the first 60. `make soak` trains the first 500.
MODELS = (5, 9, 24, 31, 37, 40, 42, 48, 49, 51, 52, 55)


def several(numbers):
    from mpi4py import MPI
    from random_models import check

    from tutorial_dl import Team

    check(numbers, Team(), Team(MPI.COMM_SELF))


@pytest.mark.thorough
def test_ranks_train_random_models_as_keras_does(on_ranks):
    on_ranks(3, several, MODELS, keras=True)


def choices(number):
    drawn = Drawn(number)
    of_heads = [f"loss {loss}" for *_, loss in drawn.heads]
    names = ("dtype", "kind", "optimizer", "way", "weighted", "by_step")
    return {*of_heads, f"{len(drawn.heads)} heads", *(f"{n} {getattr(drawn, n)}" for n in names)}


def layers(number):
    """The layers with what was drawn for them, regularisers and constraints of the model."""
    keras, found = mock.MagicMock(), set()
    with mock.patch.dict(sys.modules, keras=keras):  # only records what is called
        Drawn(number).model()
    for name, words, options in keras.mock_calls:
        room, _, kind = name.partition(".")
        if room in ("layers", "regularizers", "constraints") and "(" not in kind:
            drawn = ("use_bias", "mask_zero", "return_sequences", "padding", "activation")
            found |= {kind, *(f"{kind} {n}={options[n]}" for n in drawn if n in options)}
            if kind == "Conv2D":
                found.add(f"Conv2D, {options['padding']}, {options['activation']}")
            if kind == "Dense":
                found.add(f"Dense, {words[1]}")
    return found


def test_the_models_have_every_choice_and_layer_and_most_pairs():
    def pairs(numbers):
        return {p for n in numbers for p in itertools.combinations(sorted(choices(n)), 2)}

    everything = set().union(*map(choices, range(60)))
    assert set().union(*map(choices, MODELS)) == everything
    assert len(pairs(MODELS)) >= len(pairs(range(18)))
    everything = set().union(*map(layers, range(60)))
    assert {"Dense use_bias=False", "Conv2D, valid, relu", "GRU", "UnitNorm"} <= everything
    assert set().union(*map(layers, MODELS)) == everything

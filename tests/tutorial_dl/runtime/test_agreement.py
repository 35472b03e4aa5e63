"""Before they train, ranks compare what they were given; one line says what differs."""

import numpy as np
import pytest
from keras_networks import keras, layers
from rank_tests import with_ranks

from tutorial_dl import Team, Trainer
from tutorial_dl.runtime.agreement import difference

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
SAMPLES = "; all ranks must be given the same samples in the same order, since the Trainer divides"
CASES = {  # what rank 1 has of its own: what all ranks are told
    "units": "units of layer 2 (dense): 5 on rank 1, 4 on rank 0",
    "activation": "activation of layer 2 (dense): tanh on rank 1, relu on rank 0",
    "rate": "rate of layer 3 (dropout): 0.2 on rank 1, 0.1 on rank 0",
    "loss": "loss: mae on rank 1, mse on rank 0",
    "delta": "delta=2.0) on rank 1",
    "metrics": "metrics: [mae] on rank 1, [mse] on rank 0",
    "learning_rate": "optimizer: SGD(learning_rate=0.1, ",
    "callbacks": "callbacks: EarlyStopping on rank 1, none on rank 0",
    "share": "training inputs: 6 samples of shape (3,), float32, checksum ",
    "shuffle": "training inputs: 20 samples of shape (3,), float32, checksum ",
    "targets": "training targets: ",
    "validation": "validation inputs: ",
    "samples": "training samples: 19 on rank 1, 20 on rank 0",
    "seed": "seed: 1 on rank 1, 0 on rank 0",
}


def given(what, rank):
    """The arguments of a Trainer; of rank 1, `what` is another."""
    odd = what if rank == 1 else None
    model = keras.Sequential([
        layers.Input((3,)),
        layers.Dense(5 if odd == "units" else 4, "tanh" if odd == "activation" else "relu"),
        layers.Dropout(0.2 if odd == "rate" else 0.1),
        layers.Dense(1),
    ])  # fmt: skip
    loss = {"loss": "mae" if odd else "mse", "delta": keras.losses.Huber(2.0 if odd else 1.0)}
    model.compile(
        keras.optimizers.SGD(0.1 if odd == "learning_rate" else 0.05),
        loss=loss.get(what, "mse"),
        metrics=["mae" if odd == "metrics" else "mse"],
    )
    order = np.random.default_rng().permutation(24) if what == "shuffle" else np.arange(24)
    if what == "share":
        order = order[rank::3]
    x, y = X[order], X[order].sum(1) + (odd == "targets")
    last = -5 if odd == "samples" else -4
    data = (x[:last], y[:last]), (x[-4:] + (odd == "validation"), y[-4:])
    callbacks = [keras.callbacks.EarlyStopping("loss")] if odd == "callbacks" else []
    return (model, data if what != "share" else (x, y)), {
        "callbacks": callbacks, "seed": int(odd == "seed"), "batch_size": 8,
    }  # fmt: skip


@with_ranks(3, keras=True)
def test_ranks_that_were_given_different_things():
    team = Team()
    for what, said in CASES.items():
        arguments, options = given(what, team.rank)
        with pytest.raises(ValueError, match="ranks differ in the ") as error:
            Trainer(*arguments, team=team, progress=False, **options).fit(1)
        words = str(error.value)
        assert said in words, words
        assert (SAMPLES in words) == said.startswith(("training", "validation")), words
        team.recover()


@with_ranks(2, keras=True)
def test_what_may_differ():
    """Names that Keras numbers, random first weights, and addresses of functions."""
    team = Team()
    for _ in range(team.rank):
        keras.Sequential([layers.Dense(1)])
    model = keras.Sequential([layers.Input((3,)), layers.Dense(1, activation=lambda x: x)])
    model.compile("sgd", loss=lambda y, p: keras.ops.square(y - p), metrics=[lambda y, p: y - p])
    Trainer(model, (X, X[:, :1]), team=team, progress=False).fit(1)


def test_the_rank_that_differs_is_not_most_of_them():
    same = {"seed": "1", "loss": "mse"}
    assert difference([same] * 3) is None
    odd = "ranks differ in the loss: mae on rank 0, mse on rank 1; all ranks must be given the same"
    assert difference([same | {"loss": "mae"}, same, same]) == odd
    missing = "ranks differ in the loss: missing on rank 2, mse on rank 0; all ranks must be given"
    assert difference([same, same, {"seed": "1"}]).startswith(missing)

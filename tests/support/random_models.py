"""Random Keras models, each from a number, and whether our training of it is Keras's own.

`check` is collective. All ranks train as many models together as there are ranks. Then each takes
one of them, trains it alone, too, and by Keras's loop, and compares weights and metrics.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from unittest import mock

import numpy as np

SAMPLES, BATCH, EPOCHS = 18, 8, 1  # the last batch has 2 samples, so one of three ranks has none
STEPS, WORDS = 6, 9
HEADS_LOSSES = ("head_0_loss", "head_1_loss")
# Relative to the largest weight. (Adam divides by a gradient's size, so it magnifies the rounding
# of gradients that are nearly 0: those models compute in float64.)
NEAR = {"float64": 1e-9, "float32": 1e-5}


class Drawn:
    """Model number `number`: `model()` makes it anew, always the same; `data` fits it.

    Attributes:
        words: What was drawn, for messages.
    """

    def __init__(self, number: int):
        self.number, self.words = number, [f"model {number}"]
        dice = self.dice = random.Random(number)
        self.dtype = self.choose("float64", "float64", "float32")
        self.kind = self.choose("vector", "vector", "image", "words", "series")
        self.by_step = self.kind in ("words", "series") and dice.random() < 0.5
        self.body = dice.randrange(1 << 30)  # a seed: `model` draws the same layers each time
        self.heads = [self.head(i) for i in range(1 if dice.random() < 0.7 else 2)]
        self.loss_weights = [dice.choice([0.3, 1.0, 2.5]) for _ in self.heads]
        # An embedding's gradient has an entry for each occurrence of a word. Keras's Adam squares
        # each of these (3.15), where ours squares their sum, which is the gradient.
        adaptive = self.dtype == "float64" and self.kind != "words"
        more = ("adam", "rmsprop", "amsgrad") if adaptive else ()
        self.optimizer = self.choose("sgd", "momentum", *more)
        self.way = self.choose(*["eager"] * 9, "graph")
        self.weighted = dice.random() < 0.4
        self.data = self.samples()

    def choose(self, *among):
        found = self.dice.choice(among)
        self.words.append(str(found))
        return found

    def head(self, number: int):
        """(name, units, activation, loss)"""
        units = self.dice.choice([1, 3])
        loss, activation = self.dice.choice([
            ("mse", None), ("mae", "tanh"), ("huber", None), ("log_cosh", None),
            ("poisson", "softplus"), ("binary_crossentropy", "sigmoid"),
            ("categorical_crossentropy", "softmax"), ("sparse_categorical_crossentropy", "softmax"),
        ])  # fmt: skip
        if activation == "softmax":
            units = 3
        self.words.append(f"{loss} of {units}")
        return f"head_{number}", units, activation, loss

    def samples(self):
        from tutorial_dl.data import Data

        random = np.random.default_rng(self.number)
        shape = {"vector": (5,), "image": (6, 6, 2), "words": (STEPS,), "series": (STEPS, 3)}
        x = random.standard_normal((SAMPLES, *shape[self.kind]))
        if self.kind == "words":
            x = random.integers(1, WORDS, x.shape)
        if self.kind in ("words", "series"):
            x[np.arange(STEPS) >= random.integers(1, STEPS + 1, SAMPLES)[:, None]] = 0  # padding
        else:
            x = x.astype(self.dtype)
        targets = tuple(self.targets(random, *head[1:]) for head in self.heads)
        each = (SAMPLES, STEPS) if self.by_step else (SAMPLES,)
        weights = random.uniform(0, 2, (len(targets), *each)).astype(self.dtype)
        one = len(targets) == 1
        if not self.weighted:
            return Data.of(x, targets[0] if one else targets)
        return Data.of(x, *((targets[0], weights[0]) if one else (targets, tuple(weights))))

    def targets(self, random, units, activation, loss):
        shape = (SAMPLES, STEPS) if self.by_step else (SAMPLES,)
        labels = random.integers(0, units, shape)
        if loss.startswith("sparse"):
            return labels
        if activation == "softmax":
            return np.eye(units, dtype=self.dtype)[labels]
        if activation == "sigmoid":
            return random.integers(0, 2, (*shape, units)).astype(self.dtype)
        return np.abs(random.standard_normal((*shape, units))).astype(self.dtype)

    # The model

    def model(self):
        import keras

        keras.utils.set_random_seed(self.number)
        dice, x = random.Random(self.body), None
        inputs = keras.Input(np.shape(self.data.inputs)[1:], dtype=self.data.inputs.dtype.name)
        x = getattr(self, f"_{self.kind}")(dice, inputs)
        for _ in range(dice.randrange(3)):
            x = self._layer(dice, x)
        outputs = [
            keras.layers.Dense(units, activation, name=name, **self._bounds(dice, "kernel"))(x)
            for name, units, activation, _ in self.heads
        ]
        model = keras.Model(inputs, outputs if len(outputs) > 1 else outputs[0])
        losses = [head[3] for head in self.heads]
        one = len(losses) == 1
        model.compile(
            self._optimizer(keras.optimizers),
            losses[0] if one else losses,
            loss_weights=None if one else self.loss_weights,
            metrics=self.metrics("mae"),
            weighted_metrics=self.metrics("mse"),
            run_eagerly=self.way == "eager",
        )
        return model

    def metrics(self, name: str) -> list:
        found = [
            ["sparse_categorical_accuracy" if loss.startswith("sparse") else name]
            for *_, loss in self.heads
        ]
        return found[0] if len(found) == 1 else found

    def _optimizer(self, of):
        # Numbers that float32 holds exactly, to which Keras rounds them even for float64 weights.
        betas = {"beta_1": 0.875, "beta_2": 0.9375, "epsilon": 2.0**-20}
        return {
            "sgd": lambda: of.SGD(0.125),
            "momentum": lambda: of.SGD(0.0625, momentum=0.875, nesterov=True),
            "adam": lambda: of.Adam(0.015625, **betas),
            "rmsprop": lambda: of.RMSprop(0.0078125, rho=0.875, epsilon=2.0**-20),
            "amsgrad": lambda: of.Adam(0.015625, amsgrad=True, **betas),
        }[self.optimizer]()

    def _bounds(self, dice, what):
        """A regulariser and a constraint of a weight, or neither."""
        import keras

        r, c = keras.regularizers, keras.constraints
        of = dice.choice([None, None, lambda: r.L1(0.01), lambda: r.L2(0.05), lambda: r.L1L2(0.01)])
        to = dice.choice([
            None, None, lambda: c.MaxNorm(0.7), c.NonNeg, c.UnitNorm,
            lambda: c.MinMaxNorm(0.2, 0.9),
        ])  # fmt: skip
        return {f"{what}_regularizer": of and of(), f"{what}_constraint": to and to()}

    def _layer(self, dice, x):
        import keras

        kind = dice.choice(["dense", "dense", "dense", "norm", "prelu", "add"])
        if kind == "norm":
            return keras.layers.LayerNormalization()(x)
        if kind == "prelu":
            return keras.layers.PReLU()(x)
        activation = dice.choice(["tanh", "relu", "gelu", "sigmoid", None])
        units = x.shape[-1] if kind == "add" else dice.randint(2, 6)
        y = keras.layers.Dense(
            units, activation, use_bias=dice.random() < 0.8, **self._bounds(dice, "kernel")
        )(x)
        return keras.layers.add([x, y]) if kind == "add" else y

    def _vector(self, dice, x):
        return self._layer(dice, x)

    def _image(self, dice, x):
        import keras

        layers = keras.layers
        for _ in range(dice.randint(1, 2)):
            x = layers.Conv2D(
                dice.randint(2, 3), dice.randint(1, 3), padding=dice.choice(["same", "valid"]),
                activation=dice.choice(["tanh", "relu"]), **self._bounds(dice, "kernel"),
            )(x)  # fmt: skip
        x = dice.choice([layers.AveragePooling2D, layers.MaxPooling2D])(2, padding="same")(x)
        return dice.choice([layers.Flatten, layers.GlobalAveragePooling2D])()(x)

    def _words(self, dice, x):
        import keras

        masks = dice.random() < 0.7
        bounds = self._bounds(dice, "embeddings")
        return self._sequence(dice, keras.layers.Embedding(WORDS, 4, mask_zero=masks, **bounds)(x))

    def _series(self, dice, x):
        import keras

        return self._sequence(dice, keras.layers.Masking()(x) if dice.random() < 0.7 else x)

    def _sequence(self, dice, x):
        import keras

        layers = keras.layers
        kind = dice.choice([layers.SimpleRNN, layers.GRU, layers.LSTM])
        one = kind(dice.randint(2, 4), return_sequences=self.by_step)
        return (layers.Bidirectional(one) if dice.random() < 0.3 else one)(x)


@contextmanager
def precision(dtype: str):
    import keras

    before, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(policy)


def check(numbers, team, one) -> None:
    """Raise AssertionError, with what was drawn, unless all three ways end alike. Collective.

    `team` are all ranks, `one` this rank alone. (A process can have about a thousand teams.)
    """
    for start in range(0, len(numbers), team.size):
        group = [Together(number, team) for number in numbers[start : start + team.size]]
        if team.rank < len(group):
            group[team.rank].compare(one)


class Together:
    """Model number `number` after all ranks of `team` have trained it. Collective."""

    def __init__(self, number: int, team):
        from tutorial_dl import Trainer
        from tutorial_dl.data import Dataset

        self.drawn = drawn = Drawn(number)
        self.dataset = Dataset("drawn", drawn.data, drawn.data)
        self.options = dict(batch_size=BATCH, seed=number, progress=False)
        with precision(drawn.dtype):
            self.model = drawn.model()
            trainer = Trainer(self.model, self.dataset, team=team, **self.options)
            self.row = trainer.fit(EPOCHS).last

    def compare(self, one) -> None:
        """Train the model on this rank alone, and by Keras's loop: all three must be alike."""
        from tutorial_dl import Trainer, strategies
        from tutorial_dl.data import Batches

        drawn = self.drawn
        with precision(drawn.dtype):
            alone, theirs = drawn.model(), drawn.model()
            initial = theirs.get_weights()
            trainer = Trainer(alone, self.dataset, strategies.Serial(one), **self.options)
            row = trainer.fit(EPOCHS).last
            batches = Batches(drawn.data, BATCH, seed=drawn.number)
            for epoch in range(EPOCHS):
                theirs.reset_metrics()
                # `train_on_batch` would begin anew with each batch, `fit` does not.
                with mock.patch.object(type(theirs), "reset_metrics"):
                    for batch in batches.epoch(epoch):
                        expected = theirs.train_on_batch(*batch, return_dict=True)
            data = drawn.data
            kept = theirs.evaluate(
                data.inputs, data.targets, SAMPLES, sample_weight=data.weights, verbose=0,
                return_dict=True,
            )  # fmt: skip
        if drawn.way == "graph":  # there Keras's means of the heads' losses count batches
            expected = {n: v for n, v in expected.items() if n not in HEADS_LOSSES}
        expected |= {f"val_{name}": value for name, value in kept.items()}
        weights, near = theirs.get_weights(), NEAR[drawn.dtype]
        near *= max(1.0, max(float(np.abs(w).max()) for w in weights))
        words = ", ".join(drawn.words)
        moved = max(np.abs(w - v).max() for w, v in zip(weights, initial, strict=True))
        assert moved > 1e-3, f"{words}: it has not learned"
        for how, model, found in (("ranks", self.model, self.row), ("one rank", alone, row)):
            for mine, reference in zip(model.get_weights(), weights, strict=True):
                error = float(np.abs(mine - reference).max())
                assert error <= near, f"{words}: {how} differ by {error:.2g}"
            for name, value in expected.items():
                error = abs(found[name] - value)
                assert error <= max(1e-6, 20 * near) * max(1, abs(value)), (
                    f"{words}: {how}, {name} differs by {error:.2g}"
                )

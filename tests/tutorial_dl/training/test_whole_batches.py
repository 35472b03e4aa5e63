"""What is no mean over samples: computed of the whole batch, as `fit` does, or refused by name."""

import numpy as np
import pytest
from as_fit import as_fit
from keras_networks import keras, layers
from rank_tests import with_ranks

from tutorial_dl import Team, Trainer, replica

pytestmark = pytest.mark.xdist_group("keras")

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(22, 4)).astype("f4") + np.linspace(-1, 1, 22, dtype="f4")[:, None]
YES = (X[:, :1] > 0.2).astype("f4")


def recall(y, p):
    """A ratio over the batch."""
    y = keras.ops.cast(y, "float32")
    hit = keras.ops.cast(p > 0.5, "float32") * y
    return keras.ops.sum(hit) / (keras.ops.sum(y) + 1e-7)


def spread(y, p):
    """A loss that compares the samples of a batch with each other."""
    return keras.ops.mean((p - keras.ops.mean(p, 0)) ** 2) + keras.ops.mean((y - p) ** 2)


def layer(call, weights=()):
    """A layer of a user's; `weights`: names of numbers that it keeps."""
    begin = {"lowest": -np.inf, "low": -1e9}

    def build(self, shape):
        for name in weights:
            value = keras.initializers.Constant(begin.get(name, 0.0))
            setattr(self, name, self.add_weight((), initializer=value, trainable=False, name=name))

    return type("Own", (layers.Layer,), {"build": build, "call": call})(name="own")


def keeps(self, x, training=False):
    if training:
        self.seen.assign_add(keras.ops.cast(keras.ops.shape(x)[0], "float32"))
        self.most.assign(keras.ops.maximum(self.most, keras.ops.max(x)))
        self.least.assign(keras.ops.minimum(self.least, keras.ops.min(x)))
        for one in (self.lowest, self.low):
            one.assign(keras.ops.maximum(one, keras.ops.max(x)))
    return x


def centers(self, x, training=False):
    return x - keras.ops.mean(x, axis=0, keepdims=True) if training else x


def anneals(self, x, training=False):
    """Its loss depends on how many samples it has seen."""
    if training:
        self.seen.assign_add(keras.ops.cast(keras.ops.shape(x)[0], "float32"))
    self.add_loss(keras.ops.mean(x**2) / (1 + self.seen))
    return x


def draws(self, x):
    self.add_loss(0.1 * keras.ops.mean(x**2))
    return x + keras.random.normal(keras.ops.shape(x))


def alternates(self, x, training=False):
    """What it keeps is neither a mean nor a sum."""
    if training:
        self.seen.assign(keras.ops.sum(x) ** 2)
    return x


def network(loss, metrics=(), own=None, outputs=1, normalized=False):
    """`normalized`: with statistics of each rank's samples, so weights are not those of `fit`."""
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((4,))
    x = layers.Dense(5, "tanh")(x if own is None else own(x))
    x = layers.BatchNormalization()(x) if normalized else x
    found = [layers.Dense(1, "sigmoid", name=f"of_{i}")(x) for i in range(outputs)]
    model = keras.Model(inputs, found[0] if outputs == 1 else found)
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=list(metrics))
    return model


KEPT = ("seen", "most", "least", "lowest", "low")
LIKE_FIT = {
    "dice": lambda: network(keras.losses.Dice(), ["AUC"]),
    "tversky": lambda: network(keras.losses.Tversky(0.3, 0.7)),
    "a ratio as metric": lambda: network("mse", [recall, "AUC"]),
    "compares samples": lambda: network(spread, [recall]),
    "two outputs": lambda: network(["mse", keras.losses.Dice()], [[recall], ["mae"]], outputs=2),
    "sums and extremes": lambda: network("mse", own=layer(keeps, KEPT)),
}
REFUSED = {
    "its layer 'own' lets samples of a batch see each other in training": (centers,),
    "its loss in training is not a mean over samples": (anneals, ["seen"]),
    "'own/seen', which are not trained, are neither a mean": (alternates, ["seen"]),
}


@with_ranks(1, 3, keras=True)
def test_as_fit():
    """22 samples in batches of 8: the last one has 6; and of 7: the last one has one."""
    team = Team()
    for name, make in LIKE_FIT.items():
        y = (YES, 1 - YES) if name == "two outputs" else YES
        for batch in (8, 7):
            history = as_fit(make, (X, y), (X[::-1], y), team, batch)
        assert len(history.epochs) == 2


@with_ranks(3, keras=True)
def test_refused_by_name():
    team = Team()
    for words, own in REFUSED.items():
        with pytest.raises(ValueError, match=words):
            model = network("mse", own=layer(*own), normalized=True)
            Trainer(model, (X, YES), team=team, progress=False)
        team.recover()
    options = dict(team=team, accumulate=2, progress=False)
    with pytest.raises(ValueError, match="loss 'dice' is not a mean over samples, so ranks can't"):
        Trainer(network(keras.losses.Dice()), (X, YES), **options)
    team.recover()
    # One sample tells nothing of others, and is trained on.
    one = (X[:1], YES[:1]), (X[:1], YES[:1])
    Trainer(network(spread, [recall]), one, team=team, progress=False).fit(1)
    # What draws for each sample, also in evaluation, is not to blame for it.
    model = network("mse", own=layer(draws), normalized=True)
    Trainer(model, (X, YES), team=team, progress=False).fit(1)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:In loss categorical")
def test_losses_of_keras_are_means_unless_they_are_named():
    from tutorial_dl.replica.keras.try_out import OF_KERAS_NO_MEANS, TryOut

    labels, tried, found = np.arange(12) % 3, [], set()
    for kind in (k for k in vars(keras.losses).values() if isinstance(k, type)):
        classes = "Categorical" in kind.__name__ or kind.__name__ == "Circle"
        for y in (labels, np.eye(3, dtype="f4")[labels]) if classes else (YES[:12],):
            x = keras.Input((4,))
            outputs = layers.Dense(3, "softmax") if classes else layers.Dense(1, "sigmoid")
            model = keras.Model(x, outputs(x))
            try:
                model.compile("sgd", kind())
                r = replica.of(model)
                r.build(r.arrays((X[:12], y)))
                losses = TryOut(model, (X[:12], y, ())).losses()
            except Exception:
                continue  # abstract, or of the other kind of targets
            tried.append(kind.__name__)
            found |= {kind.__name__} if losses else set()
    assert found == {name for name in OF_KERAS_NO_MEANS if name[0].isupper()}
    assert len(set(tried)) > 20, tried


@pytest.mark.thorough
def test_layers_of_keras_do_not_mix_samples_unless_they_are_named():
    """Each layer that can be made without arguments, or with a number, in training."""
    from tutorial_dl.replica.keras.try_out import OF_KERAS_MIXING, TryOut

    dice, tried, found = np.random.default_rng(0), set(), set()
    shapes = ((4,), (6, 4), (8, 8, 3), (4, 8, 8, 3))
    for kind in (k for k in vars(keras.layers).values() if isinstance(k, type)):
        # Layers of images take another shape for a single image.
        own = shapes[2:3] if "image_preprocessing" in kind.__module__ else shapes
        for shape, arguments in ((s, a) for s in own for a in ((), (2,), (0.3,), (2, 2))):
            try:
                inputs = keras.Input(shape)
                model = keras.Model(inputs, kind(*arguments)(inputs))
                x = dice.random((12, *shape)).astype("f4")
                one = TryOut(model, (x, (), ()))
                mixed = one.draws(True) is not None and one.mixing_layer(training=True)
            except Exception:
                continue  # abstract, or of other arguments or shapes
            tried.add(kind.__name__)
            found |= {kind.__name__} if mixed else set()
            break
    # (MixUp mixes by weights that it draws, which may be near 0.)
    assert found - {"MixUp"} == OF_KERAS_MIXING - {"MixUp"} and len(tried) > 70, (found, tried)

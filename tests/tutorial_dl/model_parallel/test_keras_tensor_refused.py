"""What tensor parallelism of Keras models can't cut is refused by name, in one line."""

from types import SimpleNamespace

import pytest
from keras_networks import keras, layers

pytestmark = pytest.mark.xdist_group("keras")


def chain(*more, inputs=(8,), **options):
    model = keras.Sequential([keras.Input(inputs), *more])
    model.compile(**{"loss": "mse", **options})
    return model


def shared():
    one, x = layers.Dense(8, name="one"), keras.Input((8,))
    model = keras.Model(x, layers.Dense(2, name="two")(one(one(x))))
    model.compile(loss="mse")
    return model


def within():
    inner = keras.Sequential([keras.Input((8,)), layers.Dense(8, name="one")], name="inner")
    return chain(inner, layers.Dense(2, name="last"))


def pair(first=None, between=(), second=None):
    """Two dense layers with the given options, and layers between them."""
    one = layers.Dense(**{"units": 6, "name": "one"} | (first or {}))
    return chain(one, *between, layers.Dense(2, name="two", **(second or {})))


def attention(**options):
    x = keras.Input((4, 8))
    heads = layers.MultiHeadAttention(4, 2, name="attend", **options)
    model = keras.Model(x, layers.Dense(2, name="last")(heads(x, x)))
    model.compile(loss="mse")
    return model


def with_its_own_loss():
    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(y_pred)

    x = keras.Input((8,))
    model = Own(x, layers.Dense(2, name="two")(layers.Dense(8, name="one")(x)), name="own")
    model.compile(loss="mse")
    return model


# (Classes of the module would load TensorFlow when tests are collected.)


def mine():
    class Mine(layers.Layer):
        def call(self, x):
            return x

    return Mine(name="mine")


def tied():
    class Transposed(layers.Layer):
        makes_no_mask = True

        def __init__(self, other, **options):
            super().__init__(**options)
            self.other = other

        def call(self, x):
            return keras.ops.matmul(x, keras.ops.transpose(self.other.kernel))

    one = layers.Dense(8, name="one")
    return chain(one, layers.Dense(8, name="two"), Transposed(one, name="three"))


PAIR = {"one": "columns", "two": "rows"}
GROUPS = {"filters": 8, "kernel_size": 1, "groups": 2, "name": "grouped"}


@pytest.mark.parametrize(
    ("words", "build", "rules"),
    [
        ("layer 'one' has 6 units, which can't be divided evenly over 4 ranks: 1, 2, 3, 6 ranks "
         "can, or replicate it", pair, PAIR),
        ("rule 'three' matches no layer: the model has one, two", pair, {"three": "rows"}),
        ("rule 'one': columns, rows, heads, replicate, not 'cols'", pair, {"one": "cols"}),
        ("layer 'one', a Dense: columns or rows or replicate, not heads", pair, {"one": "heads"}),
        ("layer 'two' is cut by rows: it needs a layer that is cut by columns before it",
         lambda: pair({"units": 8}), {"two": "rows"}),
        ("layer 'one' is cut by columns: it needs one by rows behind it",
         lambda: chain(layers.Dense(8, name="one")), {"one": "columns"}),
        ("layer 'norm' lies behind 'one', which is cut by columns: only functions of single "
         "numbers and dropout may",
         lambda: pair({"units": 8}, [layers.LayerNormalization(name="norm")]), PAIR),
        ("layer 'one', cut by columns, has activation 'softmax', which is not known to take each",
         lambda: pair({"activation": "softmax"}), PAIR),
        ("layer 'one', cut by columns, has a kernel_regularizer: replicate it",
         lambda: pair({"kernel_regularizer": "l2"}), PAIR),
        ("layer 'two', cut by rows, has a bias_constraint: replicate it",
         lambda: pair({"units": 8}, second={"bias_constraint": "non_neg"}), PAIR),
        ("layer 'one', cut by columns, is frozen", lambda: pair({"trainable": False}), PAIR),
        ("/one/kernel' are used by a layer that is cut and by another one: use the rule "
         "'replicate' for the first", tied, PAIR),
        ("layer 'one' occurs twice; layers that share weights can't be cut", shared,
         {"one": "columns"}),
        ("rule 'one': layer 'one' lies within another layer", within, {"one": "columns"}),
        ("layer 'attend', cut by heads, has dropout of its own, whose masks would differ",
         lambda: attention(dropout=0.1), None),
        ("layer 'attend' has 4 heads, which can't be divided evenly over 3 ranks: 1, 2, 4 ranks",
         attention, None),
        ("layer 'grouped', cut by columns, has 2 groups: replicate it",
         lambda: chain(layers.Conv2D(**GROUPS), layers.Conv2D(2, 1), inputs=(4, 4, 8)),
         {"grouped": "columns"}),
        ("has no layers to cut: neither MultiHeadAttention, nor two Dense or two convolutional",
         lambda: chain(layers.LSTM(4), layers.Dense(2, name="last"), inputs=(5, 3)), None),
        ("with a mask: its loss is not a mean over samples",
         lambda: chain(layers.Masking(), layers.Dense(8), layers.Dense(2), inputs=(5, 3)), None),
        ("can't compute model 'own': its class has a compute_loss of its own", with_its_own_loss,
         PAIR),
        ("can't compute layer 'mine': Mine is no layer of Keras and may make a mask; if it makes "
         "none, give its class makes_no_mask = True",
         lambda: pair({"units": 8}, [mine()]), PAIR),
        ("layer 'act' lies behind 'one', which is cut by columns",
         lambda: pair({"units": 8}, [layers.ReLU(name="act", activity_regularizer="l2")]), PAIR),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused_by_name(words, build, rules):
    from tutorial_dl.model_parallel.keras_tensor import Cut  # loads TensorFlow

    with pytest.raises(ValueError) as error:
        Cut(build(), SimpleNamespace(size=3 if "3 ranks" in words else 4, rank=0), rules)
    assert words in str(error.value) and "\n" not in str(error.value)

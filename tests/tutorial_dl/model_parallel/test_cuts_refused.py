"""What ranks can't divide of a Keras model is refused by name, in one line."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from divided_models import with_shared_weights
from keras_networks import keras, layers

from numba_kernels.team.team import Team
from tutorial_dl import Trainer, model_parallel, replica
from tutorial_dl.model_parallel import Grid, PipelinedReplica

pytestmark = pytest.mark.xdist_group("keras")
X, Y = np.ones((4, 4), np.float32), np.ones((4, 1), np.float32)


def compiled(inputs, outputs, kind=None, **options):
    model = (kind or keras.Model)(inputs, outputs, name="mine")
    model.compile(**{"loss": "mse", **options})
    return model


def chain(*more, inputs=(8,), kind=None, **options):
    model = (kind or keras.Sequential)([keras.Input(inputs), *more])
    model.compile(**{"loss": "mse", **options})
    return model


def after(*more, **options):
    """A small model with these layers."""
    first, last = layers.Dense(4, name="first"), layers.Dense(1, name="last")
    return chain(first, *more, last, inputs=(4,), **options)


def own_layer(name="mine", **attributes):
    """A user's layer. (Classes of the module would load TensorFlow when tests are collected.)"""

    class Mine(layers.Layer):
        def call(self, x):
            return x

    for key, value in attributes.items():
        setattr(Mine, key, value)
    return Mine(name=name)


def one_line(error) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


# Layers that are cut ---------------------------------------------------------------------------


def shared():
    one, x = layers.Dense(8, name="one"), keras.Input((8,))
    return compiled(x, layers.Dense(2, name="two")(one(one(x))))


def within():
    inner = keras.Sequential([keras.Input((8,)), layers.Dense(8, name="one")], name="inner")
    return chain(inner, layers.Dense(2, name="last"))


def pair(first=None, between=(), second=None):
    """Two dense layers with the given options, and layers between them."""
    one = layers.Dense(**{"units": 6, "name": "one"} | (first or {}))
    return chain(one, *between, layers.Dense(2, name="two", **(second or {})))


def heads(**options):
    x = keras.Input((4, 8))
    attend = layers.MultiHeadAttention(4, 2, name="attend", **options)
    return compiled(x, layers.Dense(2, name="last")(attend(x, x)))


def with_its_own_loss():
    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(y_pred)

    x = keras.Input((8,))
    return compiled(x, layers.Dense(2, name="two")(layers.Dense(8, name="one")(x)), Own)


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
         lambda: heads(dropout=0.1), None),
        ("layer 'attend' has 4 heads, which can't be divided evenly over 3 ranks: 1, 2, 4 ranks",
         heads, None),
        ("layer 'grouped', cut by columns, has 2 groups: replicate it",
         lambda: chain(layers.Conv2D(**GROUPS), layers.Conv2D(2, 1), inputs=(4, 4, 8)),
         {"grouped": "columns"}),
        ("has no layers to cut: neither MultiHeadAttention, nor two Dense or two convolutional",
         lambda: chain(layers.LSTM(4), layers.Dense(2, name="last"), inputs=(5, 3)), None),
        ("with a mask: its loss is not a mean over samples",
         lambda: chain(layers.Masking(), layers.Dense(8), layers.Dense(2), inputs=(5, 3)), None),
        ("can't compute model 'mine': its class has a compute_loss of its own", with_its_own_loss,
         PAIR),
        ("can't compute layer 'mine': Mine is no layer of Keras and may make a mask; if it makes "
         "none, give its class makes_no_mask = True",
         lambda: pair({"units": 8}, [own_layer()]), PAIR),
        ("layer 'noisy' lies behind 'one', which is cut by columns",
         lambda: pair({"units": 8}, [noisy()]), PAIR),
        ("layer 'act' lies behind 'one', which is cut by columns",
         lambda: pair({"units": 8}, [layers.ReLU(name="act", activity_regularizer="l2")]), PAIR),
    ],
)  # fmt: skip
def test_layers(words, build, rules):
    from tutorial_dl.model_parallel.keras_tensor import Cut  # loads TensorFlow

    with pytest.raises(ValueError) as error:
        Cut(build(), SimpleNamespace(size=3 if "3 ranks" in words else 4, rank=0), rules)
    assert words in one_line(error)


# Sequences -------------------------------------------------------------------------------------


def series(*more, inputs=(12, 3), **options):
    return chain(*more, inputs=inputs, **options)


def attention(call=None, **options):
    x = keras.Input((12, 8))
    heads = layers.MultiHeadAttention(4, 2, name="attend", **options)
    return compiled(x, layers.Dense(2)(heads(x, x, **(call or {}))))


def operation(function):
    x = keras.Input((12, 3))
    return compiled(x, function(layers.Dense(2)(x)))


def two_outputs():
    x = keras.Input((12, 3))
    return compiled(x, [x + 1, layers.Dense(2)(x)])


def noisy():
    class Noisy(layers.Dropout):
        makes_no_mask = True

        def call(self, inputs, training=False):
            return inputs + 1

    return Noisy(0.5, name="noisy")


def own():
    class Own(layers.Dense):
        makes_no_mask = by_position = True

    return Own(2, over_positions, name="own")


def over_positions(x):
    return keras.ops.softmax(x, axis=1)


MASK = np.ones((1, 12, 12), bool)
ON = "on parts of sequences: "


@pytest.mark.parametrize(
    ("words", "build"),
    [
        ("layer 'conv', a Conv1D, " + ON + "use Dense, or Conv1D with kernel_size=1",
         lambda: series(layers.Conv1D(4, 3, padding="same", name="conv"))),
        ("layer 'flat', a Flatten, " + ON + "let the model predict at each position",
         lambda: series(layers.Dense(2), layers.Flatten(name="flat"), layers.Dense(1))),
        ("layer 'pool', a GlobalAveragePooling1D, " + ON + "let the model predict",
         lambda: series(layers.Dense(2), layers.GlobalAveragePooling1D(name="pool"))),
        ("layer 'lstm', a LSTM, " + ON + "use MultiHeadAttention",
         lambda: series(layers.LSTM(4, return_sequences=True, name="lstm"))),
        ("layer 'norm', a BatchNormalization, " + ON + "use LayerNormalization",
         lambda: series(layers.Dense(2), layers.BatchNormalization(name="norm"))),
        ("layer 'noise', a GaussianNoise, " + ON + "use Dropout",
         lambda: series(layers.GaussianNoise(0.1, name="noise"))),
        ("layer 'along', a LayerNormalization, " + ON + "only MultiHeadAttention may mix positions",
         lambda: series(layers.Dense(2), layers.LayerNormalization(axis=1, name="along"))),
        ("layer 'dense', a Dense, " + ON + "only MultiHeadAttention may mix positions",
         lambda: series(layers.Dense(2, name="dense"), inputs=(12,))),
        ("layer 'mine', a Mine, " + ON + "if it computes each position by itself, give its class",
         lambda: series(layers.Dense(2), own_layer(makes_no_mask=True))),
        ("layer 'inner', a Sequential, " + ON + "use its layers in the model itself",
         lambda: series(keras.Sequential([layers.Dense(3)], name="inner"))),
        ("Flip, " + ON, lambda: operation(lambda x: keras.ops.flip(x, axis=1))),
        ("Add, " + ON,
         lambda: operation(lambda x: x + np.ones((1, 1, 12, 2), "f4"))),
        ("GetItem, " + ON, lambda: operation(lambda x: x[:, 1:])),
        ("layer 'attend' " + ON + "it has dropout of its own; use a Dropout layer behind it",
         lambda: attention(dropout=0.1)),
        ("layer 'attend' " + ON + "it is given attention_mask; leave it out",
         lambda: attention({"attention_mask": MASK})),
        ("layer 'attend' " + ON + "it has an activity_regularizer, which is of all positions",
         lambda: attention(activity_regularizer="l2")),
        ("layer 'noisy', a Noisy, " + ON, lambda: series(noisy())),
        ("layer 'own', a Own, " + ON, lambda: series(own())),
        ("layer 'attend' " + ON + "value_dim must be key_dim, 2, got 3",
         lambda: attention(value_dim=3)),
        ("a sequence of 12 positions can't be divided evenly over 5 ranks: use sequences of 10 or "
         "15, or 1, 2, 3, 4, 6, 12 ranks", attention),
        ("must have a fixed number of positions, (samples, positions, ...), got (None, None, 3)",
         lambda: series(layers.Dense(2), inputs=(None, 3))),
        ("context parallelism can't compute model 'mine': it has 2 outputs; use one", two_outputs),
        ("context parallelism can't compute layer 'half': it computes in bfloat16, its weights are",
         lambda: series(layers.Dense(2, dtype="mixed_bfloat16", name="half"))),
        ("with a mask: its loss is not a mean over samples",
         lambda: series(layers.Masking(), layers.Dense(2))),
    ],
)  # fmt: skip
def test_sequences(words, build):
    from tutorial_dl.model_parallel.keras_context import Divided  # loads TensorFlow

    ranks = 5 if "5 ranks" in words else 2
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        Divided(build(), SimpleNamespace(size=ranks, rank=0))
    one_line(error)


def test_a_layer_of_a_user_may_say_that_it_fits():
    from tutorial_dl.model_parallel.keras_context import Divided

    mine = own_layer(makes_no_mask=True, by_position=True)
    local = Divided(series(mine, layers.Dense(2)), SimpleNamespace(size=3, rank=1)).local
    assert local.outputs[0].shape == (None, 4, 2)
    assert local.layers[1].name == f"{local.inputs[0].name}_take_part"
    assert local(np.arange(36.0).reshape(1, 12, 3)).shape == (1, 4, 2)


def test_too_few_positions():
    from tutorial_dl.model_parallel.keras_tensor import Cut

    x = keras.Input((2, 6))
    model = compiled(x, layers.MultiHeadAttention(3, 2, name="attend")(x, x))
    words = "model 'mine' has nothing .* that 3 ranks could divide: .* at least 3 positions; leave"
    with pytest.raises(ValueError, match=words) as error:
        Cut(model, SimpleNamespace(size=3, rank=0), sequence=True)
    one_line(error)


# Stages and shards -----------------------------------------------------------------------------


def synchronised():
    from tutorial_dl.layers import convert

    return convert(after(layers.BatchNormalization()))


def with_hidden_weights():
    first = layers.Dense(4, name="first", use_bias=False)
    x = keras.Input((4,))
    y = layers.Dense(4, name="second")(first(x))
    y = layers.Lambda(lambda z: keras.ops.matmul(z, first.kernel))(y)
    return compiled(x, layers.Dense(1)(y))


def adding_a_loss():
    class Adds(layers.Layer):
        makes_no_mask = True

        def call(self, x):
            self.add_loss(keras.ops.mean(x))
            return x

    return after(Adds(name="adds"))


def with_a_dictionary():
    x = keras.Input((4,), name="x")
    return compiled({"x": x}, layers.Dense(1)(x))


def with_own(method):
    def own(self, *args, **options):
        return getattr(keras.Sequential, method)(self, *args, **options)

    return after(kind=type("Own", (keras.Sequential,), {method: own}))


def l2():
    return keras.regularizers.L2(0.1)


PIPELINE, SHARD = "a pipeline can't compute ", "shard 3 can't compute "
STAGES = [  # words, what is refused by either, or by one
    ("it has regularisers or add_loss; use weight decay",
     lambda: after(layers.Dense(3, kernel_regularizer=l2())), PIPELINE + SHARD),
    ("layer 'active': it has a regulariser of its outputs",
     lambda: after(layers.Dense(3, activity_regularizer=l2(), name="active")), PIPELINE + SHARD),
    ("its weights have constraints",
     lambda: after(layers.Dense(3, kernel_constraint="non_neg")), PIPELINE + SHARD),
    ("layer 'half': it computes in bfloat16, its weights are float32",
     lambda: after(layers.Dense(3, dtype="mixed_bfloat16", name="half")), PIPELINE + SHARD),
    ("weights 'shared/kernel' are used by layers 'shared' and 'shared'", with_shared_weights,
     PIPELINE + SHARD),
    ("are used by a layer that does not have them, among second", with_hidden_weights, SHARD),
    ("layer 'adds' calls add_loss, which parts of a model lose: make it", adding_a_loss,
     PIPELINE + SHARD),
    ("layer 'mine': Mine is no layer of Keras and may make a mask", lambda: after(own_layer()),
     PIPELINE + SHARD),
    ("it takes inputs as a list, not as a dictionary", with_a_dictionary, PIPELINE + SHARD),
    ("layer 'norm': its statistics are of a batch; use LayerNormalization",
     lambda: after(layers.BatchNormalization(name="norm")), PIPELINE),
    ("layer 'drop': Keras draws its masks batch by batch",
     lambda: after(layers.Dropout(0.5, name="drop")), PIPELINE),
    ("metrics ['mae']: compile with metrics=['accuracy'] or none",
     lambda: after(metrics=["mae"]), PIPELINE),
    ("it has losses or metrics of your own, which are tried out on the whole model; use Keras's",
     lambda: after(metrics=[lambda y, z: y[:, 0]]), SHARD),
    ("normalisation: use shard 1", synchronised, SHARD),
    ("it has its own test_step, which may need the whole model; use shard 1",
     lambda: with_own("test_step"), SHARD),
    ("its class has a call of its own", lambda: with_own("call"), PIPELINE + SHARD),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "build", "what"),
    [
        (words, build, what)
        for words, build, by in STAGES
        for what in (PIPELINE, SHARD)
        if what in by
    ],
)
def test_stages_and_shards(words, build, what):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        if what == SHARD:
            model_parallel.ShardedReplica(build(), Team(), 3).compute_gradient((X, Y))
        else:
            made = replica.of(build())
            PipelinedReplica(made, Grid(Team(), 1), "1f1b", 2, sample=X[:2]).compute_gradient(
                (X, Y)
            )
    one_line(error)


def test_an_optimizer_of_keras_is_refused():
    team, theirs = Team(), keras.optimizers.Adam(amsgrad=True)
    for model, asked in (after(), theirs), (after(optimizer=theirs), None):
        with pytest.raises(ValueError, match="shard 3: this needs an optimizer with a kernel"):
            Trainer(model_parallel.ShardedReplica(model, team), (X, Y), "synchronous", asked)


def test_batches_that_ranks_can_not_share_are_refused():
    weighted = after(loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    with pytest.raises(ValueError, match="weights of samples is no mean over samples"):
        model_parallel.ShardedReplica(weighted, Team()).try_out((X, Y, X[:, 0]), shared=True)
    batch = layers.BatchNormalization(synchronized=True, name="batch")
    with pytest.raises(
        ValueError, match=r"'batch' has synchronized=True, which only tf.distribute"
    ):
        model_parallel.ShardedReplica(after(batch), Team()).try_out((X, Y), shared=True)


def test_callbacks_of_keras_that_need_whole_weights_are_refused(tmp_path):
    x, team, of = np.ones((8, 4), np.float32), Team(), keras.callbacks
    writes = of.ModelCheckpoint(tmp_path / "model.keras")
    draws = of.TensorBoard(tmp_path / "board", histogram_freq=1)
    restores = of.EarlyStopping("loss", restore_best_weights=True)
    for stage, callback, words in (
        (3, writes, r"ModelCheckpoint would write zeros, .* use callbacks.SaveBest, or shard 2"),
        (3, draws, "TensorBoard would write zeros, as with shard 3"),
        (3, restores, r"\(shard 3\): use callbacks.EarlyStopping\(restore_best=True\)"),
        (2, restores, r"\(shard 2\): use callbacks.EarlyStopping\(restore_best=True\)"),
        (2, writes, None),
    ):
        one, how = model_parallel.ShardedReplica(after(), team, stage), {"callbacks": [callback]}
        found = Trainer(one, (x, x[:, :1]), "synchronous", progress=False, **how)
        if words is None:
            found.fit(1)
            continue
        with pytest.raises(ValueError, match=words) as error:
            found.fit(1)
        team.recover()
        assert "\n" not in str(error.value)
    saved = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(saved(x), one.predict(x))


def test_weights_that_tensorflow_assigned_are_noticed():
    x = np.ones((4, 4), np.float32)
    for stage in (2, 3):
        model = after()
        one = model_parallel.ShardedReplica(model, Team(), stage)
        one.compute_gradient((x, x[:, :1]))
        model.set_weights([np.ones_like(w) for w in model.get_weights()])
        with pytest.raises(RuntimeError, match=r"'.*' no longer lie in the replica's parameters"):
            for _ in range(4):  # one variable in each step
                one.compute_gradient((x, x[:, :1]))

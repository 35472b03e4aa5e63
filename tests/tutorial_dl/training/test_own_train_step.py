"""Models with a train_step of their own: ranks do what `fit` does with them, or refuse them."""

import numpy as np
import pytest

pytestmark = pytest.mark.xdist_group("keras")

SAMPLES, BATCH, RATE = 46, 15, 0.2  # ranks have 7 or 8 samples, and 1 or 0 of the last batch


def samples():
    dice = np.random.default_rng(5)
    x = dice.standard_normal((SAMPLES, 4)).astype(np.float32)
    return x, (x[:, :1] * x[:, 1:2] > 0).astype(np.float32)


def steps():
    """{name: function of (model, batch), what a user would write as train_step}"""
    import keras
    import tensorflow as tf

    def forward(model, x, y):
        """The loss, which Keras's metrics are told with the outputs."""
        outputs = model(x, training=True)
        loss = model.compute_loss(x=x, y=y, y_pred=outputs)
        return tell(model, loss, y, outputs)

    def tell(model, loss, y, outputs):
        for metric in model.metrics:
            if metric.name == "per_batch":
                continue
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.shape(y)[0])
            else:
                metric.update_state(y, outputs)
        return loss

    def plain(model, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = forward(model, x, y)
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return model.get_metrics_result()

    @tf.function
    def penalised(model, data):
        """A loss of two terms, one of which depends on the inputs' gradient; AutoGraph's `if`."""
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                outputs = model(x, training=True)
            slopes = tf.reduce_sum(inner.gradient(outputs, x) ** 2, axis=1)
            loss = model.compute_loss(x=x, y=y, y_pred=outputs) + 0.1 * tf.reduce_mean(slopes)
            if loss > 1000.0:
                loss = 0.5 * loss
            tell(model, loss, y, outputs)
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return model.get_metrics_result()

    def clipped(model, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = forward(model, x, y)
        weights = model.trainable_variables
        gradients = [tf.clip_by_norm(g, 1.0) for g in tape.gradient(loss, weights)]
        model.optimizer.apply(gradients, weights)
        return model.get_metrics_result()

    def contrastive(model, data):
        """Each sample is compared with all others of its batch."""
        x, y = data
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = tf.reduce_mean(tf.square(outputs - tf.transpose(outputs)) - y)
            tell(model, loss, y, outputs)
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return model.get_metrics_result()

    def twice(model, data):
        plain(model, data)
        return plain(model, data)

    def some(model, data):
        """It applies the gradients of the last layer only."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = forward(model, x, y)
        weights = model.trainable_variables[2:]
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return model.get_metrics_result()

    def others(model, data):
        plain(model, data)
        model.optimizer.gradients = None
        weight = tf.Variable(1.0)
        model.optimizer.apply([weight], [weight])

    def counts(model, data):
        if model.optimizer.iterations > 10:
            return None
        return plain(model, data)

    def of_batches(model, data):
        """Its mean loss counts batches, whatever their size."""
        x, y = data
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = model.compute_loss(x=x, y=y, y_pred=outputs)
        model.per_batch.update_state(10 * loss)
        tell(model, loss, y, outputs)
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return model.get_metrics_result()

    def noisy(model, data):
        x, y = data
        return plain(model, (x + tf.random.normal(tf.shape(x)), y))

    def directly(model, data):
        for weight in model.trainable_variables:
            weight.assign(0.9 * weight)
        return plain(model, data)

    def by_property(model, data):
        return None if model.turn > 10 else plain(model, data)

    by_layer = by_spectral = plain

    def by_dict(model, data):
        x, y = data
        return plain(model, (model.nets["drop"](x, training=True), y))

    def by_seed(model, data):
        """As variational autoencoders do; with a mean of its own over batches."""
        x, y = data
        model.per_batch.update_state(3.0)
        return plain(model, (x + keras.random.normal(tf.shape(x), seed=model.nets["seed"]), y))

    def summed(model, data):
        """Like by_seed, and a sum over samples."""
        x, y = data
        x += keras.random.normal(tf.shape(x), seed=model.nets["seed"])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x, training=True) - y) ** 2)
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}

    def gently(model, data):
        """Clipped where the present gradients aren't, nor those at larger weights."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = forward(model, x, y)
        weights = model.trainable_variables
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, weights), 3.0)
        model.optimizer.apply(gradients, weights)
        return model.get_metrics_result()

    def silent(model, data):
        plain(model, data)
        return {}

    def none(model, data):
        forward(model, *data)
        return model.get_metrics_result()

    return locals()


def counted_call(model, x, training=None, mask=None):
    if training:
        x = x + 0 * float(model.optimizer.iterations)
    return super(type(model), model).call(x, training=training, mask=mask)


def dropping():
    """A layer that drops, whatever it is told."""
    import keras

    class Dropping(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.drop = keras.layers.Dropout(0.4)
            self.normal = keras.layers.BatchNormalization()

        def call(self, x):
            return self.normal(self.drop(x, training=True), training=True)

    return Dropping()


def made(name, drops=False, masked=False):
    """A compiled model with the train_step of this name; None: Keras's."""
    import keras

    own = {} if name is None else {"train_step": steps().get(name) or steps()["plain"]}
    own["turn"] = property(lambda model: model.optimizer.iterations)
    if name == "by_call":
        own["call"] = counted_call
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(6, "tanh")
    x = (keras.layers.SpectralNormalization(x) if name == "by_spectral" else x)(inputs)
    x = dropping()(x) if name == "by_layer" else x
    x = keras.layers.BatchNormalization()(keras.layers.Dropout(0.4)(x)) if drops else x
    x = keras.layers.Masking()(keras.layers.Reshape((1, 6))(x)) if masked else x
    outputs = keras.layers.Dense(1, "sigmoid", kernel_regularizer="l2")(x)
    model = type("Mine", (keras.Model,), own)(inputs, outputs, name="mine")
    metrics = [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]
    model.nets = {"drop": keras.layers.Dropout(0.4), "seed": keras.random.SeedGenerator(4)}
    if name in ("of_batches", "by_seed"):
        model.per_batch = keras.metrics.Mean(name="per_batch")
    model.compile(keras.optimizers.SGD(RATE, 0.5), "binary_crossentropy", metrics=metrics)
    return model


def trains_as_fit(name, team, eager=False):
    from as_fit import as_fit

    def make():
        model = made(name)
        model.run_eagerly = eager
        return model

    x, y = samples()
    history = as_fit(make, (x, y), (x[::-1], y[::-1]), team, BATCH)
    assert {"auc", "precision", "val_auc", "val_precision"} < history.last.keys()


def with_batches(team):
    """A metric that counts batches does not depend on how ranks cut them."""
    from tutorial_dl import Trainer

    x, y = samples()
    options = dict(team=team, batch_size=BATCH, progress=False)
    row = Trainer(made("of_batches"), (x, y), **options).fit(1).last
    assert row["per_batch"] == pytest.approx(10 * row["loss"], rel=1e-5)


def each_rank():
    from mpi4py import MPI

    from tutorial_dl import Team, Trainer, strategies

    team, one = Team(), Team(MPI.COMM_SELF)
    for name in (None, "plain", "penalised", "some"):
        trains_as_fit(name, team)
    if team.rank == 0:
        for name in ("clipped", "contrastive"):  # on one rank there is nothing to add up
            trains_as_fit(name, one)
    x, y = samples()
    for name, words in (
        ("clipped", "clips gradients or changes them otherwise"),
        ("contrastive", "gradients of two parts of a batch that do not add up to it"),
        ("noisy", "draws random numbers"),
    ):
        with pytest.raises(ValueError, match=f"'mine': its train_step .*{words}.*horovod") as said:
            Trainer(made(name), (x, y), team=team)
        assert len(str(said.value)) <= 200
    import keras

    keras.config.set_dtype_policy("mixed_float16")
    try:
        Trainer(made("plain"), (x, y), team=team, progress=False).fit(1)
    finally:
        keras.config.set_dtype_policy("float32")
    masked = made("plain", masked=True)
    with pytest.raises(ValueError, match=r"has a mask, so .* use it with an asynchronous strategy"):
        Trainer(masked, (x, y[:, None]), team=team)
    with_batches(team)
    # Asynchronous workers have batches of their own.
    Trainer(made("contrastive"), (x, y), strategies.Downpour(team=team))
    # Dropout and batch normalisation differ between parts of a batch; they are no reason to refuse.
    losses = Trainer(made("plain", True), (x, y), team=team, progress=False).fit(5).column("loss")
    assert losses[-1] < losses[0]


@pytest.mark.thorough
def test_two_ranks_train_as_fit_does(on_ranks):
    on_ranks(2, each_rank, keras=True)


def several_without_samples():
    """Of 3 ranks, two have none of the last batch."""
    from tutorial_dl import Team

    trains_as_fit("plain", Team(), eager=True)


def test_three_ranks_train_as_fit_does(on_ranks):
    on_ranks(3, several_without_samples, keras=True)


@pytest.mark.parametrize("name", ["by_layer", "by_dict", "by_seed", "by_spectral"])
def test_steps_that_ranks_can_share(name):
    from tutorial_dl import replica

    ours = replica.of(made(name))
    before = ours.parameters.copy()
    ours.try_out(tuple(part[:12] for part in samples()), shared=True)
    np.testing.assert_array_equal(ours.parameters, before)
    assert not ours.step.whole.metrics
    by_batch = [metric.name for metric in ours.training.by_batch]
    assert by_batch == ["per_batch"] * (name == "by_seed")
    ours.compute_gradient(tuple(part[:12] for part in samples()))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("summed", "gradients of two parts of a batch that do not add up to it"),
        ("gently", "clips gradients or changes them otherwise"),
    ],
)
def test_steps_that_ranks_can_not_share(name, words):
    from tutorial_dl import replica

    x, y = samples()
    with pytest.raises(ValueError, match=f"'mine': its train_step .*{words}"):
        replica.of(made(name)).try_out((x[:12], y[:12]), shared=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("twice", "applies gradients more than once"),
        ("others", "applies gradients to weights that are not trainable"),
        ("counts", "reads optimizer.iterations, which others count here"),
        ("by_property", "reads optimizer.iterations, which others count here"),
        ("by_call", "reads optimizer.iterations, which others count here"),
        ("directly", "changes weights without the compiled optimizer"),
        ("silent", "returns no 'loss'"),
        ("none", "applies no gradients by the compiled optimizer"),
    ],
)
def test_steps_that_are_refused_on_one_rank_too(name, words):
    from tutorial_dl import replica

    model = made(name)
    before, rate = model.get_weights(), model.optimizer
    with pytest.raises(ValueError, match=f"model 'mine': its train_step {words}; .*horovod"):
        replica.of(model).try_out(tuple(part[:4] for part in samples()), shared=False)
    assert model.optimizer is rate
    if name != "directly":
        for a, b in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_step_with_optimizers_of_its_own_is_shown_two_ways():
    import keras

    from tutorial_dl import replica

    class Gan(keras.Model):  # as Keras's guide writes it: never called, so not built
        def __init__(self):
            super().__init__(name="gan")
            self.generator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
            self.discriminator = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])

        def compile(self, d_optimizer, g_optimizer):
            super().compile()
            self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

        def train_step(self, data):
            raise AssertionError("not tried")

    model = Gan()
    model.compile(keras.optimizers.Adam(), keras.optimizers.Adam())
    own = r"optimizers of its own \(d_optimizer, g_optimizer\).* gan_trainer .*tutorial_dl.horovod"
    with pytest.raises(ValueError, match=own):
        replica.of(model)

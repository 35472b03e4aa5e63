"""A compiled optimizer, as one of ours or applied by Keras, does what Keras's own `apply` does."""

import numpy as np
import pytest

pytestmark = pytest.mark.xdist_group("keras")

STEPS = 6


def network():
    import keras

    keras.utils.set_random_seed(4)
    chain = [keras.layers.Dense(3, "tanh", name="first"), keras.layers.Dense(2, name="second")]
    words = keras.layers.Embedding(5, 2, name="embedding")  # Muon goes by names
    return keras.Sequential([keras.Input((3,)), words, keras.layers.Flatten(), *chain])


def piecewise():
    import keras

    return keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.1, 0.05, 0.01])


def without_decay(names, optimizer):
    optimizer.exclude_from_weight_decay(var_names=names)
    return optimizer


# A function of keras.optimizers, and the class that it becomes
OURS = {
    "sgd": (lambda o: o.SGD(0.5), "SGD"),
    "nesterov": (lambda o: o.SGD(0.1, momentum=0.9, nesterov=True), "SGD"),
    "adagrad": (lambda o: o.Adagrad(0.1, initial_accumulator_value=0.3), "Adagrad"),
    "adadelta": (lambda o: o.Adadelta(1.0, rho=0.9, epsilon=1e-5), "Adadelta"),
    "rmsprop": (lambda o: o.RMSprop(0.01, rho=0.8, momentum=0.5, centered=True), "RMSprop"),
    "adam": (lambda o: o.Adam(0.05, beta_1=0.8, beta_2=0.99, epsilon=1e-4), "Adam"),
    "adam that decays": (lambda o: o.Adam(0.05, weight_decay=0.2), "AdamW"),
    "adamw": (lambda o: o.AdamW(piecewise(), weight_decay=0.1), "AdamW"),
    "nadam": (lambda o: o.Nadam(0.02), "Nadam"),
    "lion": (lambda o: o.Lion(0.01, weight_decay=0.3), "Lion"),
    "clipped": (lambda o: o.SGD(0.5, global_clipnorm=0.2), "SGD"),
    "scaled": (lambda o: o.LossScaleOptimizer(o.Adam(0.05)), "Adam"),
}
BY_KERAS = {
    "amsgrad": lambda o: o.Adam(0.05, amsgrad=True),
    "clipnorm": lambda o: o.SGD(0.3, momentum=0.9, clipnorm=0.1),
    "clipvalue": lambda o: o.Adam(piecewise(), clipvalue=0.01),
    "sgd that decays": lambda o: without_decay(["bias"], o.SGD(0.3, weight_decay=0.5)),
    "adamw without biases": lambda o: without_decay(["bias"], o.AdamW(0.1, weight_decay=0.5)),
    "adamw without a layer": lambda o: without_decay(["second/"], o.AdamW(0.1, weight_decay=0.5)),
    "adafactor": lambda o: o.Adafactor(0.05),
    "ftrl": lambda o: o.Ftrl(0.1, l1_regularization_strength=0.01),
    "lamb": lambda o: o.Lamb(0.05),
    "muon": lambda o: o.Muon(0.01, exclude_layers=["second"]),
    "schedule-free": lambda o: o.ScheduleFreeAdamW(0.01),  # begins with a copy of the weights
    "two passes": lambda o: o.Adam(0.05, gradient_accumulation_steps=2),
}


def gradients(model, step):
    dice = np.random.default_rng(step)
    return [dice.standard_normal(v.shape).astype(np.float32) for v in model.trainable_variables]


def expected(make):
    """The weights after each update by Keras."""
    import keras

    model, optimizer = network(), make(keras.optimizers)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    for step in range(STEPS):
        optimizer.apply(gradients(model, step), model.trainable_variables)
        yield [v.numpy() for v in model.trainable_variables]


def of_network(make):
    """(replica, what it has brought)"""
    import keras

    from tutorial_dl import replica

    model = network()
    model.compile(make(keras.optimizers), "mse")
    made = replica.of(model)
    return made, made.own_optimizer()


def updated(of, brought, state, step):
    """One update, as strategies and the Trainer do it."""
    from numba_kernels.optimizers import clip_by_norm

    for segment, one in zip(of.segments, gradients(of.model, step), strict=True):
        segment.view(of.gradient)[...] = one
    optimizer = brought.optimizer
    if brought.schedule is not None:
        optimizer = optimizer.at_rate(brought.schedule(step))
    if brought.clip_norm is not None:
        clip_by_norm(of.gradient, brought.clip_norm)
    optimizer.update(of.parameters, of.gradient, state)


@pytest.mark.thorough(but=["sgd", "nesterov", "adam", "adamw", "rmsprop", "clipnorm"])
@pytest.mark.parametrize("name", [*OURS, *BY_KERAS])
def test_a_compiled_optimizer_does_what_keras_does(name):
    make = OURS[name][0] if name in OURS else BY_KERAS[name]
    of, brought = of_network(make)
    found = brought.optimizer
    assert found.undivided == (name in BY_KERAS) and not brought.by_default
    if name in OURS:
        assert type(found).__name__ == OURS[name][1]
    state = found.init(of.parameters.size, np.float32, of.segments)
    begin = [v.numpy() for v in of.model.trainable_variables]
    for step, theirs in enumerate(expected(make)):
        updated(of, brought, state, step)
        for mine, weights in zip(of.model.get_weights(), theirs, strict=True):
            np.testing.assert_allclose(mine, weights, rtol=0, atol=3e-6)
    assert max(np.abs(a - b).max() for a, b in zip(begin, theirs, strict=True)) > 0.01
    used = np.zeros(of.parameters.size, bool)
    for segment in of.segments:
        used[segment.offset : segment.offset + segment.size] = True
    assert not of.parameters[~used].any()  # the gaps


@pytest.mark.parametrize("name", ["adafactor", "two passes"])
def test_the_state_of_a_keras_optimizer_is_in_its_slots(name):
    """A copy of `step` and `slots` continues with the same bits: checkpoints hold nothing else."""
    of, brought = of_network(BY_KERAS[name])
    state = brought.optimizer.init(of.parameters.size, np.float32, of.segments)
    for step in range(3):
        updated(of, brought, state, step)
    weights, step, slots = of.parameters.copy(), state.step, state.slots.copy()
    assert step == 3 and slots.any()
    updated(of, brought, state, 3)
    after = of.parameters.copy()
    again = brought.optimizer.init(of.parameters.size, np.float32, of.segments)
    again.step, again.slots[:] = step, slots
    of.parameters[:] = weights
    updated(of, brought, again, 3)
    np.testing.assert_array_equal(of.parameters, after)
    np.testing.assert_array_equal(again.slots, state.slots)


def test_what_compile_chooses_by_itself_and_what_is_refused():
    import keras

    from tutorial_dl import replica

    model = network()
    model.compile(loss="mse")
    brought = replica.of(model).own_optimizer()
    assert brought.by_default and brought.optimizer.name == "rmsprop"
    for given in (None, keras.optimizers.RMSprop(0.01)):
        model.compile(given, "mse")
        brought = replica.of(model).own_optimizer()
        assert brought is None if given is None else not brought.by_default
    one = keras.optimizers.SGD(0.1)
    model.compile(keras.optimizers.MultiOptimizer(lambda weight: one), "mse")
    with pytest.raises(ValueError, match="compiled with a MultiOptimizer, which has no learning"):
        replica.of(model).own_optimizer()

    class Unsaid(keras.optimizers.SGD):
        def __init__(self, rate, factor=2.0):
            super().__init__(rate * factor)

    model.compile(Unsaid(0.1), "mse")
    with pytest.raises(
        ValueError, match="optimizer Unsaid has an __init__ of its own and no get_c"
    ):
        replica.of(model).own_optimizer()
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse")
    with pytest.raises(ValueError, match=r"use_ema=True, which model\.fit completes"):
        replica.of(model).own_optimizer()
    import tutorial_dl.horovod.keras as hvd

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(ValueError, match="reduces gradients a second time"):
        replica.of(model).own_optimizer()


def test_jit_compile_and_run_eagerly_are_heeded():
    from tutorial_dl import replica

    dice = np.random.default_rng(1)
    batch = dice.integers(0, 5, (8, 3)), dice.standard_normal((8, 2)).astype(np.float32)
    found = {}
    for how in ("graph", "jit_compile", "run_eagerly"):
        model = network()
        model.compile(loss="mse", **({} if how == "graph" else {how: True}))
        of = replica.of(model)
        loss, samples = of.compute_gradient(batch)
        found[how] = loss, of.gradient.copy()
        assert samples == 8 and of.evaluate([batch])["loss"] == pytest.approx(loss)
        graphs = [str(graph.graph.as_graph_def()) for graph, *_ in of.graphs.functions.values()]
        assert bool(graphs) == (how != "run_eagerly")
        assert any("_XlaMustCompile" in graph for graph in graphs) == (how == "jit_compile")
    for loss, gradient in found.values():
        assert loss == pytest.approx(found["graph"][0], rel=1e-6)
        np.testing.assert_allclose(gradient, found["graph"][1], atol=1e-6)


def test_weights_that_no_loss_uses_do_not_decay():
    import keras

    from tutorial_dl import Trainer

    def made():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        x = keras.layers.Dense(5)(inputs)
        model = keras.Model(inputs, [keras.layers.Dense(1)(x), keras.layers.Dense(2)(x)])
        model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.5), ["mse", None])
        return model

    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    y, mine, theirs = x.sum(1, keepdims=True), made(), made()
    theirs.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    data = (x, y), (x, y)
    Trainer(mine, data, "serial", batch_size=16, shuffle=False, progress=False).fit(2)
    for one, other in zip(mine.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)

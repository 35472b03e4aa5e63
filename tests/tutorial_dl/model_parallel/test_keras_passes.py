"""A graph cut into a forward and a backward pass gives what a tape gives; effects are not cut."""

import numpy as np
import pytest
from keras_networks import tf

pytestmark = pytest.mark.xdist_group("keras")


def passes_of(*arguments):
    from tutorial_dl.model_parallel.keras_passes import passes_of as made

    return made(*arguments)


def of(*shape):
    return tf.constant(np.random.default_rng(len(shape)).standard_normal(shape), tf.float64)


def spec(like):
    return tf.TensorSpec((None, *like.shape[1:]), like.dtype)


@pytest.mark.parametrize("apart", [False, True])
def test_the_passes_give_what_a_tape_gives(apart):
    """Outputs that are integers, or inputs; weights and an input that nothing depends on."""
    table, kernel, unused = tf.Variable(of(5, 3)), tf.Variable(of(4, 3)), tf.Variable(of(2, 2))
    weights = [table, kernel, unused]

    def compute(x):
        words, numbers, _ = x
        found = tf.gather(table, words) * tf.tanh(numbers @ kernel)
        return [tf.exp(found), tf.identity(words), tf.identity(numbers)]

    x = [tf.constant([1, 4, 1]), of(3, 4), of(3, 2)]
    gy = [of(3, 3), of(3, 4)]
    with tf.GradientTape() as tape:
        tape.watch(x[1:])
        y = compute(x)
    expected = tape.gradient([y[0], y[2]], [*x[1:], *weights], gy)
    given = [spec(a) for a in x], [spec(a) for a in y]
    passes = passes_of(compute, *given, [1, 2], weights, apart)
    found, held = passes.forward(x)
    for one, right in zip(found, y, strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-12)
    (by_numbers, by_aside), kept = passes.backward_inputs(gy, held)
    by_weights = passes.backward_weights(kept)
    np.testing.assert_allclose(by_numbers, expected[0], rtol=1e-12)
    assert expected[1] is None and not by_aside.numpy().any()
    assert expected[4] is None and by_weights[2] is None
    for one, right in zip(by_weights[:2], expected[2:4], strict=True):
        np.testing.assert_allclose(one, tf.convert_to_tensor(right), rtol=1e-12)
    # The forward pass is not computed again: it would use the new weights
    kernel.assign(of(4, 3) * 2)
    again = passes.backward_weights(passes.backward_inputs(gy, held)[1])
    for one, right in zip(again[:2], by_weights, strict=False):
        np.testing.assert_array_equal(one, right)


@pytest.mark.parametrize("effect", ["assigns", "draws", "calls"])
def test_a_function_with_effects_is_not_cut(effect):
    kernel, count = tf.Variable(of(4, 3)), tf.Variable(0.0, trainable=False)

    def compute(x):
        y = x[0] @ kernel
        if effect == "assigns":
            count.assign_add(1.0)
        elif effect == "draws":
            y *= tf.random.uniform(tf.shape(y), dtype=y.dtype)
        else:
            y += tf.numpy_function(np.sin, [y], y.dtype)
        return [y]

    given = [tf.TensorSpec((None, 4), tf.float64)], [tf.TensorSpec((None, 3), tf.float64)]
    assert passes_of(compute, *given, [0], [kernel]) is None

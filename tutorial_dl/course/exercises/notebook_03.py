"""Checks of notebook 03, a neural network."""

import numpy as np

from . import call, close, must_be, must_have, must_not_be_scaled


def weights(answer) -> str:
    """The weights of 64 filters of 5 x 5 on three channels, and of a dense layer of 64 units."""
    found = must_have(answer, 2, "two numbers: of the convolution, of the dense layer")
    for name, n, channels in (("the convolution", 25 * 3, 3), ("the dense layer", 1024 * 3, 3)):
        mistakes = {
            "the biases are missing": 64 * n,
            "the image has three channels": 64 * (n // channels + 1),
            "one bias per output, not one for all": 64 * n + 1,
            "this is one output; there are 64": n + 1,
        }
        must_be(found.pop(0), 64 * (n + 1), name, mistakes, rtol=1e-9, units=False)
    return "a fortieth of the weights, used at 28 x 28 places"


def backward(answer) -> str:
    """The gradient of a network with one hidden relu layer, compared with DenseReplica's."""
    from tutorial_dl.replica import DenseReplica

    random = np.random.default_rng(3)
    names = ("dW1", "db1", "dW2", "db2")
    for samples, hidden in ((7, 3), (1, 1), (20, 8)):
        network = DenseReplica((1, hidden, 1), "relu", "mse", dtype="float64")
        network.parameters[:] = random.standard_normal(len(network.parameters))
        x, y = random.standard_normal((2, samples, 1))  # each (s, 1)
        network.compute_gradient((x, y))
        gradients = call(answer, x, y, *network.weights)
        gradients = must_have(gradients, 4, "four arrays: dW1, db1, dW2, db2")
        bent = {
            "the activation is relu, not tanh: what is its slope?": lambda a: 1 - a**2,
            "the slope of relu is missing: below the hinge it is flat": np.ones_like,
        }
        wrong = {hint: _backward(x, y, *network.weights, bend) for hint, bend in bent.items()}
        for i, (name, right) in enumerate(zip(names, network.weights_gradient, strict=True)):
            downhill = f"{name} points downhill: it has the wrong sign"
            must_not_be_scaled(gradients[i], right, name, downhill, samples)
            mistakes = {hint: arrays[i] for hint, arrays in wrong.items()}
            close(gradients[i], right, f"{name} (s = {samples}, {hidden} units)", mistakes)
    return "it agrees with DenseReplica in every parameter"


def _backward(x, y, W1, b1, W2, b2, slope) -> tuple:
    """The four gradients, with any `slope` of the activation in place of relu's."""
    a = np.maximum(x @ W1 + b1, 0)
    delta_f = 2 / len(x) * (a @ W2 + b2 - y)
    delta_z = (delta_f @ W2.T) * slope(a)
    return x.T @ delta_z, delta_z.sum(axis=0), a.T @ delta_f, delta_f.sum(axis=0)

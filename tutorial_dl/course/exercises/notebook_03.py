"""Checks of notebook 03, a neural network."""

import numpy as np

from . import NotYet, call, close, counted, must_have, must_not_be_scaled, whole

WITHIN = 0.001  # of exercise 1


def units(answer) -> str:
    """The fewest hinges that follow sin(pi x) on [-1, 1] to 0.001 everywhere."""
    n = whole(answer, 1, None, "the number of units")
    if n > 100_000:
        raise NotYet(f"{n} is far more than needed")
    if n == int(np.ceil(np.sqrt(np.pi**2 / (8 * WITHIN)))):
        raise NotYet(
            f"{counted(n, 'unit')} would do for an interval of length 1; from -1 to 1 it is longer"
        )
    error = _hinge_error(n)
    if error > WITHIN:
        raise NotYet(f"{counted(n, 'unit')} would be off by up to {error:.4g}, more than {WITHIN}")
    if _hinge_error(n - 1) <= WITHIN:
        raise NotYet(
            f"{counted(n, 'unit')} would be enough (off by {error:.4g}), but so would fewer"
        )
    return f"the largest error is {error:.6f}"


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


def _hinge_error(units: int) -> float:
    """Largest error of interpolating sin(pi x) linearly between units + 1 equally spaced knots."""
    if units < 1:
        return np.inf
    x = np.linspace(-1, 1, 200_001)
    knots = np.linspace(-1, 1, units + 1)
    return float(np.abs(np.interp(x, knots, np.sin(np.pi * knots)) - np.sin(np.pi * x)).max())

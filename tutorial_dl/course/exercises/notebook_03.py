"""Checks of notebook 03, a neural network."""

import numpy as np

from . import NotYet, call, close, must_be_whole, must_have, must_not_be_scaled


def units(answer) -> str:
    """The fewest hinges that follow sin(pi x) on [-1, 1] to 0.001 everywhere."""
    must_be_whole(answer, 1, None, "the number of units")
    if answer > 100_000:
        raise NotYet(f"{answer} is far more than needed")
    error = _hinge_error(int(answer))
    if error > 0.001:
        raise NotYet(f"{answer} units are off by up to {error:.4g}")
    if _hinge_error(int(answer) - 1) <= 0.001:
        raise NotYet(f"{answer} units are enough (off by {error:.4g}), but so are fewer")
    return f"the largest error is {error:.6f}"


def backward(answer) -> str:
    """The gradient of a network with one hidden relu layer, compared with DenseReplica's."""
    from tutorial_dl.replica import DenseReplica

    random = np.random.default_rng(3)
    names = ("dW1", "db1", "dW2", "db2")
    for samples, hidden in ((1, 1), (7, 3), (20, 8)):
        network = DenseReplica((1, hidden, 1), "relu", "mse", dtype="float64")
        network.parameters[:] = random.standard_normal(len(network.parameters))
        x, y = random.standard_normal((2, samples, 1))  # each (s, 1)
        network.compute_gradient((x, y))
        gradients = call(answer, x, y, *network.weights)
        must_have(gradients, 4, "four arrays: dW1, db1, dW2, db2")
        for name, gradient, right in zip(names, gradients, network.weights_gradient, strict=True):
            if np.shape(gradient) == right.shape and np.any(right):
                downhill = f"{name} points downhill: it has the wrong sign"
                must_not_be_scaled(gradient, right, name, downhill, f" for s = {samples}")
            close(gradient, right, f"{name} (s = {samples}, {hidden} units)", 1e-9, 1e-12)
    return "it agrees with DenseReplica in every parameter"


def _hinge_error(units: int) -> float:
    """Largest error of interpolating sin(pi x) linearly between units + 1 equally spaced knots."""
    if units < 1:
        return np.inf
    x = np.linspace(-1, 1, 200_001)
    knots = np.linspace(-1, 1, units + 1)
    return float(np.abs(np.interp(x, knots, np.sin(np.pi * knots)) - np.sin(np.pi * x)).max())

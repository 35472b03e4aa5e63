"""The smallest game: one number against one number. It shows why GANs oscillate.

All data lie at 0, and the generator makes a single sample, x. The discriminator is a line through
0, D(t) = y t. With f(t) = -ln(1 + e^-t), x descends and y climbs the same

    L(x, y) = f(x y) + f(0)

so the game's field is (-f'(x y) y, f'(x y) x), with f'(0) = 1/2. At the only equilibrium, (0, 0),
the linearised field turns, and neither grows nor shrinks. A penalty (gamma / 2) y^2, the squared
gradient of D at the data, pulls y back. ("Dirac-GAN": Mescheder et al., arXiv 1801.04406.)
"""

import numpy as np

WAYS = ("at once", "in turn")


def duel(
    start: tuple[float, float], rate: float, steps: int, way: str = "in turn", penalty: float = 0.0
) -> np.ndarray:
    """The path of (x, y), shape (steps + 1, 2).

    Args:
        start: (x, y) at first.
        rate: Learning rate of both.
        steps: Steps of each.
        way: "at once": both move from the same point; "in turn": y sees where x has gone.
        penalty: gamma.
    """
    if way not in WAYS:
        raise ValueError(f'way must be "at once" or "in turn", got {way!r}')
    path = [np.array(start, float)]
    for _ in range(steps):
        x, y = path[-1]
        new_x = x - rate * slope(x * y) * y
        seen = x if way == "at once" else new_x
        new_y = y + rate * (slope(seen * y) * seen - penalty * y)
        path.append(np.array([new_x, new_y]))
    return np.array(path)


def slope(t: float) -> float:
    """f'(t) = 1 / (1 + e^t)."""
    return 1 / (1 + np.exp(t))


def duel_matrix(rate: float, way: str = "in turn", penalty: float = 0.0) -> np.ndarray:
    """The matrix that multiplies (x, y) in a step near (0, 0), shape (2, 2)."""
    if way not in WAYS:
        raise ValueError(f'way must be "at once" or "in turn", got {way!r}')
    half = rate / 2
    move_x = np.array([[1, -half], [0, 1]])
    move_y = np.array([[1, 0], [half, 1 - rate * penalty]])
    return move_y @ move_x if way == "in turn" else move_y + move_x - np.eye(2)


def duel_factor(rate: float, way: str = "in turn", penalty: float = 0.0) -> float:
    """By how much a step near (0, 0) multiplies the distance from there, over a whole turn.

    It is the largest modulus of the eigenvalues of `duel_matrix`: above 1 the path spirals
    outwards. Without a penalty it is sqrt(1 + rate^2 / 4) at once, and 1 in turn (for rate < 4).
    """
    return float(np.abs(np.linalg.eigvals(duel_matrix(rate, way, penalty))).max())

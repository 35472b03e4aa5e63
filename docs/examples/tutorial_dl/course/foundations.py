"""Examples of tutorial_dl.course.foundations."""

# %% Polynomials of three degrees
# shows: Polynomial, fit, Curve
import numpy as np

from tutorial_dl.course.foundations import Polynomial, fit

x = np.linspace(-1, 1, 50)
y = np.sin(3 * x)
for degree in (1, 3, 5):
    curve = fit(Polynomial(degree), x, y)  # a Curve
    print(f"degree {degree}: {np.mean((curve(x) - y) ** 2):.1e}")

# %% Descent on a parabola, and its largest curvature
# shows: LeastSquares, descend, Descent, largest_curvature, solve_qr
import numpy as np

from tutorial_dl.course import foundations as f

design, targets = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]), np.array([1.0, 2.0, 2.5])
loss = f.LeastSquares(design, targets)
run = f.descend(loss, np.zeros(2), 0.2, epochs=100)  # a Descent
print(run.path[-1].round(4), f.solve_qr(design, targets).round(4), run.ended_by)
print(round(f.largest_curvature(loss.gradient, np.zeros(2)), 4), np.linalg.eigvalsh(loss.hessian()))

# %% Old gradients
# shows: delay_bound, delayed_descent, delayed_growth, largest_rate, implicit_momentum
# shows: random_order_path
from tutorial_dl.course.foundations import (
    delay_bound,
    delayed_descent,
    delayed_growth,
    implicit_momentum,
    largest_rate,
    random_order_path,
)

print(round(delay_bound(tau=1), 4), round(largest_rate(tau=1, momentum=0.0), 4))
print(delayed_descent(0.5, tau=1, start=1.0, steps=4), round(delayed_growth(0.5, tau=1), 4))
print("4 workers add momentum", implicit_momentum(4))
print(random_order_path(0.5, workers=4, start=1.0, steps=3).round(3))

# %% Elastic averaging, energy matching
# shows: resting_places, matched_pace
import numpy as np

from tutorial_dl.course.foundations import matched_pace, resting_places

print(resting_places(0.1, 0.2, np.array([[-1.0], [1.0]]), np.array([1.0])))
print(round(matched_pace(workers=4, kappa=1.0, momentum=0.9), 3))

# %% One master and its workers
# shows: saturation, regular_throughput, random_throughput, first_come_first_served
import numpy as np

from tutorial_dl.course.foundations import (
    first_come_first_served,
    random_throughput,
    regular_throughput,
    saturation,
)

print(saturation(compute=3.0, serve=1.0))
for workers in (2, 4, 8):
    print(
        workers, regular_throughput(workers, 3.0, 1.0), round(random_throughput(workers, 3, 1), 3)
    )
print(first_come_first_served(np.full((2, 2), 3.0), np.full(4, 1.0)))

# %% The smallest game of two players
# shows: duel, duel_factor, duel_matrix
from tutorial_dl.course.foundations import duel, duel_factor, duel_matrix

print(duel((1.0, 0.0), rate=0.5, steps=2, way="at once").round(3).tolist())
print(duel_matrix(0.5, "at once"))
print(round(duel_factor(0.5, "at once"), 4), round(duel_factor(0.5, "at once", penalty=1.0), 4))

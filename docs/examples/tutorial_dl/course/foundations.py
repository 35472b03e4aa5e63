"""Examples of tutorial_dl.course.foundations."""

# %% Polynomials of three degrees
# shows: Polynomial, fit, Curve, mean_squared_error
import numpy as np

from tutorial_dl.course.foundations import Polynomial, fit, mean_squared_error

x = np.linspace(-1, 1, 50)
y = np.sin(3 * x)
for degree in (1, 3, 5):
    curve = fit(Polynomial(degree), x, y)  # a Curve
    print(f"degree {degree}: {mean_squared_error(curve(x), y):.1e}")

# %% Descent on a parabola, and what the theory says
# shows: LeastSquares, descend, Descent, stability_bound, best_rate, contraction, predicted_path
# shows: noise_floor, largest_curvature, solve_qr, solve_normal_equations
import numpy as np

from tutorial_dl.course import foundations as f

design, targets = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]), np.array([1.0, 2.0, 2.5])
loss = f.LeastSquares(design, targets)
rate = f.best_rate(loss.hessian())
run = f.descend(loss, np.zeros(2), rate, epochs=100)  # a Descent
print(run.path[-1].round(4), f.solve_qr(design, targets).round(4))
print(f.solve_normal_equations(design, targets).round(4), run.ended_by)
print("rates below", round(f.stability_bound(loss.hessian()), 3), "converge; each step leaves")
print(round(f.contraction(loss.hessian(), rate), 3), "of the error")
print(np.allclose(f.predicted_path(loss, np.zeros(2), rate, 3), run.path[:4]))
print(round(f.largest_curvature(loss.gradient, np.zeros(2)), 4), np.linalg.eigvalsh(loss.hessian()))
print(f"random batches of 1 end {f.noise_floor(loss, 0.05, 1):.4f} above the least loss")

# %% Errors of a fit before any data are drawn
# shows: expected_errors
import numpy as np

from tutorial_dl.course.foundations import Polynomial, expected_errors

x = np.linspace(-1, 1, 20)
for degree in (1, 3, 12):
    errors = expected_errors(Polynomial(degree), x, x + 0.05, lambda x: x**3, noise=0.1)
    print(degree, np.round(errors, 4))

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
# shows: elastic_growth, resting_places, center_deviation, matched_pace
import numpy as np

from tutorial_dl.course.foundations import (
    center_deviation,
    elastic_growth,
    matched_pace,
    resting_places,
)

print(round(elastic_growth(0.1, 0.2, workers=4, curvature=1.0), 4))
print(resting_places(0.1, 0.2, np.array([[-1.0], [1.0]]), np.array([1.0])))
print(round(center_deviation(0.1, 0.2, workers=4), 4))
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

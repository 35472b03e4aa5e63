"""`Bayesian`: the next set of values is where a Gaussian process expects the most improvement.

    y    values measured so far, made more alike (`levelled`)
    EI   (b - m) Phi(z) + sd phi(z), z = (b - m) / sd, with b the best mean at a measured point

1. The first sets fill the space evenly (a Sobol sequence).
2. Then the kernel's lengths are fitted, and a trial that is still running counts as if it had come
   out at the mean (kriging believer), so that trials at once differ from each other.
3. The acquisition is highest somewhere among a thousand points; from the best ones it climbs by its
   gradient in the numbers and by single changes in categories and whole numbers, in turn.

What is called noise may be ripples that are too narrow for a few trials to resolve. Then the place
where the mean is lowest would be tried again and again, each time with the same value. So sets keep
a distance that grows with the noise.

Leaders that choose at the same moment (leader.py) don't know each other's sets: each supposes that
others choose as it would, one after the other, and adds these to the trials in training.

A choice must take far less time than a training, so of very many trials the best ones are used, and
as many at random.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr

from .gaussian_process import Process, fit, log_expected_improvement, log_improvement
from .proposing import Proposing, Seen
from .space import choices_of, columns_of

# Trials, at most: finished ones that the mean and variance use, and those that lengths are fitted
# to; others in training, or in choice, that count as if they had ended (more, if few have)
KNOWN, FITTED, BELIEVED = 250, 200, 50
CANDIDATES = 1024
NEAR = 0.1, 0.02, 0.004  # how far from good points others are tried
CLIMBS = 4
ROUNDS = 3  # of a climb, at most
CHANGES = 3  # of categories and whole numbers in a round, at most
# The least distance of a set from others, which keeps the search from creeping, and trials at once
# from being all but one.
APART, APART_PENDING = 1e-5, 2e-3
APART_NOISY = 0.1  # times the deviation of the noise, in units of the amplitude's


class Bayesian(Proposing):
    """Bayesian optimisation with a Gaussian process."""

    def __init__(self, space, seed: int | None = None, common: int | None = None):
        from scipy.stats import qmc  # changes warnings' filters
        from threadpoolctl import ThreadpoolController  # changes the environment

        super().__init__(space, seed, common)
        self.sizes = [columns_of(one) for _, one in space]
        self.libraries = ThreadpoolController()
        self.first = max(5, min(10, space.columns + 1))
        self.sobol = qmc.Sobol(space.columns, rng=self.common)
        self.hyper: np.ndarray | None = None
        self.fitted = 0  # finished trials when the lengths were fitted

    def propose(self, seen: Seen) -> dict:
        # Matrices are small, and threads that wait for a core make a choice several times slower
        with self.libraries.limit(limits=1, user_api="blas"):
            return self._chosen(seen)

    def _chosen(self, seen: Seen) -> dict:
        begun = len(seen.values) + len(seen.pending)
        if begun < self.first or len(seen.values) < 3:
            self.sobol.reset()
            if passed := len(seen.tried) + seen.place:
                self.sobol.fast_forward(passed)
            return self.space.decode(self.sobol.random(1)[0])
        chosen = self._some(seen.values, KNOWN)
        rows, y = seen.rows[chosen], levelled(seen.values[chosen])
        self._fit(rows, y, len(seen.values))
        process = Process(rows, y, self.hyper, self.sizes)
        pending = seen.pending
        room = KNOWN + BELIEVED - len(rows)
        if len(pending) > room:  # those where others might be chosen
            score = self._score(process, pending, float(process.at(rows)[0].min()))
            pending = pending[np.argsort(-score)[:room]]
        # The believed results count, too: else all pending trials would crowd at one minimum
        best = float(process.at(np.concatenate([rows, pending]))[0].min())
        if len(pending):
            process = process.believing(pending)
        return self._highest(process, best, seen)

    def _some(self, values: np.ndarray, most: int) -> np.ndarray:
        """The places of all values, or of `most` of them: the best ones, and others at random."""
        if len(values) <= most:
            return np.arange(len(values))
        order = np.argsort(values)
        rest = self.random.choice(order[most // 2 :], most - most // 2, replace=False)
        return np.concatenate([order[: most // 2], rest])

    def _fit(self, rows: np.ndarray, y: np.ndarray, finished: int) -> None:
        """Fit again after each trial up to the 50th, later when 2% more have finished; of very many
        trials when 20% more have, and to fewer of them."""
        many = finished > KNOWN
        if self.hyper is not None and finished - self.fitted < finished / (5 if many else 50):
            return
        chosen = self._some(y, FITTED // 2 if many else FITTED)
        self.hyper, self.fitted = fit(rows[chosen], y[chosen], self.hyper, self.sizes), finished

    def _highest(self, process: Process, best: float, seen: Seen) -> dict:
        rows, taken = self._candidates(seen), seen.pending
        mean, variance, half = process.at_with_half(rows)
        score = log_expected_improvement(mean, variance, best)
        if seen.others:  # the first of them climbs to the top
            top = int(np.argmax(score))
            rows[top] = self._climb(process, best, rows[top])[1]
            at = process.at_with_half(rows[top : top + 1])
            mean[top], variance[top], half[:, top] = at[0][0], at[1][0], at[2][:, 0]
            score[top] = np.inf
        others, free = [], np.ones(len(rows), bool)
        for _ in range(min(seen.others, BELIEVED)):
            # Each chooses the highest candidate if those before came out at the mean
            others.append(one := int(np.argmax(np.where(free, score, -np.inf))))
            best = min(best, float(mean[one]))
            covariance = process.covariance(rows, half, one)
            lost = covariance**2 / (covariance[one] + process.noise)
            variance = np.maximum(variance - lost, 1e-12)
            score = log_expected_improvement(mean, variance, best)
            free &= np.abs(rows - rows[one]).max(1) > APART_PENDING
        if others:
            process, taken = process.believing(rows[others]), np.vstack([taken, rows[others]])
        order = np.argsort(-score)
        climbed = [self._climb(process, best, rows[i]) for i in order[:CLIMBS]]
        noisy = APART_NOISY * float(np.sqrt(process.noise / process.amplitude))
        # No more than leaves room for as many sets again
        noisy = min(noisy, 0.25 / len(seen.rows) ** (1 / len(self.space.names)))
        climbed.sort(key=lambda one: -one[0])
        while True:
            apart, pending = max(APART, noisy), max(APART_PENDING, noisy)
            for row in (*(row for _, row in climbed), *rows[order]):
                if _is_apart(row, seen.rows, apart) and _is_apart(row, taken, pending):
                    return self.space.decode(row)
            if noisy <= APART:
                return self.space.random(self.random)
            noisy /= 2

    def _score(self, process: Process, rows: np.ndarray, best: float) -> np.ndarray:
        """The logarithm of the improvement expected of each row."""
        return log_expected_improvement(*process.at(rows), best)

    def _candidates(self, seen: Seen) -> np.ndarray:
        """Points everywhere and near the best, each a set that can be had (`snapped`)."""
        space, random = self.space, self.random
        rows = [random.random((CANDIDATES // 2, space.columns))]
        good = seen.rows[np.argsort(seen.values)[:6]]
        picked = good[random.integers(len(good), size=CANDIDATES // 2)]
        far = random.choice(NEAR, (len(picked), 1))
        moved = np.clip(picked + far * random.standard_normal(picked.shape), 0, 1)
        # Each keeps some of its columns, and draws some of its categories anew
        moved = np.where(random.random(picked.shape) < 0.7, moved, picked)
        for name, one in space:
            if columns := len(choices_of(one)):
                again = random.random(len(moved)) < 1 / len(space.names)
                moved[again, space.slices[name]] = random.random((again.sum(), columns))
        rows.append(moved)
        return self.space.snapped(np.concatenate(rows))

    def _climb(self, process: Process, best: float, row: np.ndarray) -> tuple:
        """Climb from a point: by the gradient in real numbers and by single changes in the others,
        in turn, because each changes where the other is highest."""
        for _ in range(ROUNDS):
            if self.smooth.any():
                row = self._along_numbers(process, best, row)
            moved = self._by_single_changes(process, best, row)
            if moved is row:
                break
            row = moved
        row = self.space.snapped(row[None])[0]
        return float(self._score(process, row[None], best)[0]), row

    def _along_numbers(self, process: Process, best: float, row: np.ndarray) -> np.ndarray:
        """The top that the gradient in the real numbers leads to."""
        smooth, row = self.smooth, row.copy()

        def downhill(part: np.ndarray) -> tuple:
            point = row.copy()
            point[smooth] = part
            mean, variance, mean_slope, variance_slope = process.at_with_slopes(point)
            deviation = np.sqrt(variance)
            z = (best - mean) / deviation
            height = log_improvement(z)
            # d log(z Phi + phi) = Phi dz / (z Phi + phi)
            by_z = np.exp(log_ndtr(z) - height)
            by_deviation = variance_slope / (2 * deviation)
            slope = by_z * (-mean_slope - z * by_deviation) / deviation
            slope = slope + by_deviation / deviation
            return -float(height + np.log(deviation)), -slope[smooth]

        done = minimize(
            downhill, row[smooth], method="L-BFGS-B", jac=True, bounds=[(0, 1)] * smooth.sum(),
            options={"maxiter": 40},
        )  # fmt: skip
        row[smooth] = done.x
        return row

    def _by_single_changes(self, process: Process, best: float, row: np.ndarray) -> np.ndarray:
        """The row after up to `CHANGES` changes, each the best single one; `row` if none helps."""
        now = float(self._score(process, row[None], best)[0])
        for _ in range(CHANGES):
            rows = self.space.neighbours(row)
            if not len(rows):
                break
            rows = self.space.snapped(rows)
            scores = self._score(process, rows, best)
            top = int(np.argmax(scores))
            if scores[top] <= now:
                break
            row, now = rows[top], float(scores[top])
        return row


def _is_apart(row: np.ndarray, others: np.ndarray, distance: float) -> bool:
    return not len(others) or bool(np.abs(others - row).max(1).min() > distance)


def levelled(values: np.ndarray) -> np.ndarray:
    """Values with mean 0 and spread 1, whose order stays and whose few huge ones are pulled in.

    A Gaussian process supposes that values are normally distributed. So they are transformed by
    Yeo and Johnson's function, as in HEBO (arXiv 2012.03826), if they vary enough.
    """
    from scipy.stats import yeojohnson  # changes warnings' filters

    spread = values.std()
    if spread < 1e-12 * max(1.0, np.abs(values).max()):
        return np.zeros_like(values)
    y = (values - values.mean()) / spread
    with np.errstate(all="ignore"):
        moved, _ = yeojohnson(y)
    if np.isfinite(moved).all() and moved.std() > 1e-6:
        y = (moved - moved.mean()) / moved.std()
    return y

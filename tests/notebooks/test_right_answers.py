"""Every exercise takes its answer in every form in which a learner may give it.

Each exercise is solved as three learners would: by the printed formula, with numpy, with loops. And
each number is given as an int, a float, a numpy scalar, an array of no dimensions, a fraction.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import right_functions as right
from exercise_cells import one_line
from notebook_cells import Notebook
from scipy.stats import norm
from sklearn.model_selection import KFold

from tutorial_dl.course.exercises import check, notebook_15
from tutorial_dl.layout import Layout
from tutorial_dl.simulate import Cut
from tutorial_dl.strategies import ElasticAveraging
from tutorial_dl.training import schedules

# Numbers ---------------------------------------------------------------------------------------

FORMS = (int, float, np.int64, np.float64, np.float32, np.array, Fraction, lambda x: np.array([x]))


def whole(*answer):
    """An answer of whole numbers, in all forms."""
    kinds = [tuple(form(part) for part in answer) for form in FORMS]
    kinds += [list(answer), np.array(answer)]
    return [kind[0] for kind in kinds] if len(answer) == 1 else kinds


# fmt: off
NUMBERS = {
    "01.degree": whole(5),
    "03.weights": [*whole(4864, 196_672), (64 * 76, 64 * 3073)],
    "04.half": [
        *whole(20_000),
        2e-6 / (1 / 10e9),
        next(n for n in range(0, 100_000, 100) if n / 10e9 >= 2e-6),
        20e3 * 1.0099,
    ],
    "32.crossover": [
        22 * 2e-6 / (6.125 / 10e9),
        Fraction(22 * 20_000) / Fraction(49, 8),
        next(n for n in range(0, 10**6, 10) if 60e-6 + 1.875 * n / 10e9 < 16e-6 + 8 * n / 10e9),
    ],
    "06.ranks": [
        *[(form(4), 5.72 / 3.33) for form in FORMS],
        (4, Fraction(572, 333)), [4, 1.72], np.array([4, 1.718]),
        (4.0, np.array(1.7177)),
    ],
    "07.trips": whole(11, 5),
    "09.batches": [*whole(512, 8192), (2 ** np.log2(512), 64 * np.exp2(7.0)), (512, 8192.0)],
    "11.plan": [
        *[(1 + 250 / 160, form(10)) for form in FORMS],
        (Fraction(41, 16), np.ceil(15 / (250 / 160))), [2.56, 10], np.array([2.5625, 10]),
    ],
    "12.workers": whole(6, 4),
    "14.kappa": [
        (9 / 8, 0.5), (Fraction(9, 8), Fraction(1, 2)), (1.125, 5 * (1 - 0.9)), [1.125, 0.5],
        np.array([1.125, 0.5]),
    ],
    "15.choice": [*whole(2, 7, 2), *whole(2, 8, 2)],
    "16.batch": [*whole(4096), 2**12, 2 * 1024 * 4096 / (2 * 1024), 4097],
    "17.batches": whole(63, 21),
    "18.ranks": whole(5, 3),
    "20.penalty": [0.1, np.float32(0.1), 0.4 / 4],
    "24.groups": [150, 151],
    "26.ranks": [Layout(groups=4, folds=5, masters=2, workers=2, devices=2).ranks],
    "31.period": [*whole(29), np.ceil(28.8)],
    "30.batch": [*whole(102_400), 5 * 1024 / 0.05, 1024 * 100],
    "19.cut": [*whole(2, 4, 1, 4), *whole(1, 8, 2, 2), Cut(2, 4, 1, 4)],
    "27.job": whole(4, 6, 8),
    "27.amdahl": [(1 / 59, 59), (Fraction(1, 59), 59.0), (0.01695, 58.998)],
    "28.wait": [(8, 2e9 / 110e3), (np.int64(8), 18182), [8.0, Fraction(200_000, 11)]],
    "29.fit": whole(7, 8),
}
# fmt: on


# Functions -------------------------------------------------------------------------------------

OF = {
    "02.descent": "descent", "03.backward": "backward", "07.ring": "ring",
    "09.warm_up": "warm", "10.combine": "combine", "11.answer": "answer", "12.delayed": "delayed",
    "13.springs": "Springs", "14.commit": "commit", "15.path": "path", "18.add": "add",
    "30.one_round": "one_round", "31.common": "common",
}  # fmt: skip
FUNCTIONS = {
    exercise: [made for name, made in vars(right).items() if name.startswith(begins)]
    for exercise, begins in OF.items()
}


def own_warm_up(step, start, rate, steps):
    return schedules.warm_up(rate, steps, start)(step)


def improvement(m, s, b):
    return (b - m) * norm.cdf((b - m) / s) + s * norm.pdf((b - m) / s)


def cut_by_scikit_learn(n, k):
    return [held for _, held in KFold(k).split(np.zeros(n))]


def cut_by_numpy(n, k):
    return np.array_split(np.arange(n), k)


def parts_by_counting(lengths, rank, ranks):
    """Sample by sample, then joined."""
    places = [(file, row) for file, length in enumerate(lengths) for row in range(length)]
    mine = places[rank * len(places) // ranks : (rank + 1) * len(places) // ranks]
    files = sorted({file for file, _ in mine})
    rows = {file: [row for one, row in mine if one == file] for file in files}
    return [[file, rows[file][0], np.int64(rows[file][-1] + 1)] for file in files]


def sum_of_samples(gradient, x, k):
    edges = [len(x) * i // k for i in range(k + 1)]
    parts = [x[edges[i] : edges[i + 1]] for i in range(k)]
    return sum(len(part) * gradient(part) for part in parts) / len(x)


def cut_in_turn(n, k):
    return [list(range(i, n, k)) for i in range(k)]


FUNCTIONS["09.warm_up"] += [own_warm_up]
FUNCTIONS["13.springs"] += [ElasticAveraging]
FUNCTIONS |= {
    "23.improvement": [improvement],
    "25.held_out": [cut_by_scikit_learn, cut_by_numpy, cut_in_turn],
    "28.share": [parts_by_counting],
    "29.accumulate": [sum_of_samples],
}

ANSWERS = [
    pytest.param(name, answer, id=f"{name}-{getattr(answer, '__name__', repr(answer))}")
    for name, answers in (NUMBERS | FUNCTIONS).items()
    for answer in answers
]


@pytest.mark.parametrize(("exercise", "answer"), ANSWERS)
def test_it_is_right(exercise, answer, capsys):
    check(exercise, answer)
    one_line(capsys, "correct: ")


def noting(seen: set):
    """A Layout that notes its sizes when it is made."""

    class Noting(Layout):
        def __post_init__(self):
            super().__post_init__()
            seen.add((self.masters, self.workers, self.devices, self.groups, self.folds))

    return Noting


def test_the_layouts_of_the_path_are_those_of_the_notebook(monkeypatch):
    """The exercise asks for no other layout than those that the notebook has shown."""
    shown, asked = set(), set()
    for code in Notebook("15").cells("code")[1:3]:
        exec("import numpy as np\nfrom tutorial_dl.layout import hub_ranks, worker_ranks\n" + code,
             {"Layout": noting(shown)})  # fmt: skip
    monkeypatch.setattr(notebook_15, "Layout", noting(asked))
    assert check("15.path", right.path_by_the_worker) is True
    assert asked and asked <= shown

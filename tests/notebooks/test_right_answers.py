"""Every exercise takes its answer in every form in which a learner may give it.

Each exercise is solved as three learners would: by the printed formula, with numpy, with loops. And
each number is given as an int, a float, a numpy scalar, an array of no dimensions, a fraction.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import right_functions as right
from exercise_cells import one_line

from tutorial_dl.course.exercises import check
from tutorial_dl.layout import Layout
from tutorial_dl.simulate import Cut

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
    "02.rate": [2 / 73.93, 0.02705, np.float32(0.027)],
    "03.units": [
        *whole(71),
        np.ceil(math.sqrt(math.pi**2 / (8 * 0.001)) * 2),  # numpy's ceil returns a float
        math.ceil(2 / math.sqrt(8 * 0.001 / math.pi**2)),
        next(n for n in range(1, 1000) if np.pi**2 * (2 / n) ** 2 / 8 <= 0.001),
    ],
    "04.half": [
        *whole(20_000),
        2e-6 / (1 / 10e9),
        next(n for n in range(0, 100_000, 100) if n / 10e9 >= 2e-6),
        20e3 * 1.0099,
    ],
    "05.crossover": [
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
    "13.moving_rates": [
        (0.75, 1.5), (3 / 4, 3 / 2), (Fraction(3, 4), Fraction(3, 2)), np.array([0.75, 1.5]),
        [np.float32(0.75), 1.5], (0.75, np.array(1.5)),
    ],
    "14.kappa": [
        (9 / 8, 0.5), (Fraction(9, 8), Fraction(1, 2)), (1.125, 5 * (1 - 0.9)), [1.125, 0.5],
        np.array([1.125, 0.5]),
    ],
    "15.choice": [*whole(2, 7, 2), *whole(2, 8, 2)],
    "16.batch": [*whole(4096), 2**12, 2 * 1024 * 4096 / (2 * 1024), 4097],
    "17.batches": whole(63, 21),
    "18.ranks": whole(5, 3),
    "19.cut": [*whole(2, 4, 1, 4), *whole(1, 8, 2, 2), Cut(2, 4, 1, 4)],
}
# fmt: on


# Functions -------------------------------------------------------------------------------------

FUNCTIONS = {
    "01.ridge": [
        right.ridge_by_formula,
        right.ridge_by_more_samples,
        right.ridge_by_descent,
        right.ridge_by_elimination,
    ],
    "02.descent": [
        right.descent_by_formula,
        right.descent_in_place,
        right.descent_in_loops,
        right.descent_with_the_hessian,
    ],
    "03.backward": [right.backward_by_formula, right.backward_with_where, right.backward_in_loops],
    "07.ring": [right.ring_to_the_left, right.ring_with_slices],
    "09.warm_up": [
        right.warm_by_formula,
        right.warm_with_numpy,
        right.warm_with_a_fraction,
        right.warm_in_a_loop,
    ],
    "10.combine": [
        right.combine_by_formula,
        right.combine_as_one_array,
        right.combine_in_loops,
        right.combine_in_float64,
    ],
    "11.answer": [right.answer_by_cases, right.answer_with_numpy, right.answer_by_simulation],
    "12.delayed": [right.delayed_in_a_list, right.delayed_in_an_array, right.delayed_in_a_dict],
    "13.springs": [right.Springs, right.SpringsThatSendTheForce, right.SpringsInLoops],
    "14.commit": [
        right.commit_by_formula,
        right.commit_with_where,
        right.commit_without_a_division,
        right.commit_in_a_loop,
    ],
    "18.add": [
        right.add_by_formula,
        right.add_with_an_old_key,
        right.add_key_by_key,
        right.add_with_a_higher_m,
    ],
    "15.path": [right.path_by_the_worker, right.path_by_recursion, right.path_with_numpy],
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


def test_the_layouts_of_the_path_are_those_of_the_notebook():
    """The exercise asks for no other layout than those that the notebook has shown."""
    from notebook_cells import Notebook

    from tutorial_dl.course.exercises import notebook_15

    shown = set()

    class Seen(Layout):
        def __post_init__(self):
            super().__post_init__()
            shown.add((self.masters, self.workers, self.devices, self.groups, self.folds))

    notebook = Notebook("15")
    for code in notebook.cells("code")[1:3]:
        exec("import numpy as np\nfrom tutorial_dl.layout import hub_ranks, worker_ranks\n" + code,
             {"Layout": Seen})  # fmt: skip
    asked = set()

    class Asked(Layout):
        def __post_init__(self):
            super().__post_init__()
            asked.add((self.masters, self.workers, self.devices, self.groups, self.folds))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebook_15, "Layout", Asked)
        assert check("15.path", right.path_by_the_worker) is True
    assert asked and asked <= shown

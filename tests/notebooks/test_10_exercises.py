"""Notebook 10: the solutions pass, wrong answers are explained, nothing hangs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from notebook_cells import Notebook

NOTEBOOK = Notebook("10")
SECONDS = 60


def run_here(*cells: str) -> None:
    """Run a learner's cells one after the other; every rank calls this."""
    from tutorial_dl.course.exercises import check

    for number, code in enumerate(cells):
        print(f"cell {number}", flush=True)
        exec(compile(code, "cell", "exec"), {"np": np, "check": check})


# A metric that is not a mean: on every rank ------------------------------------------------------

COUNTS = "c = np.array([np.bincount(scores[labels == k], minlength=10) for k in (0, 1)])"
AREA = "return (c[1] * (np.cumsum(c[0]) - c[0] / 2)).sum() / c[1].sum() / c[0].sum()"

WRONG = {  # body of auc(team, scores, labels): message on every rank
    # Reduce the two halves of the counts one after the other.
    f"{COUNTS}; c = np.array([team.allreduce(row) for row in c]); {AREA}": "took 2 allreduces",
    # Ties are not counted.
    f"{COUNTS}; team.allreduce(c); {AREA.replace('- c[0] / 2', '- c[0]')}": "too low by",
    # Each rank computes its own area. (The rank without samples divides by zero.)
    f"{COUNTS}; {AREA}": "the area",
    # The answer is the mean of the ranks' areas, weighted by samples.
    "w = scores[labels == 1][:, None] - scores[labels == 0]; s = len(labels);"
    "a = ((w > 0) + (w == 0) / 2).mean() if s else 0;"
    "t = team.allreduce(np.array([s * a, s], float)); return t[0] / t[1]": "mean of the ranks'",
    f"{COUNTS}; team.allreduce(c); labels[:] = 0; {AREA}": None,  # on ranks that have labels
    "team.allreduce(np.zeros(20))": "returns nothing",
    "return 'high'": "should be made of numbers",
}


def auc(body: str) -> str:
    return f"def auc(team, scores, labels):\n    {body}\ncheck('10.auc', auc)"


def test_answers_on_three_ranks(on_ranks):
    """One start runs all answers, so it also shows that a wrong one does not spoil the next."""
    fails_on_1 = auc(f"1 / (team.rank - 1); {COUNTS}; team.allreduce(c); {AREA}")
    solution = NOTEBOOK.solution_of("10.auc")
    cells = [
        NOTEBOOK.open_cell("10.auc"), "check('10.auc', 3)", fails_on_1, *map(auc, WRONG), solution,
    ]  # fmt: skip
    printed = on_ranks(3, run_here, *cells, timeout=SECONDS)
    said = [[] for _ in cells]
    for line in printed.splitlines():
        if found := re.search(r"cell (\d+)$", line):
            number = int(found[1])
        elif "correct: " in line or "not yet: " in line:
            said[number].append(line)
    untouched, no_function, failed, *wrong, right = said
    assert len(untouched) == 3 and all("still to be written" in line for line in untouched)
    assert len(no_function) == 3 and all("a function is asked for, not 3" in s for s in no_function)
    assert sum("PeerError: rank 1 failed: ZeroDivisionError" in line for line in failed) == 2
    assert sum("not yet: ZeroDivisionError" in line for line in failed) == 1
    for lines, expected in zip(wrong, WRONG.values(), strict=True):
        assert len(lines) == 3
        if expected is None:
            assert sum("input arrays have changed" in line for line in lines) == 2
            assert sum("correct: rank 2, with 0 of" in line for line in lines) == 1
        else:
            assert all("not yet: " in line and expected in line for line in lines), lines
    assert len(right) == 3 and all("correct: " in line for line in right)


@pytest.mark.parametrize("ranks", [2, 4])  # with 2 ranks, one has all samples
def test_the_solution_of_the_area(on_ranks, ranks):
    from sklearn.metrics import roc_auc_score

    from tutorial_dl.course.exercises.notebook_10 import _scores

    scores, labels = np.concatenate([_scores(rank, ranks) for rank in range(ranks)], axis=1)
    printed = on_ranks(ranks, run_here, NOTEBOOK.solution_of("10.auc"), timeout=SECONDS)
    assert printed.count("correct: ") == ranks and "not yet" not in printed
    assert printed.count(f"has {roc_auc_score(labels, scores):.4f}") == ranks


def test_the_mean_of_the_ranks_areas_is_far_off():
    """The ranks' scores must differ enough, or the exercise would show nothing."""
    from sklearn.metrics import roc_auc_score

    from tutorial_dl.course.exercises.notebook_10 import _scores

    for ranks in (2, 3, 4):
        shares = [share for share in (_scores(r, ranks) for r in range(ranks)) if len(share[0])]
        of_ranks = [roc_auc_score(labels, scores) for scores, labels in shares]
        scores, labels = np.concatenate(shares, axis=1)
        if len(shares) > 1:
            assert abs(np.mean(of_ranks) - roc_auc_score(labels, scores)) > 0.02


def test_a_rank_that_stays_away_hangs_no_other(on_ranks):
    """The usual mistake: a rank without samples calls no allreduce."""
    body = f"if not len(labels): return 0.5\n    {COUNTS}; team.allreduce(c); {AREA}"
    printed = on_ranks(3, run_here, auc(body), timeout=SECONDS)
    assert printed.count("not yet: ") == 3 and "it left the team" in printed


# Mean and variance of the whole, safely ---------------------------------------------------------


def combine(body: str) -> str:
    return f"def combine(n, m, v):\n    {body}\ncheck('10.combine', combine)"


def test_the_solution_of_combine(capsys):
    run_here(NOTEBOOK.solution_of("10.combine"))
    assert "correct: right to the last digits" in capsys.readouterr().out


def test_the_cell_of_combine_is_open(capsys):
    run_here(NOTEBOOK.open_cell("10.combine"))
    assert "not yet: the function is still to be written" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "says"),
    [
        # Chan's formula for pairs is also right, though the notebook uses another way.
        (
            "s, mean, var = 0, 0 * m[0], 0 * v[0]\n"
            "    for k in np.flatnonzero(n):\n"
            "        d, t = m[k] - mean if s else 0 * m[k], s + n[k]\n"
            "        mean = mean + d * (n[k] / t) if s else m[k]\n"
            "        var = var * (s / t) + v[k] * (n[k] / t) + d**2 * (s * n[k] / t**2)\n"
            "        s = t\n"
            "    return mean, var",
            "correct: ",
        ),
        ("return m.mean(0), v.mean(0)", "equal shares: this is the mean of the variances"),
        (
            "w = n[:, None] / n.sum(); return (w * m).sum(0), (w * v).sum(0)",
            "equal shares: this is the mean of the variances",
        ),
        ("return m.mean(0), (v + m**2).mean(0) - m.mean(0)**2", "shares of 7, 0, 1 and 12: the me"),
        (
            "w = (n / n.sum())[:, None].astype(m.dtype); mean = (w * m).sum(0)\n"
            "    return mean, (w * (v + m**2)).sum(0) - mean**2",
            "float32, where the mean is 4096 standard deviations: the variance is off",
        ),
        (
            "w = (n / n.sum())[:, None]; m = m.astype(float); mean = (w * m).sum(0)\n"
            "    return mean, (w * (v + m**2)).sum(0) - mean**2",
            "float64, where it is 2^27: the variance is off",
        ),
        # This is the unbiased variance, with s - 1.
        (
            "w = n[:, None] / n.sum(); mean = (w * m).sum(0)\n"
            "    return mean, (w * (v + (m - mean)**2)).sum(0) * n.sum() / (n.sum() - 1)",
            "the variance is off",
        ),
        ("return m[0]", "expected two arrays"),
        ("return m[0], None", "is off"),
        ("return m.mean(), v.mean()", "should have shape (3,)"),
    ],
)
def test_answers_to_combine(capsys, body, says):
    run_here(combine(body))
    said = capsys.readouterr().out.removeprefix("cell 0\n")
    assert said.count("\n") == 1 and says in said
    assert said.startswith("correct: " if says == "correct: " else "not yet: ")

"""Notebook 10: folded solutions pass, and the areas that the exercise asks for are far apart."""

import numpy as np
from exercise_cells import of_exercises

test_solutions, test_open_cells = of_exercises("10", "10.combine", np=np)


def test_the_mean_of_the_ranks_areas_is_far_off():
    """The ranks' scores must differ enough, or the exercise would show nothing."""
    from sklearn.metrics import roc_auc_score

    from tutorial_dl.course.exercises.notebook_10 import _by_pairs, _scores

    for ranks in (2, 3, 4):
        shares = [share for share in (_scores(r, ranks) for r in range(ranks)) if len(share[0])]
        of_ranks = [roc_auc_score(labels, scores) for scores, labels in shares]
        scores, labels = np.concatenate(shares, axis=1)
        assert np.isclose(_by_pairs(scores, labels), roc_auc_score(labels, scores))
        if len(shares) > 1:
            assert abs(np.mean(of_ranks) - roc_auc_score(labels, scores)) > 0.02

"""A classifier that tries to tell generated samples from simulated ones."""

import numpy as np


def auc(generated: np.ndarray, simulated: np.ndarray, seed: int = 0) -> float:
    """Area under the ROC curve, on samples held out: 0.5 if it can't tell, 1 if it always can.

    Args:
        generated, simulated: Features, (n, k) and (m, k).

    The classifier is scikit-learn's gradient-boosted trees, trained on one half of each set and
    tried on the other, and the other way round; the mean of both. (CaloChallenge, arXiv 2410.21611,
    takes neural networks. The trees take seconds, and find differences of single features well.)
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import cross_val_score
    from threadpoolctl import threadpool_limits

    x = np.concatenate([generated, simulated])
    label = np.repeat([1, 0], [len(generated), len(simulated)])
    half = np.random.default_rng(seed).permutation(len(x)) % 2
    learner = HistGradientBoostingClassifier(
        max_iter=60, learning_rate=0.1, max_leaf_nodes=15, early_stopping=False, random_state=seed
    )
    halves = [(np.flatnonzero(half != out), np.flatnonzero(half == out)) for out in (0, 1)]
    with threadpool_limits(1):  # threads that wait for a core make it slower
        return float(np.mean(cross_val_score(learner, x, label, scoring="roc_auc", cv=halves)))

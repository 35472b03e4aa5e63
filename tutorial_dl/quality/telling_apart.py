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
    from sklearn.metrics import roc_auc_score
    from threadpoolctl import threadpool_limits

    x = np.concatenate([generated, simulated])
    label = np.repeat([1, 0], [len(generated), len(simulated)])
    half = np.random.default_rng(seed).permutation(len(x)) % 2
    found = []
    for held_out in (0, 1):
        learner = HistGradientBoostingClassifier(
            max_iter=60, learning_rate=0.1, max_leaf_nodes=15, early_stopping=False,
            random_state=seed,
        )  # fmt: skip
        with threadpool_limits(1):  # threads that wait for a core make it slower
            learner.fit(x[half != held_out], label[half != held_out])
            scores = learner.predict_proba(x[half == held_out])[:, 1]
        found.append(roc_auc_score(label[half == held_out], scores))
    return float(np.mean(found))

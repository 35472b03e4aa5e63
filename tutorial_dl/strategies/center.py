"""`Center`: a master's weights, and the staleness of each worker's updates."""

import numpy as np


class Center:
    """Serves workers by a rule, already begun, and counts the *staleness* tau of each update.

    Staleness is the number of updates of the center between a worker's receipt of its weights and
    the arrival of its update. It is 0 with a single worker. `weights`, shape (n,), are changed in
    place; `version` is the number of updates so far. `constrain` moves weights, shape (n,), to
    where the model allows them; None: it allows all.
    """

    def __init__(self, rule, weights: np.ndarray, constrain=None):
        self.rule, self.weights, self.version, self.constrain = rule, weights, 0, constrain
        self._seen: dict[int, int] = {}  # worker -> version of its weights
        self._looked: dict[int, int] = {}  # worker -> version of its next weights

    def pull(self, worker: int, answer: np.ndarray) -> None:
        answer[:] = self.weights
        self.rule.handed(worker, self.weights)
        if self.rule.pulls_in_step and worker in self._seen:
            self._looked[worker] = self.version  # its gradient comes from older weights
        else:
            self._seen[worker] = self.version

    def push(self, worker: int, sent, answer, relayed: bool = False) -> int:
        """Apply one update and return its staleness. `relayed`: it comes from a sub-master."""
        self.rule.worker = worker
        staleness = self.rule.staleness = self.version - self._seen.get(worker, 0)
        serve = self.rule.serve_relay if relayed else self.rule.serve
        discarded = serve(self.weights, sent, answer) is False
        self._keep_constraints([] if answer is None else [answer])
        self.version += not discarded
        if answer is not None:
            self.rule.handed(worker, answer)
            self._seen[worker] = self.version
        elif worker in self._looked:
            # + 1: its weights include its own update
            self._seen[worker] = self._looked.pop(worker) + 1
        return staleness

    def push_all(self, workers, sent, answers, weights, relayed: bool = False) -> list[int]:
        """Apply one update with all workers' vectors, in the workers' order; returns the staleness
        of each, which is 0 if all workers take part.
        """
        ages = [self.version - self._seen.get(worker, 0) for worker in workers]
        serve = self.rule.serve_all_relays if relayed else self.rule.serve_all
        serve(self.weights, sent, answers, weights)
        self._keep_constraints(answers)
        self.version += 1
        self._seen.update(dict.fromkeys(workers, self.version))
        return ages

    def _keep_constraints(self, answers) -> None:
        if self.constrain is not None:
            for weights in (self.weights, *answers):
                self.constrain(weights)

"""Center: a master's weights, and how old those are that each of its workers works with."""

from __future__ import annotations

import numpy as np


class Center:
    """Serves workers by a rule, and counts the *staleness* of each update.

    Staleness: updates of the center between the moment when a worker got its weights and the one
    when what it made of them arrives. 0 where it is the only worker.

    Args:
        rule: The master's object of it, begun.
        weights: [n], changed in place.

    Attributes:
        version: Updates so far.
    """

    def __init__(self, rule, weights: np.ndarray):
        self.rule, self.weights, self.version = rule, weights, 0
        self._seen: dict[int, int] = {}  # worker -> the version that its weights come from
        self._looked: dict[int, int] = {}  # worker -> the one that its next weights will come from

    def pull(self, worker: int, answer: np.ndarray) -> None:
        """The weights as they are, into `answer`."""
        answer[:] = self.weights
        if self.rule.pulls_in_step and worker in self._seen:
            self._looked[worker] = self.version  # its gradient is of older weights
        else:
            self._seen[worker] = self.version

    def push(self, worker: int, sent, answer, relayed: bool = False) -> int:
        """One update; returns its staleness. `relayed`: it comes from a sub-master."""
        staleness = self.rule.staleness = self.version - self._seen.get(worker, 0)
        (self.rule.serve_relay if relayed else self.rule.serve)(self.weights, sent, answer)
        self.version += 1
        if answer is not None:
            self._seen[worker] = self.version
        elif worker in self._looked:
            self._seen[worker] = self._looked.pop(worker) + 1  # and of its own update it knows
        return staleness

    def push_all(self, workers, sent, answers, weights, relayed: bool = False) -> None:
        """One update with what all workers sent, in their order; nothing is stale."""
        serve = self.rule.serve_all_relays if relayed else self.rule.serve_all
        serve(self.weights, sent, answers, weights)
        self.version += 1
        self._seen.update(dict.fromkeys(workers, self.version))

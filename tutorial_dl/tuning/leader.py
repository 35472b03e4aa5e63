"""`Leader`: chooses a group's next set of values, on a rank of the group, from all results.

Each leader holds the results of the whole study and a sampler with random numbers of its own, so
that no leader waits for another (DeepHyper's decentralised search, arXiv 2207.00479). The
coordinator only keeps the books: what has happened since a leader's last choice comes with the
request for the next one. Leaders that choose at the same moment don't know each other's sets. So
the coordinator tells each how many others are choosing, and which set of the search this is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import samplers
from .proposing import BEGUN, COMPLETE, FAILED, GONE, PRUNED, Proposing, Results
from .space import Space

STATES = {COMPLETE: "complete", PRUNED: "pruned", FAILED: "failed", GONE: "failed"}


class Leader:
    """Chooses sets of values.

    Args:
        space, sampler: What is searched, and the name of the sampler.
        seed: Of the search; the random numbers also depend on `number`, the leader's.
        figures: How many figures of merit there are.
    """

    def __init__(
        self, space: Space, sampler: str, seed: int | None, number: int = 0, figures: int = 1
    ):
        self.space, self.name, self.seed, self.number = space, sampler, seed, number
        self.figures = figures
        self.sampler, self.study = None, None
        self.results = Results(space.columns, figures)
        self.own: dict[int, int] = {}  # numbers of trials: the coordinator's -> in `study`

    def answer(self, request: dict) -> dict:
        """The next set of values, a message for the coordinator.

        `request` has the events from number `from` on (`news`), the number of trials that the study
        had before this search (`before`), and `place` and `others` (`Seen`).
        """
        if request["from"] != self.results.known:  # another rank of the group led it until now
            return {"what": "ready", "known": self.results.known}
        if self.sampler is None:
            self.sampler = samplers.of_stream(
                self.name, self.space, self.seed, self.number, request["before"]
            )
        news = np.frombuffer(request["news"]).reshape(-1, self.results.table.shape[1])
        self.results.learn(news)
        if isinstance(self.sampler, Proposing):
            about = request["before"], request["place"], request["others"]
            values = self.sampler.propose(self.results.seen(self.sampler.random, *about))
        else:
            values = self._asked(news, request)
        return {"what": "chosen", "values": values, "known": self.results.known}

    def _asked(self, news: np.ndarray, request: dict) -> dict[str, Any]:
        """What a sampler of Optuna's own chooses, in a study in memory."""
        from .study import Study

        if self.study is None:
            self.study = Study(self.space, self.name, maximise=[False] * self.figures)
            self.study.optuna.sampler = self.sampler
        if self.name == "random" and self.seed is not None:
            of_set = self.seed + 1000 * request["before"], request["place"]
            self.study.optuna.sampler = samplers.random_set(*of_set)
        ends = 2, 2 + self.figures, self.results.head
        for event in news if self.name != "random" else ():
            (number, state), values, (epoch,), row = np.split(event, ends)
            if number not in self.own:
                self.own[number] = self.study.begin(self.space.decode(row)).number
            if state != BEGUN:
                trial = self.study.trial(self.own[number])
                if state == PRUNED and epoch >= 0:
                    trial.report(values[0], int(epoch))
                self.study.tell(trial, values.tolist(), STATES[state])
        trial, values = self.study.ask()
        self.study.tell(trial, None, "failed")  # it comes back as the coordinator's
        return values

"""`Suggester`: a rank that chooses sets of values, so that the coordinator only hands them out.

The talk on NNLO has such ranks (N_SK). Each keeps a copy of the study in memory, and learns with
every request what has begun and ended since the last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .link import Link
from .study import Study


class Suggester:
    """Chooses sets of values with a study of its own.

    Args:
        make: Makes that study: in memory, empty, with the sampler of the search, and, because a
            search that goes on must not draw its first sets again, after so many trials.
    """

    def __init__(self, make: Callable[[int], Study]):
        self.make, self.study = make, None
        self.own: dict[int, int] = {}  # numbers of trials: the coordinator's -> here

    def answer(self, message: dict) -> dict:
        """The next set of values: `values`, and the number that its trial has here, `own`.

        `message` has `news` (`Suggesting.note`), and `others`, the number of suggesters that are
        choosing at this moment.
        """
        if self.study is None:
            self.study = self.make(len(message["news"]))
        for event in message["news"]:
            self._learn(event)
        self.study.optuna.sampler.others = message["others"]
        trial, values = self.study.ask()
        return {"what": "chosen", "values": values, "own": trial.number}

    def _learn(self, event: dict) -> None:
        number = event["number"]
        if "own" in event:
            self.own[number] = event["own"]
        elif number not in self.own:
            self.own[number] = self.study.begin(event["params"]).number
        if "state" in event:
            trial = self.study.trial(self.own[number])
            for epoch, value in event["reports"]:
                trial.report(value, epoch)
            self.study.tell(trial, event["value"], event["state"])


def serve(suggester: Suggester, link: Link) -> None:
    """Answer the coordinator's requests, until it says that the search has ended, or has ended."""
    from .cell import IDLE, LOOK, in_a_line  # loads MPI, which a simulation has no use for

    link.tell({"what": "ready"})
    looked = time.monotonic()
    while True:
        for message in link.messages():
            if message["what"] == "end":
                link.close()
                return
            try:
                answer = suggester.answer(message)
            except Exception as error:
                answer = {"what": "failed", "why": in_a_line(error)}
            link.tell(answer)
        if time.monotonic() - looked > LOOK:
            looked = time.monotonic()
            if link.is_broken():
                return
        time.sleep(IDLE)

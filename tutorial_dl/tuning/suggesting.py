"""`Suggesting`: the coordinator's side of ranks that choose sets of values (suggester.py)."""

from __future__ import annotations

from collections import deque
from typing import Any

from optuna.trial import FrozenTrial

from .study import Study, row_of

PATIENCE = 60.0  # seconds for a set of values while a cell waits for it


class Suggesting:
    """Asks suggesters for sets of values ahead of their use.

    A set that was chosen counts as in training for all suggesters from then on. Those that choose
    at the same moment know how many they are, so that they can choose apart.

    Args:
        study: The study; its trials so far are told to each suggester first.
        port: The way to them (coordinator.py).
        numbers: By which the port knows them.
    """

    def __init__(self, study: Study, port, numbers: range):
        self.study, self.port = study, port
        begun = [event_of(trial) for trial in study.finished]
        self.news: dict[int, list[dict]] = {one: list(begun) for one in numbers}
        self.idle: deque[int] = deque()
        self.asked: dict[int, float] = {}  # suggester -> when
        self.chosen: deque[tuple[Any, dict]] = deque()

    def __bool__(self) -> bool:
        """Whether there is one that has said that it is ready."""
        return bool(self.idle or self.asked)

    def request(self, wanted: int) -> None:
        """Let `wanted` sets be chosen or in choice, as far as there are idle suggesters."""
        while self.idle and len(self.chosen) + len(self.asked) < wanted:
            one = self.idle.popleft()
            self.port.send(
                one, {"what": "choose", "news": self.news[one], "others": len(self.asked)}
            )
            self.news[one] = []
            self.asked[one] = self.port.now()

    def heed(self, one: int, message: dict) -> str | None:
        """A suggester's message; returns why it can choose no more, if so."""
        if one not in self.news:
            return None
        if message["what"] == "failed":
            return message["why"]
        if message["what"] == "chosen":
            del self.asked[one]
            trial = self.study.begin(message["values"])
            for other, news in self.news.items():
                event = {"number": trial.number, "params": message["values"]}
                news.append(event | ({"own": message["own"]} if other == one else {}))
            self.chosen.append((trial, message["values"]))
        self.idle.append(one)
        return None

    def note(self, number: int) -> None:
        """This trial has ended."""
        if self.news:
            event = event_of(self.study.optuna.get_trials(deepcopy=False)[number])
            for news in self.news.values():
                news.append(event)

    def begun(self, trial: Any, values: dict) -> None:
        """A trial has begun whose set no suggester has chosen."""
        for news in self.news.values():
            news.append({"number": trial.number, "params": values})

    def late(self) -> list[int]:
        """Suggesters that should have answered long ago."""
        now = self.port.now()
        return [one for one, since in self.asked.items() if now - since > PATIENCE]

    def drop(self, one: int) -> None:
        self.news.pop(one, None)
        self.asked.pop(one, None)
        if one in self.idle:
            self.idle.remove(one)


def event_of(trial: FrozenTrial) -> dict:
    """The end of a trial, for suggesters."""
    row = row_of(trial)
    return {
        "number": row["number"], "params": row["params"], "state": row["state"],
        "value": row["value"], "reports": sorted(trial.intermediate_values.items()),
    }  # fmt: skip

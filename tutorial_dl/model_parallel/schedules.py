"""Schedules of a pipeline: which rank computes what, in which order, as plain lists of actions.

A pipeline cuts a model into stages, and a batch into m micro-batches. Rank r of S has stage r; with
v chunks per rank, it has stages r, S + r, ..., (v - 1) S + r. For micro-batch i,

    F3          forward of micro-batch 3        B3, W3   its gradients of inputs, and of weights
    recv F3     wait for the inputs of F3       recv B3  wait for the gradient that B3 starts from
    send F3     send the outputs of F3 on       send B3  send the gradient of inputs back

and F3.1 is F3 of the rank's chunk 1. A send never waits; only a recv does. `gpipe`, `one_f_one_b`,
`interleaved` and `zb_h1` make the schedules of the literature, and `of` takes a user's own lists:

    >>> print(of(["F0 F1 B1 W1 B0 W0", "F0 F1 B1 W1 B0 W0"]))
    rank 0: F0 send F0 F1 send F1 recv B1 B1 W1 recv B0 B0 W0
    rank 1: recv F0 F0 recv F1 F1 B1 W1 send B1 B0 W0 send B0

checking.py finds what is wrong with a schedule, simulating.py predicts its time, and pipeline.py
runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

COMPUTE, MESSAGES = ("F", "B", "W"), ("send", "recv")
FORM = re.compile(r"(?:(send|recv) )?([FBW])(\d+)(?:\.(\d+))?")


class ScheduleError(ValueError):
    """A schedule that can't run, or does not do everything: names the first wrong action.

    Attributes:
        place: (rank, index among its actions) of that action; for one that is missing, the index
            after the last. None if the words are no action, or if ranks deadlock.
        why: The reason, without the place.
        circle: For a deadlock, (rank, index) of the actions that wait for each other; else ().
    """

    def __init__(
        self, words: str, place: tuple[int, int] | None = None, why: str = "",
        circle: tuple[tuple[int, int], ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(words)
        self.place, self.why, self.circle = place, why or words, circle


@dataclass(frozen=True)
class Action:
    """One action of a rank.

    Args:
        kind: "F", "B" or "W".
        batch: The micro-batch, from 0.
        chunk: Which of the rank's stages, from 0.
        message: "send" or "recv" for a message of that F or B; "" if it is computed here.
    """

    kind: str
    batch: int
    chunk: int = 0
    message: str = ""

    @classmethod
    def parse(cls, words: str) -> Action:
        """The reverse of str: "F3", "W3.1", "send F3"."""
        found = FORM.fullmatch(words.strip())
        if found is None or (found[1] and found[2] == "W"):
            raise ScheduleError(
                f"'{words}' is no action: expected F3, B3 or W3, send F3, recv F3, send B3 or "
                "recv B3, with .1 after it for chunk 1"
            )
        return cls(found[2], int(found[3]), int(found[4] or 0), found[1] or "")

    def __str__(self) -> str:
        chunk = f".{self.chunk}" if self.chunk else ""
        return f"{self.message} {self.kind}{self.batch}{chunk}".lstrip()


@dataclass(frozen=True)
class Schedule:
    """The actions of each rank, in order.

    Args:
        name: For tables and figures.
        ranks: A tuple of actions per rank.
        batches: Micro-batches, m.
        chunks: Stages per rank, v.
    """

    name: str
    ranks: tuple[tuple[Action, ...], ...]
    batches: int
    chunks: int = 1

    @property
    def stages(self) -> int:
        return len(self.ranks) * self.chunks

    def stage(self, rank: int, chunk: int) -> int:
        return chunk * len(self.ranks) + rank

    def place(self, stage: int) -> tuple[int, int]:
        """(Rank, chunk) of a stage."""
        chunk, rank = divmod(stage, len(self.ranks))
        return rank, chunk

    def peer(self, rank: int, action: Action) -> tuple[int, Action] | None:
        """The other end of a message: (rank, its action); None if no other rank has one.

        For a computed F or B: the end from which it gets what it needs.
        """
        back = action.kind == "B"
        sends = action.message == "send"
        stage = self.stage(rank, action.chunk) + (1 if sends != back else -1)
        if not 0 <= stage < self.stages:
            return None
        other, chunk = self.place(stage)
        if other == rank:
            return None  # the next stage is on the same rank
        turned = "recv" if sends else "send"
        return other, Action(action.kind, action.batch, chunk, turned)

    def computed(self, rank: int) -> list[Action]:
        """What a rank computes, without its messages."""
        return [action for action in self.ranks[rank] if not action.message]

    def __str__(self) -> str:
        lines = (" ".join(map(str, actions)) for actions in self.ranks)
        return "\n".join(f"rank {rank}: {line}" for rank, line in enumerate(lines))


def of(
    lists: Sequence[str | Iterable[str | Action]], name: str = "own", chunks: int = 0
) -> Schedule:
    """A schedule from a list per rank, of actions or of their words; see `check` in checking.py.

    Where the lists have no messages at all, they are added: a recv before each action that needs
    one, and a send as soon as there is something to send, but not between B and W of a micro-batch.

    Args:
        lists: For each rank, text such as "F0 F1 B0 W0 B1 W1" or "F0, send F0", or a list.
        name: The schedule's name.
        chunks: Stages per rank; 0: as many as the actions name.
    """
    ranks = []
    for rank, actions in enumerate(lists):
        if isinstance(actions, str):
            actions = re.findall(r"(?:send |recv )?[^\s,]+", re.sub(r"\s+", " ", actions))
        try:
            ranks.append([a if isinstance(a, Action) else Action.parse(a) for a in actions])
        except ScheduleError as error:
            raise ScheduleError(f"rank {rank}: {error}") from None
    every = [action for actions in ranks for action in actions]
    if not every:
        raise ScheduleError("a schedule needs at least one rank and one action")
    batches = 1 + max(action.batch for action in every)
    chunks = chunks or 1 + max(action.chunk for action in every)
    made = Schedule(name, tuple(map(tuple, ranks)), batches, chunks)
    return made if any(action.message for action in every) else with_messages(made)


def with_messages(schedule: Schedule, sends_first: bool = False) -> Schedule:
    """The schedule with a recv before each action that needs one, and sends behind.

    B and W in one go are the backward pass of a framework: what B computes is sent after W, unless
    `sends_first`.
    """
    ranks = []
    for rank, actions in enumerate(schedule.ranks):
        found: list[Action] = []
        before = None
        for action, after in zip(actions, [*actions[1:], None], strict=True):
            kind, batch, chunk = action.kind, action.batch, action.chunk
            if kind != "W" and schedule.peer(rank, action) is not None:
                found.append(Action(kind, batch, chunk, "recv"))
            found.append(action)
            b, w = Action("B", batch, chunk), Action("W", batch, chunk)
            if kind == "W":
                sends = before == b and not sends_first
            else:
                sends = kind == "F" or after != w or sends_first
            sent = Action("F" if kind == "F" else "B", batch, chunk, "send")
            if sends and schedule.peer(rank, sent) is not None:
                found.append(sent)
            before = action
        ranks.append(tuple(found))
    return Schedule(schedule.name, tuple(ranks), schedule.batches, schedule.chunks)


def _checked(stages: int, batches: int) -> None:
    if stages < 1 or batches < 1:
        raise ValueError(
            f"a schedule needs at least 1 stage and 1 micro-batch, got {stages} and {batches}"
        )


def _made(
    name: str, lists: list[list[Action]], batches: int, chunks: int = 1, sends_first: bool = False
) -> Schedule:
    return with_messages(Schedule(name, tuple(map(tuple, lists)), batches, chunks), sends_first)


def _backward(batch: int, chunk: int = 0) -> list[Action]:
    return [Action("B", batch, chunk), Action("W", batch, chunk)]


def gpipe(stages: int, batches: int) -> Schedule:
    """All forward passes, then all backward passes (Huang et al., "GPipe", arXiv 1811.06965).

    Every rank holds the activations of all micro-batches.
    """
    _checked(stages, batches)
    forward = [Action("F", i) for i in range(batches)]
    backward = [action for i in range(batches) for action in _backward(i)]
    return _made("gpipe", [forward + backward] * stages, batches)


def _in_turns(stages: int, batches: int, w_waits: bool) -> list[list[Action]]:
    """S - r forward passes of rank r, then B and F in turns; W of r micro-batches later if told."""
    _checked(stages, batches)
    lists = []
    for rank in range(stages):
        ahead, later = min(stages - rank, batches), rank * w_waits
        actions = [Action("F", i) for i in range(ahead)]
        for i in range(batches):
            actions.append(Action("B", i))
            if i >= later:
                actions.append(Action("W", i - later))
            if ahead + i < batches:
                actions.append(Action("F", ahead + i))
        lists.append(actions + [Action("W", i) for i in range(max(batches - later, 0), batches)])
    return lists


def one_f_one_b(stages: int, batches: int) -> Schedule:
    """1F1B: as soon as a gradient arrives, it goes back (Narayanan et al., arXiv 1806.03377).

    Rank r begins with S - r forward passes, then does a backward and a forward pass in turns. It
    takes as long as `gpipe`, and holds the activations of S - r micro-batches at most.
    """
    return _made("1f1b", _in_turns(stages, batches, w_waits=False), batches)


def interleaved(stages: int, batches: int, chunks: int = 2) -> Schedule:
    """1F1B with several stages per rank (Narayanan et al., arXiv 2104.04473, section 2.2).

    The bubble is divided by the chunks; there are as many times more messages. Micro-batches go
    through in groups of S, so their number must be a multiple of the ranks' S = `stages`.
    """
    _checked(stages, batches)
    if chunks < 1:
        raise ValueError(f"chunks must be at least 1, got {chunks}")
    if batches % stages:
        raise ValueError(
            f"an interleaved schedule on {stages} ranks needs a multiple of {stages} "
            f"micro-batches, got {batches}; use {-(-batches // stages) * stages}, or schedule 1f1b"
        )
    total = batches * chunks

    def step(k: int) -> tuple[int, int]:
        """(Micro-batch, chunk) of the k-th forward pass of a rank."""
        group, within = divmod(k, stages * chunks)
        return group * stages + within % stages, within // stages

    lists = []
    for rank in range(stages):
        ahead = min((chunks - 1) * stages + 2 * (stages - rank - 1) + 1, total)
        actions = [Action("F", *step(k)) for k in range(ahead)]
        for k in range(total):
            batch, chunk = step(k)
            actions += _backward(batch, chunks - 1 - chunk)
            if ahead + k < total:
                actions.append(Action("F", *step(ahead + k)))
        lists.append(actions)
    return _made("interleaved", lists, batches, chunks)


def zb_h1(stages: int, batches: int) -> Schedule:
    """Zero-bubble H1: W fills the places where 1F1B waits (Qi et al., arXiv 2401.10241).

    Rank r does what it does in `one_f_one_b`, but sends the gradient of inputs on before it
    computes that of weights, and is r micro-batches behind with the latter, until it has nothing
    else to do. Every rank holds activations of S micro-batches at most.
    """
    # (Only after the last forward pass of 1F1B's beginning do gaps appear.)
    lists = _in_turns(stages, batches, w_waits=True)
    return _made("zb_h1", lists, batches, sends_first=True)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb_h1": zb_h1,
}


def named(name: str, stages: int, batches: int, chunks: int = 1) -> Schedule:
    """One of SCHEDULES, for `stages` ranks; only "interleaved" takes more than one chunk."""
    if name not in SCHEDULES:
        raise ValueError(f"schedule '{name}': expected {', '.join(SCHEDULES)}")
    if name == "interleaved":
        return interleaved(stages, batches, chunks)
    if chunks != 1:
        raise ValueError(f"schedule '{name}' has one stage per rank, got {chunks}: use interleaved")
    return SCHEDULES[name](stages, batches)

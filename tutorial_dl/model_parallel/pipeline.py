"""`Pipeline`: runs a schedule on this rank, on its stages of a model.

The runtime does what the list says, action by action. A send begins a message and goes on; the next
message that the list waits for is received while this rank computes. So a rank waits only in a
recv, with the waits of a Team: they end if another rank fails.

What a stage computes leaves none of this program in the caches, so a line of Python takes ten times
as long as usual, and both ranks wait for it. So all that is known of messages before a step is
looked up in it (`Message`), not computed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter, sleep
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from numba_kernels.allreduce.calls import MARK
from numba_kernels.errors import in_brackets
from numba_kernels.spans import span
from tutorial_dl.data.dataset import Data, share
from tutorial_dl.model_parallel.checking import check
from tutorial_dl.model_parallel.grid import Grid
from tutorial_dl.model_parallel.schedules import Action, Schedule
from tutorial_dl.model_parallel.simulating import Span, Timetable
from tutorial_dl.model_parallel.stages import Boundary, Stage, Values
from tutorial_dl.replica.layers import At

# A rank that waits for a message polls for SPIN seconds, giving way to others that want its core.
# Then it sleeps between polls, for LATE of what it has waited so far: it can't be later than that.
SPIN, LATE = 2e-3, 0.005


class Message(NamedTuple):
    """What a send or a recv of this rank is about, for each array that goes over the boundary.

    Every array has a tag of its own, so that messages may come in any order.
    """

    rank: int  # the other end
    parts: list[tuple[int, Boundary]]  # (tag, shape and dtype)


class Pipeline:
    """The stages of one rank, and the messages between them and those of other ranks.

    Args:
        grid: The ranks; all ranks of `grid.pipe` run the same schedule.
        schedule: What each rank does.
        stages: This rank's stages, by chunk.
        boundaries: What goes from stage i to stage i + 1, at i.
        recompute: Keep the inputs of a stage only, and compute its forward pass again before B.

    Attributes:
        held: The most micro-batches whose activations this rank has held at once, counted.
        spans: What this rank did in the last step, and when, in seconds since its beginning.
    """

    def __init__(
        self,
        grid: Grid,
        schedule: Schedule,
        stages: Sequence[Stage],
        boundaries: Sequence[list[Boundary]],
        recompute: bool = False,
    ) -> None:
        if len(schedule.ranks) != grid.pipe.size:
            raise ValueError(
                f"schedule '{schedule.name}' is for {len(schedule.ranks)} ranks, the pipeline has "
                f"{grid.pipe.size}"
            )
        self.grid, self.schedule, self.stages = grid, check(schedule), list(stages)
        self.boundaries, self.recompute = boundaries, recompute
        self.rank, self.held, self.spans = grid.pipe.rank, 0, []
        self.actions = schedule.ranks[self.rank]
        apart = splits(schedule)
        for stage in self.stages:
            stage.apart = apart
        self._every = _with_next_recv(self.actions)
        self._forward_only = _with_next_recv([a for a in self.actions if a.kind == "F"])
        self.messages = {a: self._message(a) for a in self.actions if a.message}

    def _message(self, action: Action) -> Message:
        schedule = self.schedule
        stage = schedule.stage(self.rank, action.chunk)
        rank, end = schedule.peer(self.rank, action)
        back = (action.kind == "F") == (action.message == "recv")
        found = self.boundaries[stage - 1 if back else stage]
        if action.kind == "B":  # only floats have a gradient
            found = [one for one in found if np.dtype(one.dtype).kind == "f"]
        receives = stage if action.message == "recv" else schedule.stage(rank, end.chunk)
        place = (receives * schedule.batches + action.batch) * 2 + (action.kind == "B")
        first = place * max(map(len, self.boundaries))
        return Message(rank, [((first + i) % MARK, one) for i, one in enumerate(found)])

    def train(self, x: Any, targets: Any, at: At) -> dict[str, float]:
        """One step: adds the gradient of the batch's mean loss to the stages' gradients.

        Returns the sums of the last stage's loss over the samples, on the rank that has it; {} on
        other ranks.
        """
        data = Data(x, targets)
        return self._run(self._every, data, at, len(data))[0]

    def evaluate(self, x: Any, targets: Any) -> dict[str, float]:
        """As `train`, but forward passes only, and without dropout."""
        return self._run(self._forward_only, Data(x, targets), At(), None)[0]

    def predict(self, x: Any) -> np.ndarray | None:
        """The model's outputs, on the rank with the last stage; None on others."""
        parts = self._run(self._forward_only, Data(x, ()), At(), None, outputs=True)[1]
        return np.concatenate(parts) if parts else None

    def _run(self, actions, data: Data, at: At, total: int | None, outputs: bool = False):
        step = Step(self, data, at, total, outputs)
        self.grid.pipe.ready()
        self.grid.pipe.skip()  # a rank that has left the program before this call is then noticed
        try:
            for action, coming in actions:
                if coming is not None and coming not in step.incoming:
                    step.begin(coming)
                step.do(action)
            step.end()
        except BaseException as error:
            try:
                step.abandon()
            finally:
                self.grid.fail(error)
            raise
        if total is not None:
            self.held, self.spans = max(self.held, step.most), step.spans
        return step.sums, [step.results[i] for i in sorted(step.results)]

    def timetable(self) -> Timetable:
        """When each rank of this pipeline did what in the last `train`. Collective."""
        mine = {action: i for i, action in enumerate(self.actions)}
        times = np.zeros((len(self.actions), 2))
        for one in self.spans:
            times[mine[one.action]] = one.begin, one.end
        spans = []
        for rank, found in enumerate(self.grid.pipe.allgather(times.reshape(-1))):
            pairs = zip(self.schedule.ranks[rank], found.reshape(-1, 2).tolist(), strict=True)
            spans += [Span(rank, action, *when) for action, when in pairs if when[1] > when[0]]
        return Timetable(self.schedule, tuple(spans))


def splits(schedule: Schedule) -> bool:
    """Whether some W does not follow its B at once."""
    for rank in range(len(schedule.ranks)):
        computed = schedule.computed(rank)
        for n, action in enumerate(computed):
            after = Action("W", action.batch, action.chunk)
            if action.kind == "B" and computed[n + 1 : n + 2] != [after]:
                return True
    return False


def _with_next_recv(actions: Sequence[Action]) -> list[tuple[Action, Action | None]]:
    """Each action with the next message that its rank waits for, then or later."""
    found, coming = [], None
    for action in reversed(actions):
        coming = action if action.message == "recv" else coming
        found.append((action, coming))
    return found[::-1]


class Step:
    """One run over the actions: what has arrived, what is held, which messages are under way."""

    def __init__(self, of: Pipeline, data: Data, at: At, total: int | None, outputs: bool) -> None:
        self.of, self.data, self.at, self.total = of, data, at, total
        self.wants_outputs = outputs
        m = of.schedule.batches
        self.shares = [share(len(data), i, m) for i in range(m)]
        self.values: dict[Action, Values] = {}  # what an F or B starts from
        self.out: dict[Action, Values] = {}  # what it computed for another rank
        self.saved: dict[tuple[int, int], Any] = {}  # activations, between F and W
        self.kept: dict[tuple[int, int], Any] = {}  # between B and W
        self.incoming: dict[Action, tuple[list, Values]] = {}
        self.outgoing: list[tuple[Any, np.ndarray]] = []
        self.sums: dict[str, float] = {}
        self.results: dict[int, np.ndarray] = {}
        self.most, self.spans, self.began = 0, [], perf_counter()

    def do(self, action: Action) -> None:
        samples = self.shares[action.batch]
        if samples.stop == samples.start:
            return  # fewer samples than micro-batches
        begin = perf_counter()
        if action.message == "send":
            self._send(action)
            return
        if action.message == "recv":
            with span(str(action)):
                self._receive(action)
        else:
            with span(str(action)):
                {"F": self._forward, "B": self._backward, "W": self._weights}[action.kind](action)
        self.spans.append(
            Span(self.of.rank, action, begin - self.began, perf_counter() - self.began)
        )

    # What is computed

    def _forward(self, action: Action) -> None:
        pipeline, key = self.of, (action.batch, action.chunk)
        stage, number = pipeline.stages[action.chunk], self._stage(action)
        samples = self.shares[action.batch]
        if number == 0:
            x = self.data.take(samples)[0]
            x = list(x) if isinstance(x, tuple) else [x]
        else:
            x = self.values.pop(Action("F", *key))
        at = self.at._replace(first=self.at.first + samples.start)
        y, saved = stage.forward(x, at)
        trains = self.total is not None
        if trains:
            self.saved[key] = (x, at) if pipeline.recompute else saved
            self.most = max(self.most, len(self.saved))
        if number < pipeline.schedule.stages - 1:
            self._hand_on(action, y, number + 1)
        elif self.wants_outputs:
            self.results[action.batch] = stage.result(y)
        else:
            sums, g = stage.loss(y, self.data.take(samples)[1])
            for name, value in sums.items():
                self.sums[name] = self.sums.get(name, 0.0) + value
            if trains:
                self.values[Action("B", *key)] = [a * a.dtype.type(1 / self.total) for a in g]

    def _backward(self, action: Action) -> None:
        key, stage = (action.batch, action.chunk), self.of.stages[action.chunk]
        if self.of.recompute:
            self.saved[key] = stage.forward(*self.saved[key])[1]
        gx, self.kept[key] = stage.backward_inputs(self.saved[key], self.values.pop(action))
        if (number := self._stage(action)) > 0:
            self._hand_on(action, gx, number - 1)

    def _weights(self, action: Action) -> None:
        key = action.batch, action.chunk
        self.of.stages[action.chunk].backward_weights(self.saved.pop(key), self.kept.pop(key))

    def _stage(self, action: Action) -> int:
        return self.of.schedule.stage(self.of.rank, action.chunk)

    def _hand_on(self, action: Action, values: Values, to: int) -> None:
        rank, chunk = self.of.schedule.place(to)
        if rank == self.of.rank:
            self.values[Action(action.kind, action.batch, chunk)] = values
        else:
            self.out[action] = [np.ascontiguousarray(a) for a in values]

    # Messages

    def begin(self, action: Action) -> None:
        """Begin to receive what a recv will wait for."""
        samples, pipe = self.shares[action.batch], self.of.grid.pipe
        count = samples.stop - samples.start
        rank, parts = self.of.messages[action]
        requests, buffers = self.incoming[action] = [], []  # noted before MPI uses them
        for tag, one in parts if count else ():
            buffer = np.empty((count, *one.shape), one.dtype)
            buffers.append(buffer)
            requests.append(pipe.comm.Irecv([_bytes(buffer), MPI.BYTE], rank, tag))

    def _receive(self, action: Action) -> None:
        requests, buffers = self.incoming[action]
        self._wait(requests, action)
        self.values[Action(action.kind, action.batch, action.chunk)] = buffers
        self.incoming[action] = [], []  # done

    def _send(self, action: Action) -> None:
        pipe, (rank, parts) = self.of.grid.pipe, self.of.messages[action]
        values = self.out[key := Action(action.kind, action.batch, action.chunk)]
        for buffer, (tag, one) in zip(values, parts, strict=True):
            if buffer.shape[1:] != one.shape or buffer.dtype != one.dtype:
                raise ValueError(
                    f"{action}: a stage computed {buffer.dtype} {buffer.shape}, expected "
                    f"{one.dtype} {(len(buffer), *one.shape)}"
                )
            request = pipe.comm.Isend([_bytes(buffer), MPI.BYTE], rank, tag)
            self.outgoing.append((request, buffer))
        del self.out[key]
        self.outgoing = [one for one in self.outgoing if not one[0].Test()]

    def _doing(self, action: Action | None) -> str:
        """In words, for errors: what this rank waits for."""
        if action is None:
            return "sends of a pipeline"
        rank = self.of.messages[action].rank
        return f"{action} from rank {rank}{in_brackets(self.of.grid.pipe.roles.get(rank))}"

    def _wait(self, requests: list, action: Action | None) -> None:
        """Wait for requests: those of a recv, or of all sends if `action` is None."""
        pipe = self.of.grid.pipe
        pipe.ready()

        def arrived() -> bool:
            requests[:] = [one for one in requests if not one.Test()]
            return not requests

        began = perf_counter()
        while not arrived():
            if perf_counter() - began >= SPIN:
                break
            os.sched_yield()
        else:
            return

        def nap(seconds: float) -> None:
            sleep(min(seconds, LATE * (perf_counter() - began)))

        pipe.doing = self._doing(action)
        pipe.wait_until(arrived, sleep=nap)

    def end(self) -> None:
        """Wait until all messages of this rank have been received."""
        self._wait([request for request, _ in self.outgoing], None)
        self.outgoing = []

    def abandon(self) -> None:
        """After a failure: keep the memory of messages that MPI may still write or read."""
        comm = self.of.grid.pipe.comm
        for request in (one for requests, _ in self.incoming.values() for one in requests):
            if request != MPI.REQUEST_NULL:
                request.Cancel()  # it then arrives in the team's recovery, if it is sent at all
        lost = [(comm, requests, buffers) for requests, buffers in self.incoming.values()]
        lost += [(comm, request, buffer) for request, buffer in self.outgoing]
        lost.append((comm, self.out))
        self.of.grid.pipe.lost.extend(lost)


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)

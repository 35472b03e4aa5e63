"""`Pipeline`: runs a schedule on this rank, on its stages of a model.

The runtime does what the list says, action by action. A send begins a message and goes on; the next
message that the list waits for is received while this rank computes. So a rank waits only in a
recv, with the waits of a Team: they end if another rank fails.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter, sleep
from typing import Any

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
SPIN, LATE = 2e-3, 0.02


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
        self.forward_only = [a for a in self.actions if a.kind == "F"]

    def train(self, x: Any, targets: Any, at: At) -> dict[str, float]:
        """One step: adds the gradient of the batch's mean loss to the stages' gradients.

        Returns the sums of the last stage's loss over the samples, on the rank that has it; {} on
        other ranks.
        """
        data = Data(x, targets)
        return self._run(self.actions, data, at, len(data))[0]

    def evaluate(self, x: Any, targets: Any) -> dict[str, float]:
        """As `train`, but forward passes only, and without dropout."""
        return self._run(self.forward_only, Data(x, targets), At(), None)[0]

    def predict(self, x: Any) -> np.ndarray | None:
        """The model's outputs, on the rank with the last stage; None on others."""
        parts = self._run(self.forward_only, Data(x, ()), At(), None, outputs=True)[1]
        return np.concatenate(parts) if parts else None

    def _run(self, actions, data: Data, at: At, total: int | None, outputs: bool = False):
        step = Step(self, data, at, total, outputs)
        self.grid.pipe.ready()
        self.grid.pipe.skip()  # a rank that has left the program before this call is then noticed
        try:
            for place, action in enumerate(actions):
                step.expect(actions, place)
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

    # Messages: every array has a tag of its own, so that messages may come in any order

    def _tag(self, action: Action, stage: int, number: int) -> int:
        """`stage` is the one that receives."""
        schedule = self.of.schedule
        widest = max(map(len, self.of.boundaries), default=1)
        place = (stage * schedule.batches + action.batch) * 2 + (action.kind == "B")
        return (place * widest + number) % MARK

    def _boundary(self, action: Action) -> list[Boundary]:
        """What a recv of this rank receives, or what a send sends."""
        stage = self._stage(action)
        back = (action.kind == "F") == (action.message == "recv")
        found = self.of.boundaries[stage - 1 if back else stage]
        if action.kind == "B":  # only floats have a gradient
            return [one for one in found if np.dtype(one.dtype).kind == "f"]
        return found

    def expect(self, actions: Sequence[Action], place: int) -> None:
        """Begin to receive the next message that this rank will wait for, unless it has begun."""
        for action in actions[place:]:
            if action.message == "recv":
                if action not in self.incoming:
                    self._begin(action)
                return

    def _begin(self, action: Action) -> None:
        samples, pipe = self.shares[action.batch], self.of.grid.pipe
        count = samples.stop - samples.start
        rank, _ = self.of.schedule.peer(self.of.rank, action)
        requests, buffers = self.incoming[action] = [], []  # noted before MPI uses them
        for number, one in enumerate(self._boundary(action) if count else ()):
            buffer = np.empty((count, *one.shape), one.dtype)
            tag = self._tag(action, self._stage(action), number)
            buffers.append(buffer)
            requests.append(pipe.comm.Irecv([_bytes(buffer), MPI.BYTE], rank, tag))

    def _receive(self, action: Action) -> None:
        requests, buffers = self.incoming[action]
        rank, _ = self.of.schedule.peer(self.of.rank, action)
        role = in_brackets(self.of.grid.pipe.roles.get(rank))
        self._wait(requests, f"{action} from rank {rank}{role}")
        self.values[Action(action.kind, action.batch, action.chunk)] = buffers
        self.incoming[action] = [], []  # done

    def _send(self, action: Action) -> None:
        pipe, schedule = self.of.grid.pipe, self.of.schedule
        rank, end = schedule.peer(self.of.rank, action)
        stage = schedule.stage(rank, end.chunk)
        values = self.out[key := Action(action.kind, action.batch, action.chunk)]
        for number, (buffer, one) in enumerate(zip(values, self._boundary(action), strict=True)):
            if buffer.shape[1:] != one.shape or buffer.dtype != one.dtype:
                raise ValueError(
                    f"{action}: a stage computed {buffer.dtype} {buffer.shape}, expected "
                    f"{one.dtype} {(len(buffer), *one.shape)}"
                )
            tag = self._tag(action, stage, number)
            request = pipe.comm.Isend([_bytes(buffer), MPI.BYTE], rank, tag)
            self.outgoing.append((request, buffer))
        del self.out[key]
        self.outgoing = [one for one in self.outgoing if not one[0].Test()]

    def _wait(self, requests: list, doing: str) -> None:
        pipe = self.of.grid.pipe
        pipe.ready()
        began = perf_counter()

        def arrived() -> bool:
            requests[:] = [one for one in requests if not one.Test()]
            return not requests

        while perf_counter() - began < SPIN:
            if arrived():
                return
            os.sched_yield()

        def nap(seconds: float) -> None:
            sleep(min(seconds, LATE * (perf_counter() - began)))

        pipe.doing = doing
        pipe.wait_until(arrived, sleep=nap)

    def end(self) -> None:
        """Wait until all messages of this rank have been received."""
        self._wait([request for request, _ in self.outgoing], "sends of a pipeline")
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

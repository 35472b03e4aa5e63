"""Virtual ranks: a program on many ranks within one process, on one simulated clock.

    ended = on_virtual_ranks(program, 4, machine)        # program(team) on each of four ranks
    [one.value for one in ended], ended[0].seconds

Each rank is a thread, and one of them runs at a time, until it waits for others; then the next
event on the clock says which goes on. So a program takes the same course every time, ranks that
wait for each other are found at once, and nothing hangs. What messages take is predicted for the
machine (numba_kernels/allreduce/costs.py); computing takes no time, except by `compute`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numba_kernels.allreduce import costs
from numba_kernels.allreduce.machine import UNMEASURED, Machine
from numba_kernels.errors import MismatchError, PeerError

from .clock import Processes, SimulatedClock

PATIENCE = 2.0  # simulated seconds after which a rank gives up a wait that has no end
REDUCE = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum,
          "product": np.multiply}  # fmt: skip


class Ended(NamedTuple):
    """How the program ended on a rank: what it returned, or the error, and when, in seconds."""

    value: Any
    error: BaseException | None
    seconds: float


def on_virtual_ranks(
    program: Callable[[VirtualTeam], Any], ranks: int, machine: Machine = UNMEASURED
) -> list[Ended]:
    """Call `program(team)` on each of `ranks` virtual ranks, and return how each of them ended.

    If ranks wait for each other, or for one that has ended, each raises TimeoutError; if another
    rank has failed, PeerError.
    """
    world = Processes()
    meetings: dict[Hashable, dict] = {}
    threads = []
    for rank in range(ranks):
        thread = RankThread(world.clock)
        team = VirtualTeam(rank, tuple(range(ranks)), thread, world, meetings, machine)
        thread.program = lambda team=team: program(team)
        threads.append(thread)
        world.start(thread)
    world.run()
    while world.waiting:
        failed = [(r, t.error) for r, t in enumerate(threads) if t.error is not None]
        stuck, world.waiting = list(world.waiting.values()), {}
        world.clock.time += 0 if failed else PATIENCE
        for thread in stuck:
            words = f"rank {threads.index(thread)} waited {PATIENCE:g} s {thread.what}"
            thread.fails = TimeoutError(words)
            if failed:
                rank, error = failed[0]
                thread.fails = PeerError(rank, f"{type(error).__name__}: {error}")
            world.resume(thread)
        world.run()
    return [Ended(thread.value, thread.error, thread.seconds) for thread in threads]


class RankThread:
    """A rank's program on a thread, as a process: it runs only while `next` waits for it."""

    program: Callable[[], Any]

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.value = self.error = self.fails = self._asked = None
        self.seconds, self.what = 0.0, ""
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __iter__(self) -> RankThread:
        return self

    def __next__(self) -> float | Hashable:
        if self._thread.ident is None:
            self._thread.start()
        self._go.release()
        self._back.acquire()
        if self._asked is None:
            raise StopIteration
        return self._asked

    def wait(self, asked: float | Hashable, what: str = "") -> None:
        """Called by the program: compute for so many seconds, or wait for this message."""
        self._asked, self.what = asked, what
        self._back.release()
        self._go.acquire()
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.value = self.program()
        except BaseException as error:
            self.error = error
        self._asked, self.seconds = None, self.clock.now()
        self._back.release()


class VirtualTeam:
    """`Collectives` of virtual ranks: numpy's reductions, in the order of ranks.

    Args:
        rank: This rank's number.
        members: All ranks of the team, by their numbers in the world.
        thread: Of this rank.
        world: All processes; meetings: what ranks have brought to the calls that are under way.
        machine: What messages and additions take.
    """

    def __init__(
        self, rank: int, members: tuple[int, ...], thread: RankThread, world: Processes,
        meetings: dict[Hashable, dict], machine: Machine, name: tuple = (),
    ) -> None:  # fmt: skip
        self.rank, self.size, self.clock = rank, len(members), world.clock
        self.members, self.machine, self.name = members, machine, name
        self._thread, self._world, self._meetings, self._calls = thread, world, meetings, 0
        self._sent: dict[Hashable, int] = {}

    def compute(self, seconds: float) -> None:
        """Let this rank compute for so many seconds."""
        self._thread.wait(float(seconds))

    def send(self, x: np.ndarray, dest: int) -> None:
        """Send numbers to a rank; this does not wait."""
        key = self._message("sent", dest, self.rank, dest)
        self._meetings[key] = np.array(x)
        self._world.post(key, self.machine.message(np.asarray(x).nbytes))

    def receive(self, source: int) -> np.ndarray:
        """The next numbers that rank `source` has sent to this one."""
        key = self._message("received", source, source, self.rank)
        self._thread.wait(key, f"to receive from rank {source}")
        return self._meetings.pop(key)

    def _message(self, what: str, other: int, source: int, dest: int) -> Hashable:
        number = self._sent[what, other] = self._sent.get((what, other), 0) + 1
        return self.name, "message", source, dest, number

    def _meet(self, call: str, value: Any, seconds: float) -> list:
        """What all ranks have brought, in their order, once all have come, and `seconds` later."""
        if self.size == 1:
            return [value]
        self._calls += 1
        key = self.name, self._calls
        brought = self._meetings.setdefault(key, {})
        brought[self.rank] = call, value
        if len(brought) == self.size:
            del self._meetings[key]
            for rank in range(self.size):
                self._world.post((key, rank), seconds)
        self._thread.wait((key, self.rank), f"in {call}")
        if len({call for call, _ in brought.values()}) > 1:
            raise MismatchError({rank: call for rank, (call, _) in sorted(brought.items())})
        return [brought[rank][1] for rank in range(self.size)]

    def _reduced(self, call: str, x: np.ndarray, op: str, share: float) -> np.ndarray:
        if op not in REDUCE:
            raise ValueError(f"unknown op {op!r}; choose one of {', '.join(REDUCE)}")
        algorithm = costs.best(x.nbytes, self.size, self.machine) if self.size > 1 else "ring"
        seconds = share * costs.predict(algorithm, x.nbytes, self.size, self.machine)
        call = f"{call}({x.dtype}[{x.size}], op={op!r})"
        # Halves are added in float32.
        wide = np.promote_types(x.dtype, np.float32) if x.dtype.itemsize == 2 else x.dtype
        total, *others = self._meet(call, x.astype(wide), seconds)
        total = total.copy()
        for one in others:
            REDUCE[op](total, one, out=total)
        if op == "mean":
            whole = np.issubdtype(wide, np.integer)
            total = np.trunc(total / self.size) if whole else total / wide.type(self.size)
        return total.astype(x.dtype)

    def allreduce(self, x: np.ndarray, op: str = "sum", algorithm: str = "auto") -> np.ndarray:
        x[...] = self._reduced("allreduce", x, op, 1.0)
        return x

    def reduce_scatter(self, x: np.ndarray, op: str = "sum") -> np.ndarray:
        first, last = self.slice_of(x.size)
        own = x.reshape(-1)[first:last]
        own[:] = self._reduced("reduce_scatter", x, op, 0.5).reshape(-1)[first:last]
        return own

    def allgather(self, x: np.ndarray) -> np.ndarray | list[np.ndarray]:
        seconds = costs.predict("ring", self.size * x.nbytes, self.size, self.machine) / 2
        parts = self._meet(f"allgather({x.dtype})", x.reshape(-1).copy(), seconds)
        return np.stack(parts) if len({part.size for part in parts}) == 1 else list(parts)

    def alltoall(self, x: np.ndarray) -> np.ndarray:
        if x.ndim == 0 or x.shape[0] != self.size:
            raise ValueError(f"x must have {self.size} blocks, one per rank, got shape {x.shape}")
        seconds = (self.size - 1) * self.machine.exchange(x.nbytes / self.size)
        blocks = self._meet(f"alltoall({x.dtype}[{x.size}])", x.copy(), seconds)
        return np.stack([block[self.rank] for block in blocks])

    def broadcast(self, x: np.ndarray, root: int = 0) -> np.ndarray:
        call = f"broadcast({x.dtype}[{x.size}], root={root})"
        x[...] = self._meet(call, x.copy(), self._down(root, x.nbytes))[root]
        return x

    def scatter(
        self, x: np.ndarray | None, out: np.ndarray, lengths: Sequence[int], root: int = 0
    ) -> np.ndarray:
        edges = np.concatenate([[0], np.cumsum(lengths)])
        seconds = self._down(root, int(edges[-1]) * out.itemsize)
        brought = None if x is None else x.reshape(-1).copy()
        call = f"scatter({out.dtype}[{edges[-1]}], root={root})"
        whole = self._meet(call, brought, seconds)[root]
        out.reshape(-1)[:] = whole[edges[self.rank] : edges[self.rank + 1]]
        return out

    def _down(self, root: int, nbytes: int) -> float:
        if not 0 <= root < self.size:
            raise ValueError(f"root {root} is not a rank of this team of {self.size}")
        return (self.size - 1).bit_length() * self.machine.message(nbytes)

    def barrier(self) -> None:
        self._meet("barrier()", None, costs.predict("tree", 0, self.size, self.machine))

    def split(self, color: int, key: int = 0) -> VirtualTeam:
        table = self._meet("split()", (color, key), 0.0)
        mine = sorted((k, rank) for rank, (c, k) in enumerate(table) if c == color)
        ranks = [rank for _, rank in mine]
        name = (*self.name, self._calls, color)
        members = tuple(self.members[rank] for rank in ranks)
        return VirtualTeam(
            ranks.index(self.rank), members, self._thread, self._world, self._meetings,
            self.machine, name,
        )  # fmt: skip

    def empty(self, n: int, dtype: type = np.float32, common: bool = False) -> np.ndarray:
        own = self._meet(f"empty({n})", np.zeros(n, dtype), 0.0)
        return own[0 if common else self.rank]

    def slice_of(self, n: int, rank: int | None = None) -> tuple[int, int]:
        from numba_kernels.allreduce.elementwise import bounds

        return bounds(n, self.size, self.rank if rank is None else rank)

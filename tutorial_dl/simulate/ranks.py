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
from numba_kernels.errors import MismatchError, PeerError, line_of

from .clock import Processes

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

    Ranks that wait for each other, or for one that has ended, get TimeoutError; if a rank has
    failed, the others get PeerError.
    """
    world = World(machine)
    for rank in range(ranks):
        team = VirtualTeam(world, tuple(range(ranks)), rank)
        world.threads.append(RankThread(rank, lambda team=team: program(team), world))
        world.start(world.threads[-1])
    world.run()
    while stuck := list(world.waiting.values()):
        world.waiting = {}
        failed = [(t.rank, t.error) for t in world.threads if t.error is not None]
        world.clock.time += 0.0 if failed else PATIENCE
        for thread in stuck:
            thread.fails = TimeoutError(f"rank {thread.rank} waited {PATIENCE:g} s {thread.what}")
            if failed:
                rank, error = failed[0]
                thread.fails = PeerError(rank, line_of(error))
            world.resume(thread)
        world.run()
    return [Ended(thread.value, thread.error, thread.seconds) for thread in world.threads]


class World(Processes):
    """All virtual ranks, and what they have sent, or brought to calls that are under way."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine, self.threads, self.brought = machine, [], {}


class RankThread:
    """A rank's program on a thread, as a process: it runs only while `next` waits for it."""

    def __init__(self, rank: int, program: Callable[[], Any], world: World) -> None:
        self.rank, self.program, self.clock = rank, program, world.clock
        self.value = self.error = self.fails = self._asked = None
        self.seconds, self.what = 0.0, ""
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def __iter__(self) -> RankThread:
        return self

    def __next__(self) -> float | Hashable:
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
        world: All virtual ranks.
        members: The ranks of this team, by their numbers in the world.
        rank: This rank's number in the team.
        name: Which team of these ranks it is.
    """

    def __init__(self, world: World, members: tuple[int, ...], rank: int, name: tuple = ()) -> None:
        self.world, self.members, self.rank, self.name = world, members, rank, name
        self.size, self.clock, self.machine = len(members), world.clock, world.machine
        self._numbers: dict[Hashable, int] = {}

    def compute(self, seconds: float) -> None:
        """Let this rank compute for so many seconds."""
        self._wait(float(seconds))

    def send(self, x: np.ndarray, dest: int) -> None:
        """Send numbers to a rank; this does not wait."""
        key = self._next(self.rank, dest)
        self.world.brought[key] = np.array(x)
        self.world.post(key, self.machine.message(self.world.brought[key].nbytes))

    def receive(self, source: int) -> np.ndarray:
        """The next numbers that rank `source` has sent to this one."""
        key = self._next(source, self.rank)
        self._wait(key, f"to receive from rank {source}")
        return self.world.brought.pop(key)

    def _next(self, *what: Any) -> Hashable:
        self._numbers[what] = self._numbers.get(what, 0) + 1
        return self.name, what, self._numbers[what]

    def _wait(self, asked: float | Hashable, what: str = "") -> None:
        self.world.threads[self.members[self.rank]].wait(asked, what)

    def _meet(self, call: str, value: Any, seconds: float) -> list:
        """What all ranks have brought, in their order, once all have come, and `seconds` later."""
        key = self._next("call")
        brought = self.world.brought.setdefault(key, {})
        brought[self.rank] = call, value
        if len(brought) == self.size:
            del self.world.brought[key]
            for rank in range(self.size):
                self.world.post((key, rank), seconds)
        self._wait((key, self.rank), f"in {call}")
        if len({call for call, _ in brought.values()}) > 1:
            raise MismatchError({rank: call for rank, (call, _) in sorted(brought.items())})
        return [brought[rank][1] for rank in range(self.size)]

    def _reduced(self, call: str, x: np.ndarray, op: str, share: float) -> np.ndarray:
        if op not in REDUCE:
            raise ValueError(f"unknown op {op!r}; choose one of {', '.join(REDUCE)}")
        algorithm = costs.best(x.nbytes, self.size, self.machine) if self.size > 1 else "ring"
        seconds = share * costs.predict(algorithm, x.nbytes, self.size, self.machine)
        # Halves are added in float32.
        wide = np.dtype(np.float32) if x.dtype.itemsize == 2 else x.dtype
        found = self._meet(f"{call}({x.dtype}[{x.size}], op={op!r})", x.astype(wide), seconds)
        total = found[0].copy()
        for one in found[1:]:
            REDUCE[op](total, one, out=total)
        if op == "mean":
            total = total / self.size if wide.kind == "f" else np.trunc(total / self.size)
        return total.astype(x.dtype)

    def allreduce(self, x: np.ndarray, op: str = "sum", algorithm: str = "auto") -> np.ndarray:
        x[...] = self._reduced("allreduce", x, op, 1.0)
        return x

    def reduce_scatter(self, x: np.ndarray, op: str = "sum") -> np.ndarray:
        own = slice(*self.slice_of(x.size))
        x.reshape(-1)[own] = self._reduced("reduce_scatter", x, op, 0.5).reshape(-1)[own]
        return x.reshape(-1)[own]

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
        x[...] = self._from(root, f"broadcast({x.dtype}[{x.size}]", x.copy(), x.nbytes)
        return x

    def scatter(
        self, x: np.ndarray | None, out: np.ndarray, lengths: Sequence[int], root: int = 0
    ) -> np.ndarray:
        edges, call = np.concatenate([[0], np.cumsum(lengths)]), f"scatter({out.dtype}"
        brought = None if x is None else x.reshape(-1).copy()
        whole = self._from(root, call, brought, int(edges[-1]) * out.itemsize)
        out.reshape(-1)[:] = whole[edges[self.rank] : edges[self.rank + 1]]
        return out

    def _from(self, root: int, call: str, value: Any, nbytes: int) -> Any:
        if not 0 <= root < self.size:
            raise ValueError(f"root {root} is not a rank of this team of {self.size}")
        seconds = (self.size - 1).bit_length() * self.machine.message(nbytes)
        return self._meet(f"{call}, root={root})", value, seconds)[root]

    def barrier(self) -> None:
        self._meet("barrier()", None, costs.predict("tree", 0, self.size, self.machine))

    def split(self, color: int, key: int = 0) -> VirtualTeam:
        table = self._meet("split()", (color, key), 0.0)
        ranks = [r for _, r in sorted((k, r) for r, (c, k) in enumerate(table) if c == color)]
        members = tuple(self.members[rank] for rank in ranks)
        name = (*self._next("split"), color)
        return VirtualTeam(self.world, members, ranks.index(self.rank), name)

    def empty(self, n: int, dtype: type = np.float32, common: bool = False) -> np.ndarray:
        arrays = self._meet(f"empty({n}, common={common})", np.zeros(n, dtype), 0.0)
        return arrays[0 if common else self.rank]

    def slice_of(self, n: int, rank: int | None = None) -> tuple[int, int]:
        from numba_kernels.allreduce.elementwise import bounds

        return bounds(n, self.size, self.rank if rank is None else rank)

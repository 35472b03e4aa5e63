"""Scripted: drive a rule with several workers in one process, in any order of events.

    run = Scripted(Downpour(), lambda x: x, [1.0], workers=2, optimizer=SGD(0.1))
    run.turn(0); run.turn(1); run.turn(0)        # a turn: compute a gradient, then exchange
    run.center, run.staleness                    # [0.71], [0, 1, 1]

The rules and the master are the objects that ranks use; only the messages are missing. So what is
seen here, on a parabola and in a given order, is what happens on a cluster.
"""

import copy
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from numba_kernels import optimizers

from .center import Center
from .rule import Rule


class Scripted:
    """A master and its workers, in one process.

    Args:
        rule: each worker, and the master, gets a copy
        gradient: x [n] -> gradient [n]; or a list of such functions, one per worker
        x0: the weights that all begin with, [n]
        workers: the number of workers, at least 1
        optimizer: the rule's optimizer; the rule's default if None

    Attributes:
        center: the master's weights, [n]
        staleness: the staleness of each update so far, a list
        path: the center before the first update and after each, a list

    Example:
        >>> from numba_kernels.optimizers import SGD
        >>> from tutorial_dl.strategies import Downpour, Scripted
        >>> run = Scripted(Downpour(), lambda x: x, [1.0], workers=2, optimizer=SGD(0.1))
        >>> run.turns([0, 1, 0])[:, 0].round(2).tolist()
        [1.0, 0.9, 0.8, 0.71]
    """

    def __init__(
        self,
        rule: Rule,
        gradient: Callable | list[Callable],
        x0,
        workers: int = 2,
        optimizer=None,
        dtype=np.float64,
    ):
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        rule = copy.copy(rule)
        rule.workers = workers
        rule.use(optimizers.get(optimizer or rule.default_optimizer))
        x0 = np.array(x0, dtype).reshape(-1)
        self.gradients = gradient if isinstance(gradient, list) else [gradient] * workers
        self.rules = [copy.copy(rule) for _ in range(workers)]
        self.x = [x0.copy() for _ in range(workers)]
        for each, x in zip(self.rules, self.x, strict=True):
            each.begin_worker(x, [0])  # [0]: one layer
        self._steps = [0] * workers
        self.center = x0.copy()
        self.master = Center(rule, self.center)
        rule.begin_master(self.center, [0])
        self.staleness: list[int] = []
        self.path = [self.center.copy()]

    def worker(self, number: int) -> np.ndarray:
        """The weights of worker `number`, [n]."""
        return self.x[number]

    def turn(self, worker: int) -> None:
        """One step of one worker, with an exchange if one is due."""
        self._step(worker, _Server(self, worker))

    def turns(self, order: Iterable[int]) -> np.ndarray:
        """Turns of workers in this order; returns the path of the center, [updates + 1, n]."""
        for worker in order:
            self.turn(worker)
        return np.array(self.path)

    def round(self) -> None:
        """The synchronous form: one step of every worker, and one exchange of all if it is due."""
        sent: dict[int, tuple] = {}

        def serve() -> None:
            vectors, answers = zip(*(sent[worker] for worker in sorted(sent)), strict=True)
            weights = [1 / len(sent)] * len(sent)
            self.master.push_all(sorted(sent), list(vectors), list(answers), weights)
            self._updated(0)

        gate = threading.Barrier(len(self.x), serve)

        def step(worker: int) -> None:
            try:
                self._step(worker, _AtOnce(self, worker, sent, gate))
            except BaseException:
                gate.abort()
                raise

        with ThreadPoolExecutor(len(self.x)) as pool:
            steps = [pool.submit(step, worker) for worker in range(len(self.x))]
        errors = [error for one in steps if (error := one.exception())]
        if errors:
            raise next(e for e in errors if not isinstance(e, threading.BrokenBarrierError))

    def _step(self, worker: int, server) -> None:
        rule, x = self.rules[worker], self.x[worker]
        self._steps[worker] += 1
        rule.look_ahead(x)
        g = np.array(self.gradients[worker](x), x.dtype).reshape(-1)
        rule.step(x, g, server, self._steps[worker] % rule.every == 0)

    def _updated(self, staleness: int) -> None:
        self.staleness.append(staleness)
        self.path.append(self.center.copy())


class _Server:
    """What a rule's `step` gets as `server`; it calls the master directly."""

    def __init__(self, run: Scripted, worker: int):
        self.run, self.worker = run, worker

    def pull(self, into: np.ndarray | None = None) -> np.ndarray:
        into = np.empty_like(self.run.center) if into is None else into
        self.run.master.pull(self.worker, into)
        return into

    def push(self, vector, into: np.ndarray | None = None, answer: bool = True):
        if answer and into is None:
            into = np.empty_like(self.run.center)
        self.run._updated(self.run.master.push(self.worker, vector, into if answer else None))
        return into


class _AtOnce(_Server):
    """The same in a round: `push` waits for all workers, which are then served together."""

    def __init__(self, run: Scripted, worker: int, sent: dict, gate: threading.Barrier):
        super().__init__(run, worker)
        self.sent, self.gate = sent, gate

    def push(self, vector, into: np.ndarray | None = None, answer: bool = True):
        into = np.empty_like(self.run.center) if into is None else into
        self.sent[self.worker] = vector, into
        self.gate.wait(60)
        return into

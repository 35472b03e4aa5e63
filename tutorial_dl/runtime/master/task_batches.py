"""`TaskBatches`: the samples of a task, looked up or read by the worker that uses them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from ...data import Batches, Data
from ...data.dataset import share
from ...replica.base import Batch
from .tasks import Task


class TaskBatches:
    """Batches by task, for one rank of a worker.

    A worker's own column is read in order (and ahead, if the data support it); batches that it
    takes over from others are read when they are needed.

    Args:
        data: All samples, the same on every rank.
        seed: Seed of their order.
        device, devices: This rank's number in its worker, and the number of ranks of the worker.
    """

    def __init__(self, data: Data, seed: int, device: int = 0, devices: int = 1):
        self.data, self.seed, self.device, self.devices = data, seed, device, devices
        self._stream: Iterator[Batch] | None = None
        self._at: tuple = ()  # epoch, size, low, high, parts and the next position
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def batch(self, task: Task, number: int) -> Batch:
        """This rank's samples of the `number`-th batch of a task."""
        position = task.first + number
        if task.more[0] >= 0 and number == 0:
            extra, low, high, parts = task.more
            pieces = [self._indices(task, position, task.low, task.high, task.parts)]
            pieces.append(self._indices(task, extra, low, high, parts))
            return self._take(np.concatenate(pieces))
        return self._next(task, position)

    def close(self) -> None:
        """End reading ahead."""
        if self._stream is not None:
            with suppress(ValueError):
                self._stream.close()
        self._stream, self._at = None, ()

    def _next(self, task: Task, position: int) -> Batch:
        width = task.high - task.low
        what = task.epoch, task.size, task.low, task.high, task.parts
        if task.low % width or task.parts % width:
            return self._take(self._indices(task, position, task.low, task.high, task.parts))
        if self._at != (*what, position):
            # Don't start to read ahead in another worker's column.
            if self._at and self._at[:5] != what and task.count == 1 and position > 0:
                return self._take(self._indices(task, position, task.low, task.high, task.parts))
            self.close()
            batches = Batches(
                self.data, task.size, self.seed,
                rank=task.low // width * self.devices + self.device,
                ranks=task.parts // width * self.devices,
            )  # fmt: skip
            self._stream = batches.epoch(task.epoch, position)
        self._at = (*what, position + 1)
        return next(self._stream)

    def _indices(self, task: Task, position: int, low: int, high: int, parts: int) -> np.ndarray:
        batch = self._order(task)[position * task.size : (position + 1) * task.size]
        mine = batch[len(batch) * low // parts : len(batch) * high // parts]
        return mine[share(len(mine), self.device, self.devices)]

    def _order(self, task: Task) -> np.ndarray:
        key = task.epoch, task.size
        if key not in self._orders:
            if len(self._orders) > 1:
                self._orders.clear()
            self._orders[key] = Batches(self.data, task.size, self.seed).order(task.epoch)
        return self._orders[key]

    def _take(self, indices: np.ndarray) -> Batch:
        return next(iter(self.data.read([[indices]])))

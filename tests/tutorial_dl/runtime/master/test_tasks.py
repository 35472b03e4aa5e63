"""Tasks of masters, without ranks: every sample once per epoch, whichever workers fail."""

import json
import random
from collections import Counter

import h5py
import numpy as np
import pytest

from tutorial_dl import data
from tutorial_dl.runtime.master.messages import flat, record_of
from tutorial_dl.runtime.master.tasks import (
    AsynchronousTasks,
    SynchronousTasks,
    Task,
    TaskBatches,
    TasksOfGroups,
    task_key,
)

SEED = 7


class Readers:
    """All ranks of all workers, which look up samples; a sample's input is its number."""

    def __init__(self, samples: int, devices: int = 1):
        numbers = np.arange(samples)
        part = data.Data.of(numbers, numbers)
        self.items: dict[int, list[TaskBatches]] = {}
        self.make = lambda: [TaskBatches(part, SEED, device, devices) for device in range(devices)]

    def read(self, worker: int, task: Task) -> list[int]:
        task = record_of(Task, [float(number) for number in flat(task)])  # as the task is sent
        found = []
        for number in range(task.count):
            for items in self.items.setdefault(worker, self.make()):
                found += items.batch(task, number)[0].tolist()
        return found


KINDS = AsynchronousTasks, SynchronousTasks


class Group:
    """The workers of one master, which do their tasks in a random order.

    `seen` counts (epoch, sample) of each finished task, in rounds when the round is complete.
    """

    def __init__(self, tasks, readers, chance, seen):
        self.tasks, self.readers, self.chance, self.seen = tasks, readers, chance, seen
        self.at, self.arrived, self.ended = {}, {}, []
        self.finished = []  # tasks

    def turn(self, losing: float = 0.0, last_stays: bool = True, refill=None) -> None:
        """A random worker begins or ends a task, or fails with the probability `losing`."""
        tasks, at = self.tasks, self.at
        tasks.begin()
        worker = self.chance.choice(tasks.workers)
        fails = self.chance.random() < losing * (1 if worker in at else 0.3)
        if fails and (len(tasks.workers) > 1 or not last_stays):
            if worker in at:
                self.readers.read(worker, at.pop(worker))  # this work is lost
            tasks.lose(worker)
            if worker not in self.arrived:
                tasks.give_back(worker)
        elif worker in at:
            self.arrived[worker] = at.pop(worker)
        elif worker not in self.arrived:
            task = tasks.next(worker)
            if task is None and refill is not None:
                refill()
                task = tasks.next(worker)
            if task:
                at[worker] = task
        if isinstance(tasks, AsynchronousTasks) or tasks.given.keys() <= self.arrived.keys():
            for worker, task in self.arrived.items():
                assert tasks.done(worker) == [task]
                found = self.readers.read(worker, task)
                self.seen.update((task.epoch, sample) for sample in found)
                self.finished.append(task)
            self.arrived.clear()
        self.ended += tasks.complete()
        tasks.begin()  # as masters do after every event


def work(tasks, readers, chance, seen, losing=0.0, events=20000):
    """Work until all is done, or for `events`; one worker never fails. Returns the ended epochs."""
    group = Group(tasks, readers, chance, seen)
    while not tasks.over and events > 0:
        events -= 1
        group.turn(losing)
    assert events == 0 or not group.at
    return group.ended


def test_samples_keep_their_order_without_shuffling():
    numbers = np.arange(10)
    part = data.Data.of(numbers, numbers)
    task = Task(epoch=1, order=4, size=4, start=4, stop=10)
    for shuffle in (False, True):
        items = TaskBatches(part, SEED, shuffle=shuffle)
        found = [items.batch(task, number)[0].tolist() for number in range(2)]
        assert (found == [[4, 5, 6, 7], [8, 9]]) is not shuffle


@pytest.mark.parametrize("bad", [[], [70], [200, 3], range(256)])
def test_the_sample_that_is_no_number_is_found_in_few_looks(tmp_path, monkeypatch, bad):
    """Each look opens the files, and decompresses their chunks."""
    x, looks = np.zeros((256, 2), np.float32), []
    x[list(bad), 1] = np.nan
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"], file["labels"] = x, np.zeros(256, int)
    name, right = str(tmp_path / "a.h5"), data.Hdf5Data.not_a_number
    files = data.load(name, validation=name).train
    looking = lambda *given: looks.append(given) or right(*given)  # noqa: E731
    monkeypatch.setattr(data.Hdf5Data, "not_a_number", looking)
    task = Task(0, 64, 64, 0, 256)
    batches = TaskBatches(files, seed=1)
    for number in range(4):
        looks.clear()
        order = batches.indices(task_key(task), *task.batch(number))
        first = next((i for i in order if i in bad), -1)
        assert batches.not_a_number(task, number) == first
        assert len(looks) <= 1 + np.log2(64)


def test_a_task_is_a_stretch_of_an_epoch():
    task = Task(0, 4, 4, 2, 11)  # batches end at 4, 8 and 11
    assert task.count == 3 and [task.batch(k) for k in range(3)] == [(2, 4), (4, 8), (8, 11)]
    assert task.split(3) == (task, None)
    first, rest = task.split(1)
    assert (first.places(), rest.places()) == ([(2, 4)], [(4, 11)])
    assert rest.divided(1, 2).places() == [(6, 8), (9, 11)]
    assert rest.divided(1, 2).divided(0, 2).places() == [(6, 7), (9, 10)]
    assert [one.places() for one in task.without(4, 8)] == [[(2, 4)], [(8, 11)]]


def everything(samples, epochs):
    return {(epoch, sample): 1 for epoch in epochs for sample in range(samples)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_once_an_epoch(kind):
    """Tries numbers of workers and ranks per worker; some ranks have no samples."""
    chance = random.Random(1)
    for workers in range(1, 8):
        for samples, size in ((40, 1), (41, 7), (3, 8), (20, 20), (1, 1), (97, 100)):
            every, devices, seen = chance.choice([1, 2, 5]), chance.choice([1, 2, 3]), Counter()
            tasks = kind(range(1, workers + 1), samples, size, 0, 2, every)
            assert work(tasks, Readers(samples, devices), chance, seen) == [0, 1]
            assert seen == everything(samples, range(2)), (workers, samples)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_after_a_checkpoint(kind):
    """Save and resume at any moment, with lost workers, repeatedly, on any number of workers.

    Tasks in progress are saved as not done, and a round in progress as not begun. Workers fail in
    shares that others left, too.
    """
    begun = failed = 0
    for number in range(200):
        chance = random.Random(1000 + number)
        samples, size = chance.randint(1, 80), chance.randint(1, 9)
        every, workers = chance.choice([1, 3]), chance.randint(1, 4)
        saved, seen, first = [], Counter(), 0
        for stage in range(4):
            tasks = kind(range(1, workers + 1), samples, size, first, 3, every)
            tasks.resume(json.loads(json.dumps(saved)))
            events = chance.randint(0, 30) if stage < 3 else 20000
            losing, devices = chance.choice([0, 0.1]), chance.choice([1, 2])
            first += len(work(tasks, Readers(samples, devices), chance, seen, losing, events))
            failed += workers - len(tasks.workers)
            saved = tasks.save()
            begun += bool(saved)
            workers = chance.choice([workers, chance.randint(1, 5)])
        assert seen == everything(samples, range(3)), f"random run {number}"
        assert first == 3 and saved == []
    assert begun > 100 and failed > 150


class Groups:
    """A run with sub-masters: the tasks of its top master, and those that groups have of them."""

    def __init__(self, chance, kind, samples, size, first, saved):
        workers, masters, every = chance.randint(1, 3), chance.randint(1, 4), chance.choice([1, 3])
        leaves = range(1, masters + 1)
        self.kind, self.chance = kind, chance
        of_all, at_once = kind, every * chance.choice([1, 2])
        if kind is AsynchronousTasks:
            of_all, at_once = TasksOfGroups, samples
        self.top = of_all(leaves, samples, size, first, 3, at_once)
        self.top.resume(json.loads(json.dumps(saved)))
        self.in_weights, self.next_epoch, self.lost = Counter(), first, 0
        self.groups, self.pushed = {}, {}
        for leaf in leaves:
            tasks = kind(range(1, workers + 1), 0, size, 0, 0, every)
            self.groups[leaf] = Group(tasks, Readers(samples), chance, Counter())

    def turn(self, losing: float) -> None:
        self.top.begin()
        leaf = self.chance.choice(list(self.groups))
        group = self.groups[leaf]
        tasks = group.tasks
        asynchronous = self.kind is AsynchronousTasks
        if leaf not in self.pushed:
            group.turn(losing, len(self.groups) == 1, lambda: self.refill(leaf, tasks))
        if asynchronous and (self.chance.random() < 0.3 or not tasks.workers):
            self.exchange(leaf, group)
        elif not asynchronous and not tasks.left and group.finished:
            self.pushed[leaf] = group
        if not tasks.workers:
            del self.groups[leaf]
            self.lost += 1
            self.top.lose(leaf)
            if leaf not in self.pushed:
                self.top.give_back(leaf)
        if not asynchronous and self.pushed and self.top.given.keys() <= self.pushed.keys():
            for pushed in self.pushed.items():
                self.exchange(*pushed)
            self.pushed.clear()
        self.next_epoch += len(self.top.complete())

    def refill(self, leaf, tasks) -> None:
        if self.kind is SynchronousTasks and (tasks.left or tasks.given):
            return
        if task := self.top.next(leaf):
            tasks.take(task)
            tasks.begin()

    def exchange(self, leaf, group) -> None:
        pieces = None
        if self.kind is AsynchronousTasks:
            pieces = [(task.epoch, *ends) for task in group.finished for ends in task.places()]
        if group.finished:
            self.top.done(leaf, pieces)
            self.in_weights.update(group.seen)
        group.finished.clear(), group.seen.clear()

    @property
    def over(self) -> bool:
        return self.next_epoch == 3


@pytest.mark.thorough(but="SynchronousTasks")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_after_a_checkpoint_of_groups(kind):
    """As above with sub-masters: work counts as done when it has reached the top master.

    Groups lose all of their workers, too.
    """
    begun, lost = 0, 0
    for number in range(300):
        chance = random.Random(3000 + number)
        samples, size = chance.randint(1, 60), chance.randint(1, 9)
        saved, seen, first = [], Counter(), 0
        for stage in range(4):
            run = Groups(chance, kind, samples, size, first, saved)
            events, losing = chance.randint(0, 60) if stage < 3 else 200000, chance.choice([0, 0.1])
            while events and not run.over:
                events -= 1
                run.turn(losing)
            seen += run.in_weights
            first, saved = run.next_epoch, run.top.save()
            begun += bool(saved)
            lost += run.lost
        assert seen == everything(samples, range(3)), f"random run {number}"
        assert first == 3 and saved == []
    assert begun > 200 and lost > 100


def test_nobody_is_two_epochs_ahead():
    """No worker is two epochs ahead of a stopped one, whose epoch is not yet validated."""
    tasks = AsynchronousTasks([1, 2], 20, 1, 0, 5)
    stopped, epochs, order = tasks.next(2), set(), []
    while task := tasks.next(1):
        epochs.add(task.epoch)
        tasks.done(1)
        order += tasks.complete()
    assert stopped.epoch == 0 and epochs == {0, 1} and order == [] and not tasks.over
    tasks.lose(2)  # given up
    tasks.give_back(2)
    while tasks.next(1):
        tasks.done(1)
        order += tasks.complete()
    assert order == [0, 1, 2, 3, 4] and tasks.over


def test_other_workers_take_a_slow_ones_shares():
    """In asynchronous training, worker 2 takes ten times as long, and worker 1 takes its shares."""
    tasks = AsynchronousTasks([1, 2], 440, 2, 0, 1)
    done, clock = Counter(), 0
    while not tasks.over and clock < 2000:
        clock += 1
        for worker, every in ((1, 1), (2, 10)):
            if clock % every == 0:
                done[worker] += len(tasks.done(worker))
                tasks.next(worker)
        tasks.complete()
    assert sum(done.values()) == 220
    assert clock < 225  # worker 2 alone would need 1100 for its column
    assert 15 <= done[2] <= 25


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_handed_out_after_a_stop(kind):
    tasks = kind([1, 2], 50, 5, 0, 2)
    tasks.begin()
    assert tasks.next(1) and tasks.next(2)
    tasks.stopped = True
    tasks.done(1)
    assert tasks.next(1) is None and not tasks.over
    tasks.done(2)
    tasks.begin()
    assert tasks.next(2) is None and tasks.over

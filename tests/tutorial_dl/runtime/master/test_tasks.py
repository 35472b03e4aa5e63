"""Tasks of masters, without ranks: every sample once per epoch, whichever workers fail."""

import json
import random
from collections import Counter

import numpy as np
import pytest

from tutorial_dl import data
from tutorial_dl.runtime.master.asynchronous_tasks import AsynchronousTasks
from tutorial_dl.runtime.master.hierarchical_master import Ledger, undone
from tutorial_dl.runtime.master.messages import Undone, flat
from tutorial_dl.runtime.master.synchronous_tasks import SynchronousTasks
from tutorial_dl.runtime.master.tasks import Rest, Task, TaskBatches, record_of

SEED = 7


class Readers:
    """All ranks of all workers, which look up samples; a sample's input is its number."""

    def __init__(self, samples: int, devices: int = 1):
        numbers = np.arange(samples)
        part = data.Data.of(numbers, numbers)
        self.items: dict[int, list[TaskBatches]] = {}
        self.make = lambda: [TaskBatches(part, SEED, device, devices) for device in range(devices)]

    def read(self, worker: int, task: Task) -> list[int]:
        task = Task.of_words([float(number) for number in flat(task)])  # as the task is sent
        found = []
        for number in range(task.count):
            for items in self.items.setdefault(worker, self.make()):
                found += items.batch(task, number)[0].tolist()
        return found


class Group:
    """The workers of one master, which do their tasks in a random order.

    `seen` counts (epoch, sample) of each finished task, in rounds when the round is complete.
    """

    def __init__(self, tasks, readers, chance, seen):
        self.tasks, self.readers, self.chance, self.seen = tasks, readers, chance, seen
        self.workers, self.at, self.of_round = sorted(tasks.of_test), {}, Counter()
        self.ended: list[int] = []
        self.untold: set[int] = set()  # epochs with work done after their reported end

    def turn(self, losing: float = 0.0, last_stays: bool = True) -> None:
        """A random worker begins or ends a task, or fails with the probability `losing`."""
        tasks, at = self.tasks, self.at
        if isinstance(tasks, SynchronousTasks):
            tasks.begin()
        worker = self.chance.choice(self.workers)
        fails = self.chance.random() < losing * (1 if worker in at else 0.3)
        if fails and (len(self.workers) > 1 or not last_stays):
            self.workers.remove(worker)
            if worker in at:
                self.readers.read(worker, at.pop(worker))  # this work is lost
            tasks.lose(worker)
        elif worker in at:
            task = at.pop(worker)
            found = self.readers.read(worker, task)
            self.of_round.update((task.epoch, sample) for sample in found)
            assert tasks.done(worker) == task
        elif task := tasks.next(worker):
            at[worker] = task
        if isinstance(tasks, AsynchronousTasks) or tasks.between:
            self.seen.update(self.of_round)
            self.untold |= {epoch for epoch, _ in self.of_round}
            self.of_round.clear()
        ended = tasks.complete()
        self.ended += ended
        self.untold -= set(ended)
        if isinstance(tasks, SynchronousTasks):  # as masters do after every event
            tasks.begin()


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
    task = Task(epoch=1, size=4, first=1, count=2, low=0, high=1, parts=1)
    for shuffle in (False, True):
        items = TaskBatches(part, SEED, shuffle=shuffle)
        found = [items.batch(task, number)[0].tolist() for number in range(2)]
        assert (found == [[4, 5, 6, 7], [8, 9]]) is not shuffle


def groups_of(kind, workers, masters, samples, batch_size, first=0, last=2, every=1):
    found, size = [], batch_size * (masters * workers if kind is AsynchronousTasks else 1)
    for master in range(masters):
        columns = {leaf: master * workers + leaf - 1 for leaf in range(1, workers + 1)}
        tasks = kind(columns, masters * workers, samples, size, first, last, every)
        tasks.of_test = list(columns)
        found.append(tasks)
    return found


def everything(samples, epochs):
    return {(epoch, sample): 1 for epoch in epochs for sample in range(samples)}


@pytest.mark.parametrize("kind", [AsynchronousTasks, SynchronousTasks])
def test_every_sample_once_an_epoch(kind):
    """Tries numbers of workers, masters and ranks per worker; some ranks have no samples."""
    chance = random.Random(1)
    for workers in range(1, 6):
        for masters in (1, 2, 3):
            for samples, batch_size in ((40, 1), (41, 7), (3, 8), (20, 20), (1, 1), (97, 100)):
                every, devices = chance.choice([1, 2, 5]), chance.choice([1, 2, 3])
                seen = Counter()
                for tasks in groups_of(kind, workers, masters, samples, batch_size, every=every):
                    ended = work(tasks, Readers(samples, devices), chance, seen)
                    assert ended == [0, 1]
                assert seen == everything(samples, range(2)), (workers, masters, samples)


@pytest.mark.parametrize("kind", [AsynchronousTasks, SynchronousTasks])
def test_every_sample_once_if_workers_fail(kind):
    """Workers fail at random moments of random runs, also in shares that others left."""
    failed = 0
    for number in range(200):
        chance = random.Random(number)
        workers, masters = chance.randint(2, 5), chance.choice([1, 1, 2])
        samples, batch_size = chance.randint(1, 90), chance.randint(1, 12)
        every, devices = chance.choice([1, 2, 4]), chance.choice([1, 1, 2])
        seen = Counter()
        for tasks in groups_of(kind, workers, masters, samples, batch_size, last=3, every=every):
            ended = work(tasks, Readers(samples, devices), chance, seen, losing=0.1)
            assert ended == [0, 1, 2]
            failed += len(tasks.lost) if kind is AsynchronousTasks else workers - len(tasks.workers)
        assert seen == everything(samples, range(3)), f"random run {number}"
    assert failed > 200


@pytest.mark.thorough(but="AsynchronousTasks")
@pytest.mark.parametrize("kind", [AsynchronousTasks, SynchronousTasks])
def test_every_sample_when_all_workers_of_a_master_fail(kind):
    """Other groups adopt their shares at any moment, also shares of epochs that they have ended."""
    left_early = 0
    for number in range(200):
        chance, seen, left = random.Random(2000 + number), Counter(), []
        workers, masters = chance.randint(1, 3), chance.randint(2, 4)
        samples, batch_size = chance.randint(1, 60), chance.randint(1, 9)
        every = chance.choice([1, 2, 4])
        tasks = groups_of(kind, workers, masters, samples, batch_size, last=3, every=every)
        groups = [Group(each, Readers(samples), chance, seen) for each in tasks]
        speed = [chance.choice([1, 20]) for _ in groups]
        events = 0
        while left or not all(group.tasks.over for group in groups):
            events += 1
            assert events < 20000, f"random run {number}"
            (group,) = chance.choices(groups, speed[: len(groups)])
            if left and chance.random() < 0.3:
                group.tasks.adopt(record_of(Rest, list(map(float, left.pop()))))
            group.turn(losing=0.05, last_stays=len(groups) == 1)
            if not group.workers:
                left += group.tasks.leave()
                assert group.tasks.over
                groups.remove(group)
        assert seen == everything(samples, range(3)), f"random run {number}"
        for group in groups:
            assert set(group.ended) == {0, 1, 2} and not group.untold
        left_early += masters - len(groups)
    assert left_early > 200


@pytest.mark.parametrize("kind", [AsynchronousTasks, SynchronousTasks])
def test_what_is_left_after_a_checkpoint(kind):
    """Save and resume at any moment, with lost workers, repeatedly, on any number of workers.

    Tasks in progress are saved as not done, and a round in progress as not begun.
    """
    begun = 0
    for number in range(150):
        chance = random.Random(1000 + number)
        samples, batch_size = chance.randint(1, 80), chance.randint(1, 9)
        every, workers = chance.choice([1, 3]), chance.randint(1, 4)
        saved, seen, first = [], Counter(), 0
        for stage in range(4):
            (tasks,) = groups_of(kind, workers, 1, samples, batch_size, first, 3, every)
            tasks.resume(json.loads(json.dumps(saved)))
            events = chance.randint(0, 30) if stage < 3 else 20000
            losing = chance.choice([0, 0.1])
            first += len(work(tasks, Readers(samples), chance, seen, losing, events))
            saved = tasks.save()
            begun += bool(saved)
            workers = chance.choice([workers, chance.randint(1, 5)])
        assert seen == everything(samples, range(3)), f"random run {number}"
        assert first == 3 and saved == []
    assert begun > 100


class Runs:
    """A run with sub-masters as its top master sees it: groups, relays and adopted shares."""

    def __init__(self, chance, kind, samples, batch_size, first, saved):
        workers, masters, every = chance.randint(1, 3), chance.randint(1, 4), chance.choice([1, 3])

        def made():
            found = groups_of(kind, workers, masters, samples, batch_size, first, 3, every)
            for tasks in found:
                tasks.resume(json.loads(json.dumps(saved)))
            return found

        self.chance, self.in_weights, self.next_epoch = chance, Counter(), first
        self.groups = {
            g: Group(tasks, Readers(samples), chance, Counter()) for g, tasks in enumerate(made())
        }
        self.books = Ledger(dict(enumerate(made())))
        self.told = {g: [] for g in self.groups}  # shares that each sub-master has to adopt
        self.ended = {g: set() for g in self.groups}
        self.left: list[Rest] = []

    def turn(self, losing: float) -> None:
        g = self.chance.choice(list(self.groups))
        group, told = self.groups[g], self.told[g]
        if told and self.chance.random() < 0.5:
            group.tasks.adopt(told.pop(0))
        group.turn(losing, last_stays=len(self.groups) == 1)
        if self.left and self.chance.random() < 0.3:
            self.hand_over(g)
        ended = set(group.ended)
        group.ended.clear()
        if ended or self.chance.random() < 0.3 or not group.workers:
            self.exchange(g, ended)
        if not group.workers:
            for rest in told:
                group.tasks.adopt(rest)
            self.left += group.tasks.leave()
            self.books.close(g)
            del self.groups[g]
        while (
            self.next_epoch < 3
            and all(self.next_epoch in self.ended[g] for g in self.groups)
            and all(rest.epoch != self.next_epoch for rest in self.left)
        ):
            self.next_epoch += 1

    def hand_over(self, g: int) -> None:
        rest = self.left.pop()
        self.books.adopted(g, rest)
        self.told[g].append(rest)
        self.ended[g].discard(rest.epoch)

    def exchange(self, g: int, ended: set[int]) -> None:
        group, told = self.groups[g], self.told[g]
        for some in undone(group.tasks, told):
            words = np.zeros(15)  # as it is sent
            words[: len(flat(some))] = flat(some)
            self.books.say(g, Undone.of_words(words.tolist()))
            if self.left and self.chance.random() < 0.3:
                self.hand_over(g)
        if not ended and group.workers and self.chance.random() < 0.1:
            return  # the run ends before the relay, or the group repeats it
        self.books.enter(g)
        self.in_weights.update(group.seen)
        group.seen.clear()
        self.ended[g] |= ended - {rest.epoch for rest in told}

    @property
    def over(self) -> bool:
        return self.next_epoch == 3


@pytest.mark.thorough(but="SynchronousTasks")
@pytest.mark.parametrize("kind", [AsynchronousTasks, SynchronousTasks])
def test_what_is_left_after_a_checkpoint_of_groups(kind):
    """As above with sub-masters: work counts as done when it has reached the top master."""
    begun, left = 0, 0
    for number in range(300):
        chance = random.Random(3000 + number)
        samples, batch_size = chance.randint(1, 60), chance.randint(1, 9)
        saved, seen, first = [], Counter(), 0
        for stage in range(4):
            run = Runs(chance, kind, samples, batch_size, first, saved)
            events, losing = chance.randint(0, 60) if stage < 3 else 200000, chance.choice([0, 0.1])
            while events and not run.over:
                events -= 1
                run.turn(losing)
            seen += run.in_weights
            first, saved = run.next_epoch, run.books.save(run.next_epoch, run.left)
            if len(run.told) == 1 and chance.random() < 0.5:  # a run without sub-masters
                seen += run.groups[0].seen
                saved = run.groups[0].tasks.save()
            begun += bool(saved)
            left += len(run.told) - len(run.groups)
        assert seen == everything(samples, range(3)), f"random run {number}"
        assert first == 3 and saved == []
    assert begun > 200 and left > 100


def test_rounds_that_go_back_twice_leave_everything_once():
    """A group goes back from epoch 2 to 1 and to 0, and then loses its last worker."""
    (tasks,) = groups_of(SynchronousTasks, 1, 2, 8, 4, last=4)[:1]
    group = Group(tasks, Readers(8), random.Random(0), Counter())
    while tasks.number < 2:
        group.turn()
    for epoch in (1, 0):
        tasks.adopt(Rest(epoch, 0, 2, 1, 2, 2))
        group.turn()
        group.turn()
    tasks.lose(1)
    left = Counter()
    for rest in tasks.leave():
        for position in range(rest.first, rest.first + rest.count):
            left[rest.epoch, position, rest.low, rest.high] += 1
    assert set(left.values()) == {1} and {key[0] for key in left} <= {0, 1, 2, 3}
    assert (3, 0, 0, 1) in left and (1, 1, 1, 2) in left


def test_nobody_is_two_epochs_ahead():
    """No worker is two epochs ahead of a stopped one, whose epoch is not yet validated."""
    (tasks,) = groups_of(AsynchronousTasks, 2, 1, 20, 1, last=5)
    stopped, epochs, order = tasks.next(2), set(), []
    while task := tasks.next(1):
        epochs.add(task.epoch)
        tasks.done(1)
        order += tasks.complete()
    assert stopped.epoch == 0 and epochs == {0, 1} and order == [] and not tasks.over
    tasks.lose(2)  # given up
    while tasks.next(1):
        tasks.done(1)
        order += tasks.complete()
    assert order == [0, 1, 2, 3, 4] and tasks.over


def test_other_workers_take_a_slow_ones_shares():
    """In asynchronous training, worker 2 takes ten times as long, and worker 1 takes its shares."""
    (tasks,) = groups_of(AsynchronousTasks, 2, 1, 220, 1, last=1)
    done, clock = Counter(), 0
    while not tasks.over and clock < 2000:
        clock += 1
        for worker, every in ((1, 1), (2, 10)):
            if clock % every == 0:
                done[worker] += tasks.done(worker) is not None
                tasks.next(worker)
        tasks.complete()
    assert sum(done.values()) == 220
    assert clock < 225  # worker 2 alone would need 1100 for its column
    assert 15 <= done[2] <= 25


def test_nothing_is_handed_out_after_a_stop():
    for kind in (AsynchronousTasks, SynchronousTasks):
        (tasks,) = groups_of(kind, 2, 1, 50, 5)
        if kind is SynchronousTasks:
            tasks.begin()
        one, other = tasks.next(1), tasks.next(2)
        assert one and other
        tasks.stopped = True
        tasks.done(1)
        assert tasks.next(1) is None and not tasks.over
        tasks.done(2)
        if kind is SynchronousTasks:
            tasks.begin()
        assert tasks.next(2) is None and tasks.over

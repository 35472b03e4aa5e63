"""Notebook 15: the solutions pass, and the models agree with runs."""

import itertools

import pytest

from tutorial_dl.course.exercises import notebook_15
from tutorial_dl.layout import Layout

# The path ----------------------------------------------------------------------------------------


def test_paths_by_hand():
    roles = Layout(masters=2, workers=2, devices=2).roles()
    paths = {rank: notebook_15._path(roles, rank) for rank in (2, 3, 9, 10)}
    assert paths == {2: [2, 1, 0], 3: [3, 2, 1, 0], 9: [9, 6, 0], 10: [10, 9, 6, 0]}
    roles = Layout(masters=0, workers=2, devices=2).roles()
    assert notebook_15._path(roles, 3) == [3, 2]


# The choice --------------------------------------------------------------------------------------


def test_there_are_no_others():
    right = []
    for answer in itertools.product(range(5), range(1, 41), range(1, 5)):
        try:
            notebook_15.choice(answer)
        except notebook_15.NotYet:
            continue
        right.append(answer)
    assert right == [(2, 7, 2), (2, 8, 2)]


# The models --------------------------------------------------------------------------------------


def one_by_one(workers, compute, serve, seconds=60.0):
    """Updates per second of one master that serves requests in order of arrival."""
    comes, free, updates = [compute] * workers, 0.0, 0
    while free < seconds:
        worker = min(range(workers), key=comes.__getitem__)
        free = max(free, comes[worker]) + serve
        comes[worker] = free + compute
        updates += 1
    return updates / free


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
def test_what_one_master_serves(workers):
    """c = 40 ms and s = 4 to 12 ms: some masters wait, others are saturated."""
    for compute, serve in ((0.040, 0.004), (0.040, 0.012)):
        model = notebook_15.updates_a_second(1, workers, 1, compute, serve)
        assert model == pytest.approx(one_by_one(workers, compute, serve), rel=0.01)


def in_groups(masters, workers, upward, compute, serve, seconds=60.0):
    """Updates per second with sub-masters, which share `workers` workers and relay to the top.

    If an update causes a relay, the worker gets its answer after the relay.
    """
    comes = [[compute * (1 + 0.01 * worker)] * (workers // masters) for worker in range(masters)]
    free, above, relayed, updates = [0.0] * masters, 0.0, [0] * masters, 0
    while min(free) < seconds:
        group = min(range(masters), key=lambda group: max(free[group], min(comes[group])))
        worker = min(range(len(comes[group])), key=comes[group].__getitem__)
        done = max(free[group], comes[group][worker]) + serve
        relayed[group] += 1
        if relayed[group] == upward:
            done = above = max(above, done) + serve
            relayed[group] = 0
        free[group], comes[group][worker] = done, done + compute
        updates += 1
    return updates / max(free)


@pytest.mark.parametrize(
    ("masters", "workers", "upward"),
    [(2, 2, 8), (2, 4, 8), (2, 16, 8), (3, 6, 4), (4, 40, 8), (4, 40, 1), (2, 40, 1)],
)
def test_what_sub_masters_serve(masters, workers, upward):
    for compute, serve in ((0.040, 0.004), (0.008, 0.008)):
        model = notebook_15.updates_a_second(masters, workers, upward, compute, serve)
        found = in_groups(masters, workers, upward, compute, serve)
        assert 0.9 * model < found < 1.02 * model


def what_is_not_seen(masters, workers, upward, updates=2400):
    """Mean number of updates that the weights behind a gradient do not contain, event by event.

    Workers take turns. A weight vector is the set of updates it contains. A group relays after
    every `upward` updates.
    """
    top = set()
    groups, news = ([set() for _ in range(masters)] for _ in range(2))
    weights = {(worker, group): set() for worker in range(workers) for group in range(masters)}
    turns, missing = itertools.cycle(weights), []
    for name in range(updates):
        worker, group = next(turns)
        missing.append(name - len(weights[worker, group]))
        groups[group].add(name)
        news[group].add(name)
        weights[worker, group] = set(groups[group])  # the answer to this update
        if masters > 1 and len(news[group]) == upward:
            top |= news[group]
            groups[group], news[group] = set(top), set()
    return sum(missing[updates // 4 :]) / len(missing[updates // 4 :])


@pytest.mark.parametrize(
    ("masters", "workers", "upward"),
    [(1, 4, 1), (1, 8, 5), (2, 2, 1), (2, 2, 4), (2, 2, 16), (3, 2, 8), (4, 3, 5)],
)
def test_how_many_updates_are_not_seen(masters, workers, upward):
    """The formula is W - 1 + (M - 1) u, with W workers in all."""
    model = notebook_15.not_seen(masters, masters * workers, upward)
    found = what_is_not_seen(masters, workers, upward)
    assert found == pytest.approx(model, abs=0.1)

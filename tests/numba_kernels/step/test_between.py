"""The synchronous step between nodes; test_step.py compares it with numpy for all rules and sizes.

NUMBA_KERNELS_NODE=2 makes nodes of two ranks. Slices are cut into small pieces, so that short
vectors take many exchanges, and every wait is resumed.
"""

import itertools
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from steps import compare

# Ranks and ranks per node: two full nodes, 3 + 1, 2 + 1, three nodes of one rank, 2 + 2 + 1
NODES = [(4, "2"), (4, "3"), (3, "2"), (3, "1"), (5, "2")]
on_nodes = pytest.mark.parametrize(("ranks", "node"), NODES)


def everyone(nodes):
    """{rank: its `rows`}, {rank: its `order`} of nodes with these numbers of ranks."""
    from numba_kernels.step.between import exchanges

    last = [int(end) for end in np.cumsum(nodes)]
    nodes = [tuple(range(end - size, end)) for end, size in zip(last, nodes, strict=True)]
    seats = [(here, place) for here, node in enumerate(nodes) for place in range(len(node))]
    made = [exchanges(nodes, *seat) for seat in seats]
    return nodes, [rows.tolist() for rows, _ in made], [order.tolist() for _, order in made]


def test_plans_fit_together():
    """Each slice has one carrier on every other node, and no rank waits for one that waits."""
    for nodes in ((2, 2), (3, 1), (2, 1), (1, 3), (1, 1, 1), (2, 2, 1), (1, 4, 2), (3, 2, 5, 1)):
        groups, rows, orders = everyone(nodes)
        home = {rank: here for here, node in enumerate(groups) for rank in node}
        sent = [(rank, to) for rank, mine in enumerate(rows) for to, _ in mine if to >= 0]
        received = [(of, rank) for rank, mine in enumerate(rows) for _, of in mine if of >= 0]
        assert sorted(sent) == sorted(received)
        carried = sorted((home[carrier], owner) for carrier, owner in sent)
        others = itertools.product(range(len(nodes)), home)
        assert carried == sorted((node, owner) for node, owner in others if node != home[owner])
        for rank, order in enumerate(orders):
            of = [home[rank] if i == len(rows[rank]) else home[rows[rank][i][1]] for i in order]
            assert of == list(range(len(nodes)))
        # Each rank does its exchanges one after the other, and each is done at once on both sides.
        places = [0] * len(rows)
        while any(place < len(mine) for place, mine in zip(places, rows, strict=True)):
            now = [mine[p] if p < len(mine) else (-1, -1) for p, mine in zip(places, rows)]  # noqa: B905
            ready = begun_by_both(now, rows, places)
            assert ready, f"ranks of {nodes} wait for each other at {places}"
            for rank in ready:
                places[rank] += 1


def begun_by_both(now, rows, places):
    """The ranks whose present exchange can end: the other sides have sent or begun to receive."""

    def reached(rank, column, other):
        return any(line[column] == other for line in rows[rank][: places[rank] + 1])

    return [
        rank
        for rank, (to, of) in enumerate(now)
        if places[rank] < len(rows[rank])
        and (to < 0 or reached(to, 1, rank))
        and (of < 0 or reached(of, 0, rank))
    ]


@contextmanager
def in_small_pieces(team):
    """Cut the slices of new steps into pieces of 64 numbers, and return from every wait at once."""
    from numba_kernels.shared.node_array import PATIENCE
    from numba_kernels.step import between

    with mock.patch.object(between, "PIECE", 64):
        between.pool_of(team)
        team.node_array[PATIENCE] = 0
        for link, *_ in team.routes:
            link.patience[:] = 0
        yield


def against_numpy():
    """Several rules and sizes, some below the number of ranks, wherever the weights lie."""
    from numba_kernels import Team

    team = Team()
    names = itertools.cycle(("sgd", "adam", "momentum", "lamb", "adamw", "lars", "lion"))
    ways = itertools.cycle(itertools.product(("rows", "common", "private"), ("float32", "float64")))
    sizes = ((1, None), (17, None), (40, 1.0), (5003, None), (5003, 30.0), (1000 + team.size, None))
    with in_small_pieces(team):
        for (n, clip), _ in itertools.product(sizes, range(4)):
            place, dtype = next(ways)
            compare(team, next(names), n, clip, dtype, True, place)


@pytest.mark.thorough(but="3-2")
@on_nodes
def test_against_numpy(on_ranks, ranks, node):
    on_ranks(ranks, against_numpy, env={"NUMBA_KERNELS_NODE": node})


def gradient_outside():
    """One rank's gradient is in ordinary memory, so no node can reduce; the others find out.

    Otherwise this rank would wait for messages, and those of its node for it at a barrier.
    """
    from numba_kernels import Team
    from numba_kernels.optimizers import SGD
    from numba_kernels.step.step import Step

    team, n = Team(), 3000
    gradient = team.empty(n)
    if team.rank == 1:
        gradient = np.zeros(n, "f4")
    w = team.empty(n)
    step = Step(team, SGD(1.0), w, gradient)
    for turn in range(3):
        gradient[:] = np.arange(n) * (team.rank + 1)
        step(0.0, 1)
        mean = -(turn + 1) * np.arange(n) * (team.size + 1) / 2
        np.testing.assert_allclose(w, mean, rtol=1e-6)


@pytest.mark.parametrize(("ranks", "node"), [(4, "2"), (3, "2"), (3, "3")])
def test_gradient_outside(on_ranks, ranks, node):
    on_ranks(ranks, gradient_outside, env={"NUMBA_KERNELS_NODE": node})


def what_leaves_a_node():
    """Every byte leaves a node once: half of the numbers as sums, and half as weights."""
    from numba_kernels import Team
    from numba_kernels.optimizers import SGD
    from numba_kernels.step.step import Step

    team, n = Team(), 4 * 16 * 100
    step = Step(team, SGD(), team.empty(n), team.empty(n))
    rows = step.plan.rows
    assert rows.tolist() == [[(team.rank + 2) % 4] * 2], "one partner on the other node"
    assert not step.shared and step.state.slots.shape == (0, n // 4)


def test_what_leaves_a_node(on_ranks):
    on_ranks(4, what_leaves_a_node, env={"NUMBA_KERNELS_NODE": "2"})


class Stop(RuntimeError):
    """The error that ends a rank's step."""


def fails_in_the_midst(folder):
    """A rank fails with messages in flight; afterwards the team steps on, with the right result."""
    from numba_kernels import PeerError, Team
    from numba_kernels.optimizers import Adam
    from numba_kernels.step.between import BEGUN, DONE
    from numba_kernels.step.step import Step

    team, n = Team(), 3000
    for clip, culprit in ((None, 0), (1.0, team.size - 1)):
        w, g = team.empty(n), team.empty(n)
        w[:] = 1
        with in_small_pieces(team):
            step = Step(team, Adam(0.01), w, g, clip_norm=clip)
        g[:] = team.rank
        step(0.0, 1)
        failed = Path(folder, f"{culprit}")
        if team.rank == culprit:
            # The ranks of other nodes come only when this one has failed, so it must wait for them.
            numbers, looks = step.plan.numbers, team._look_around

            def fail(*arguments, numbers=numbers, looks=looks, failed=failed):
                if numbers[BEGUN] > numbers[DONE]:
                    failed.touch()
                    raise Stop("in the midst")
                looks(*arguments)

            step.plan.numbers[[BEGUN, DONE]] = 0  # of the step before
            team._look_around = fail
            with pytest.raises(Stop):
                step(0.0, 1)
            assert len(team.abandoned) > 1, "no messages were in flight"
            del team._look_around
        else:
            if culprit not in team.node:
                end = time.monotonic() + 600
                while not failed.exists() and time.monotonic() < end:
                    time.sleep(0.005)
            with pytest.raises(PeerError, match=f"rank {culprit} failed: Stop: in the midst"):
                step(0.0, 1)
        team.recover(120)
        step.resume()
        assert (team.allgather(w) == w).all()
        alone, state = w.copy(), Adam(0.01).init(n)
        for part in range(team.size):
            first, last = team.slice_of(n, part)
            slots = np.zeros((2, last - first), "f4")
            slots[:] = step.state.slots if part == team.rank else 0
            state.slots[:, first:last] = team.broadcast(slots, part)
        state.step = step.state.step
        g[:] = 0.01 * team.rank / np.sqrt(n)
        mean = np.full(n, 0.01 * (team.size - 1) / 2 / np.sqrt(n), "f4")
        Adam(0.01).update(alone, mean, state)
        step(0.0, 1)
        np.testing.assert_allclose(w, alone, atol=1e-6)


@pytest.mark.parametrize(("ranks", "node"), [(4, "2"), (3, "2")])
def test_a_rank_fails_in_the_midst(on_ranks, tmp_path, ranks, node):
    on_ranks(ranks, fails_in_the_midst, str(tmp_path), env={"NUMBA_KERNELS_NODE": node})


def calls_differ():
    """Rank 1 steps with more parameters, or reduces; every rank raises, and the team goes on."""
    from numba_kernels import MismatchError, Team
    from numba_kernels.optimizers import SGD
    from numba_kernels.step.step import Step

    team = Team()
    one, more = (Step(team, SGD(), team.empty(n), team.empty(n)) for n in (5000, 5100))
    for other in (lambda: more(0.0, 1), lambda: team.allreduce(np.zeros(10))):
        with pytest.raises(MismatchError, match=r"step\(float32\[5000\]\)"):
            if team.rank == 1:
                other()
            one(0.0, 1)
        team.recover(120)
        one.gradient[:] = 1
        one(0.0, 1)


@pytest.mark.parametrize("node", ["2", "1"])
def test_calls_differ(on_ranks, node):
    on_ranks(4 if node == "2" else 2, calls_differ, env={"NUMBA_KERNELS_NODE": node})

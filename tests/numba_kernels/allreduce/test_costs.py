"""Cost formulas against results by hand, the measured machine, and the choice of an algorithm."""

import os
from dataclasses import replace
from unittest import mock

import clock
import numpy as np
import pytest

from numba_kernels.allreduce import costs
from numba_kernels.allreduce.costs import Curve, Machine, straight

N = 1000.0


@pytest.mark.parametrize(
    ("algorithm", "ranks", "messages", "bytes_sent", "bytes_added"),
    [
        # expected: messages in a row, then vector lengths sent, then vector lengths added
        ("naive", 2, 2, 2, 1),
        ("naive", 4, 6, 6, 3),
        ("tree", 2, 2, 2, 1),
        ("tree", 4, 4, 4, 2),
        ("tree", 5, 6, 6, 3),
        ("ring", 2, 2, 1, 0.5),
        ("ring", 4, 6, 1.5, 0.75),
        ("recursive_doubling", 2, 1, 1, 1),
        ("recursive_doubling", 4, 2, 2, 2),
        ("recursive_doubling", 5, 4, 4, 3),
        ("rabenseifner", 2, 2, 1, 0.5),
        ("rabenseifner", 4, 4, 1.5, 0.75),
        ("rabenseifner", 8, 6, 1.75, 0.875),
        ("rabenseifner", 6, 6, 3.5, 1.75),
    ],
)
def test_by_hand(algorithm, ranks, messages, bytes_sent, bytes_added):
    assert costs.predict(algorithm, N, ranks, straight(1, 0, 0)) == messages
    assert costs.predict(algorithm, N, ranks, straight(0, 1, 0)) == pytest.approx(bytes_sent * N)
    assert costs.predict(algorithm, N, ranks, straight(0, 0, 1)) == pytest.approx(bytes_added * N)


def test_two_levels_by_hand():
    """8 ranks, 2 per node: lanes of n/2 bytes over 4 nodes, 5 s within a node, 0.25 s per call."""
    lane, inside = Curve((0, 1), (1, 3)), Curve((0, 1), (5, 5))
    line = straight(100, 100, 0)
    machine = Machine(
        1, 1, 0, line.message, line.exchange, line.add, lane=lane, inside=inside, call=0.25,
        ranks=8, per_node=2,
    )  # fmt: skip
    # Recursive doubling sends 2 messages of N/2 bytes, Rabenseifner 4 with 1.5 (N/2) bytes in all.
    assert costs.between_nodes(N, 4, machine, True) == "rabenseifner"
    lanes = 4 * 1 + 1.5 * 2 * N / 2
    assert costs.predict("two_level", N, 8, machine) == pytest.approx(2 * 0.25 + 5 + lanes)
    assert costs.best(N, 8, machine) == "two_level"
    # Leaders send 2 messages of the whole vector, a second and a second per byte each.
    leading = replace(machine, leaders=Curve((0, 2000), (3, 3)), single=Curve((0, 1), (1, 2)))
    assert costs.predict("two_level", 4, 8, leading) == 3 + 0.25 + 2 * (1 + 4)
    assert costs.between_nodes(4, 4, leading, True) == "leaders"
    assert costs.between_nodes(4, 4, leading, False) == "recursive_doubling"
    assert costs.between_nodes(N, 4, leading, True) == "rabenseifner"
    on_one_node = Machine(
        1, 1, 0, line.message, line.exchange, line.add, inside=inside, ranks=2, per_node=2
    )
    assert costs.predict("two_level", N, 2, on_one_node) == 5


def test_what_is_measured_as_a_whole():
    line = straight(1, 1, 1)
    whole = Curve((0, 10), (0, 20))
    machine = Machine(
        1, 1, 1, line.message, line.exchange, line.add, window=whole, staged=whole, library=whole,
        call=3, ranks=4,
    )  # fmt: skip
    assert costs.predict("shared_memory", 5, 4, machine) == 10
    assert costs.predict("staged", 5, 2, machine) == 5  # half the ranks, half the bytes
    assert costs.predict("mpi", 5, 2, machine) == 5  # one round instead of two
    assert costs.predict("ring", 4, 2, machine) == 3 + 2 * (1 + 2) + 2  # call counts once


@pytest.mark.parametrize("algorithm", costs.COSTS)
def test_one_rank_costs_nothing(algorithm):
    assert costs.predict(algorithm, 1e6, 1, straight(1, 1, 1)) == 0


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("star", "no cost formula for 'star'; choose one of naive, tree, ring"),
        ("mpi", r"cost of mpi is unknown; call costs.measure\(team\) first"),
        ("shared_memory", "cost of shared_memory is unknown"),
        ("staged", "cost of staged is unknown"),
    ],
)
def test_errors_are_one_line(algorithm, message):
    with pytest.raises(ValueError, match=message) as error:
        costs.predict(algorithm, 1, 2, straight(1, 1, 1))
    assert "\n" not in str(error.value)


def test_a_curve_goes_through_its_points_and_straight_on():
    sizes, seconds = (10.0, 20.0, 80.0), (1.0, 2.0, 3.0)
    curve = Curve(sizes, seconds)
    at = np.linspace(10, 80, 71)
    np.testing.assert_allclose([curve(n) for n in at], np.interp(at, sizes, seconds))
    assert curve(0) == curve(5) == 1  # a message of one byte takes as long as one of ten
    assert curve(140) == pytest.approx(4)
    rising = [curve(n) for n in range(200)]
    assert rising == sorted(rising)
    assert Curve((5.0,), (7.0,))(1e9) == 7


def test_a_line_is_fitted_relatively():
    from numba_kernels.allreduce import measure

    sizes = np.array(measure.SIZES, float)
    alpha, beta = measure.fit(3e-6 + sizes / 5e9)
    assert (alpha, 1 / beta) == pytest.approx((3e-6, 5e9))
    # Errors of 10% count alike at both ends; with absolute errors only the longest would count.
    bent = 3e-6 + sizes / 5e9
    bent[::2] *= 1.1
    alpha, beta = measure.fit(bent)
    assert alpha == pytest.approx(3e-6, rel=0.1) and 1 / beta == pytest.approx(5e9, rel=0.1)
    # Short messages are cheaper per byte than long ones here: the latency is 0, never negative.
    alpha, beta = measure.fit(sizes**1.2 / 1e10)
    assert alpha == 0 and beta > 0


def test_the_best_is_what_the_textbook_says():
    latency, bandwidth = straight(1e-3, 1e-15, 1e-15), straight(1e-15, 1e-6, 1e-7)
    for ranks in (4, 8, 64):  # L messages are fewer than 2L or 2(p-1)
        assert costs.best(1e3, ranks, latency) == "recursive_doubling"
        assert costs.best(1e6, ranks, bandwidth) in ("ring", "rabenseifner")
    # Folding costs Rabenseifner two messages with the whole vector, and the ring nothing.
    assert costs.best(1e6, 6, bandwidth) == "ring"
    # 17 ranks: 6 messages with folding, against 2 x 5 in a tree and 32 round the ring.
    assert costs.best(1e3, 17, latency) == "recursive_doubling"
    assert costs.best(1e6, 64, straight(1e-6, 1e-9, 0)) == "rabenseifner"  # fewer messages


def each_rank(ranks):
    """All ranks hold the same measured numbers, and choose algorithms by them."""
    from mpi4py import MPI

    from numba_kernels import Team
    from numba_kernels.allreduce import costs, measure

    with Team() as team:
        if clock.FILE in os.environ:
            costs.measure(team)  # compiles
            with clock.seconds("the machine is measured"):
                machine = costs.measure(team)
        else:  # the seconds of measuring matter for precision only
            with mock.patch.object(measure, "SECONDS", 0.0):
                machine = costs.measure(team)
        assert team.machine is machine and machine.ranks == ranks
        everyones = MPI.COMM_WORLD.allgather(machine)
        assert all(repr(other) == repr(machine) for other in everyones)

        curves = [machine.message, machine.exchange, machine.add, machine.library]
        if team.single_node:
            curves += [machine.window, machine.staged]
            assert machine.lane is None
        else:
            assert machine.window is None and machine.staged is None
            assert machine.lane and machine.single
            assert (machine.leaders is None) == (max(map(len, team.nodes)) == 1)
        for curve in curves:
            assert len(curve.sizes) >= 7 and curve.sizes[-1] == 2**24 and min(curve.seconds) > 0
            # 16 MiB take longer than 1 KiB: no memory transfers terabytes per second.
            assert curve.seconds[-1] > 2e-5 and curve.seconds[-1] > 2 * curve.seconds[0]
        assert 0 <= machine.alpha < 0.1 and 0 < machine.beta < 1e-6 and 0 < machine.gamma < 1e-6

        choices = [costs.best(4**k, team.size, team.machine) for k in range(13)]
        assert len(set(map(tuple, MPI.COMM_WORLD.allgather(choices)))) == 1
        for k, choice in enumerate(choices):
            names = [*costs.BY_MESSAGES, "mpi"] + ["two_level"] * (1 < machine.per_node < ranks)
            least = min(costs.predict(name, 4**k, ranks, machine) for name in names)
            assert costs.predict(choice, 4**k, ranks, machine) == least
        x = np.full(1000, team.rank + 1.0)
        team.allreduce(x)
        assert (x == ranks * (ranks + 1) / 2).all()


@pytest.mark.thorough(but="2-env0")
@pytest.mark.parametrize(
    ("ranks", "env"),
    [
        (2, {}),
        (3, {"NUMBA_KERNELS_WINDOW": "0"}),
        (3, {"NUMBA_KERNELS_NODE": "2"}),  # one node has one rank more than the other
        (4, {"NUMBA_KERNELS_NODE": "2"}),
    ],
)
def test_measured(on_ranks, ranks, env):
    on_ranks(ranks, each_rank, ranks, env=env)


def one_rank():
    from numba_kernels import Team
    from numba_kernels.allreduce import costs

    team = Team()
    assert costs.measure(team) is team.machine


def test_one_rank_has_nothing_to_measure(on_ranks):
    on_ranks(1, one_rank)


def chooses(kinds):
    """`auto` uses the algorithm that is best on the given machine, of those of the same bits."""
    from numba_kernels import Team
    from numba_kernels.allreduce import costs, two_level

    sent, plan = [], two_level.plan
    two_level.plan = lambda *of: sent.append(plan(*of)) or sent[-1]
    team = Team(shared=False)
    for machine, nbytes, right in kinds:
        team.machine = costs.straight(*machine)
        x = np.full(nbytes // 4, 10.0**team.rank, np.float32)
        team.allreduce(x)
        assert (x == 1111).all()
        assert sent[-1] in right, (sent[-1], right)


def test_auto_takes_what_is_predicted_to_be_best(on_ranks):
    few_messages, few_bytes = [1e-3, 1e-15, 0], [0, 1e-9, 1e-10]
    on_ranks(
        4,
        chooses,
        [
            (few_messages, 4096, ["recursive_doubling"]),
            (few_bytes, 4096, ["rabenseifner", "pairwise"]),
            ([1e-6, 1e-9, 0], 64, ["recursive_doubling"]),
            ([1e-6, 1e-9, 0], 2**20, ["rabenseifner"]),
        ],
    )


def test_bus_bandwidth():
    # Two ranks move n bytes each way over each link in an optimal allreduce.
    assert costs.bus_bandwidth(1e9, 2, 1.0) == 1e9

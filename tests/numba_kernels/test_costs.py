"""The cost formulas at points where they can be worked out by hand."""

import pytest

from numba_kernels.allreduce import costs


@pytest.mark.parametrize(
    ("algorithm", "ranks", "messages", "bytes_sent", "bytes_added"),
    [
        # messages of latency, and lengths of the vector sent and added, one after the other
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
    n = 1000.0
    assert costs.predict(algorithm, n, ranks, 1, 0, 0) == messages
    assert costs.predict(algorithm, n, ranks, 0, 1, 0) == pytest.approx(bytes_sent * n)
    assert costs.predict(algorithm, n, ranks, 0, 0, 1) == pytest.approx(bytes_added * n)


@pytest.mark.parametrize("algorithm", costs.COSTS)
def test_one_rank_costs_nothing(algorithm):
    assert costs.predict(algorithm, 1e6, 1, 1, 1, 1) == 0


def test_unknown_algorithm():
    with pytest.raises(ValueError, match="'star'; one of naive, tree, ring"):
        costs.predict("star", 1, 2, 1, 1, 1)


def test_bus_bandwidth():
    # Two ranks move n bytes each way over each link in an optimal allreduce.
    assert costs.bus_bandwidth(1e9, 2, 1.0) == 1e9

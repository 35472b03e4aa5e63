"""Schedules: they leave the sum on every rank, and the formulas count them."""

import numpy as np
import pytest

from numba_kernels.allreduce.schedules import SCHEDULES, rounds
from numba_kernels.allreduce.steps import ENDS


@pytest.mark.parametrize("algorithm", SCHEDULES)
@pytest.mark.parametrize("ranks", range(1, 10))
def test_the_messages_leave_the_sum_on_every_rank(algorithm, ranks):
    # One decimal digit per rank: the sum is 11...1 only if it has each rank's number exactly once.
    plan = rounds(algorithm, ranks)
    chunks = max([m.chunks for messages in plan for m in messages], default=1)
    held = np.tile(10.0 ** np.arange(ranks)[:, None], chunks)  # (ranks, chunks)
    for messages in plan:
        before = held.copy()
        for source, target, first, last, of, adds in messages:
            assert of in (1, chunks) and 0 <= first < last <= of and source != target
            part = slice(first * chunks // of, last * chunks // of)
            held[target, part] = before[source, part] + (before[target, part] if adds else 0)
        # A rank sends at most one message in a round, and receives at most one.
        assert len({m.source for m in messages}) == len({m.target for m in messages})
        assert len({m.source for m in messages}) == len(messages)
    assert (held == (10**ranks - 1) // 9).all()


@pytest.mark.parametrize("algorithm", SCHEDULES)
@pytest.mark.parametrize("ranks", range(1, 10))
def test_both_ends_of_a_message_know_it(algorithm, ranks):
    every = [list(SCHEDULES[algorithm](rank, ranks)) for rank in range(ranks)]
    for at_once in zip(*every, strict=True):
        sent = {(a, s.to, s.sent, s.chunks) for a, s in enumerate(at_once) if s.to >= 0}
        received = {
            (s.source, b, s.received, s.chunks) for b, s in enumerate(at_once) if s.source >= 0
        }
        assert sent == received
    if ranks > 1:  # each part is completed somewhere: there a mean is divided
        complete = [s for steps in every for s in steps if s.does == ENDS]
        assert sum((s.received[1] - s.received[0]) / s.chunks for s in complete) > 0.99


def costs_of_the_messages():
    from numba_kernels.allreduce import costs

    for algorithm in SCHEDULES:
        for ranks in range(1, 18):
            for alpha, beta, gamma in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
                total = sum(
                    max(alpha + 10 * m.fraction * (beta + m.adds * gamma) for m in messages)
                    for messages in rounds(algorithm, ranks)
                )
                machine = costs.straight(alpha, beta, gamma)
                formula = costs.predict(algorithm, 10, ranks, machine)
                assert total == pytest.approx(formula), (algorithm, ranks)


def test_the_messages_cost_what_the_formulas_say(on_ranks):
    on_ranks(1, costs_of_the_messages)


def an_algorithm_of_ones_own():
    """A reduction along a line of ranks, as in docs/add_an_allreduce.md."""
    from numba_kernels import Team
    from numba_kernels.allreduce.steps import ADDS, ENDS, IDLE, receive, send

    def steps(rank, ranks):
        for k in range(ranks - 1):
            does = ENDS if k == ranks - 2 else ADDS
            yield send(k + 1) if rank == k else receive(k, does) if rank == k + 1 else IDLE
        for k in reversed(range(ranks - 1)):
            yield send(k) if rank == k + 1 else receive(k + 1) if rank == k else IDLE

    team = Team(shared=False)
    for n in (0, 1, 1000):
        x = np.full(n, 10.0**team.rank)
        assert (team.allreduce(x, "mean", algorithm=steps) == 111 / 3).all()


def test_an_algorithm_of_ones_own(on_ranks):
    on_ranks(3, an_algorithm_of_ones_own)


@pytest.mark.parametrize(
    ("algorithm", "ranks", "message"),
    [
        ("star", 4, "unknown algorithm 'star'; choose one of naive, tree, ring"),
        ("ring", 0, "ranks must be at least 1, got 0"),
    ],
)
def test_wrong_input_is_named(algorithm, ranks, message):
    with pytest.raises(ValueError, match=message):
        rounds(algorithm, ranks)

"""Allreduce between nodes: its ways give the same bits, and what it learns decides the way.

Times come from a formula here, never from a clock.
"""

import itertools

import numpy as np
import pytest

LANES = "recursive_doubling", "rabenseifner"
NODES = {"NUMBA_KERNELS_NODE": "2"}


def all_ways(dtypes):
    """Every way gives the same bits everywhere, and numpy's sum of all vectors up to rounding."""
    from digests import Digests

    from numba_kernels import Team
    from numba_kernels.allreduce import two_level

    team = Team()
    p, digests, plan = team.size, Digests(team), two_level.plan
    for n, dtype, op in itertools.product((1, 700, 16_384, 100_003), dtypes, ("sum", "mean")):
        rows = [np.random.default_rng([r, n]).normal(size=n).astype(dtype) for r in range(p)]
        right = getattr(np, op)(np.stack(rows).astype("float64"), axis=0)
        window = team.empty(n, dtype)
        ways = [*two_level.BETWEEN]
        if max(map(len, team.nodes)) > 1 and window.nbytes <= 2**16:
            ways.append("leaders")
        seen = set()
        for way in ways:
            two_level.plan = lambda *_, way=way: way
            for x in (window, np.empty(n, dtype)):
                x[:] = rows[team.rank]
                team.allreduce(x, op)
                seen.add(digests.note(x, f"{way} {op} {x.dtype}[{n}], {len(digests.noted)}"))
        two_level.plan = plan
        assert len(seen) == 1, (n, dtype, op)
        np.testing.assert_allclose(x, right, atol=p * 3e-6)
    digests.check()


@pytest.mark.thorough(but="3-2")
@pytest.mark.parametrize(("ranks", "per_node"), [(4, 2), (5, 3), (3, 2), (5, 1)])
def test_all_ways_have_the_same_bits(on_ranks, ranks, per_node):
    env = {"NUMBA_KERNELS_NODE": str(per_node)}
    on_ranks(ranks, all_ways, ("float32", "float64"), env=env)


def links():
    """{name: (seconds of each part with n bytes, the ways of 8 KiB, 64 KiB and 4 MiB, sizes)}.

    `sizes`: how many of learning.SIZES there is time for.
    """
    node = {"inside": lambda n: 4e-5 + n / 1e10, "leaders": lambda n: 1e-5 + n / 5e9}
    node["add"] = lambda n: n / 1e10

    def link(alpha, beta, streams):
        """Each message has its share of a link that carries `streams` at full speed."""
        one = {"single": lambda n: alpha + beta * n}
        return node | one | {"lane": lambda n: alpha + beta * n * 2 / streams}

    return {
        # Two lanes are twice as fast as a leader; half the additions are worth a second message.
        "narrow streams": (link(2e-6, 1e-8, 2), ("leaders", *LANES), 3),
        "narrow link": (link(1e-6, 1e-8, 1), ("leaders", "leaders", "rabenseifner"), 3),
        "far away": (link(1e-2, 1e-9, 1), ("leaders", "leaders", "recursive_doubling"), 2),
        "near": (link(1e-6, 1e-11, 2), ("leaders", "leaders", "rabenseifner"), 4),
    }


def learns(name):
    from numba_kernels import Team
    from numba_kernels.allreduce import learning, two_level

    seconds, ways, sizes = links()[name]
    asked, learn = [], learning.learn
    learning.learn = lambda *a: (asked.append(1), learn(*a))
    # Rank 1 is the slowest; its first round is disturbed.
    disturbed = set()

    def seconds_of(team, call, length, part, run, size, calls):
        first = (part, size) not in disturbed
        disturbed.add((part, size))
        took = seconds[part](size)
        return took * (3 if first else 1) if team.rank == 1 else took / 2

    learning.seconds_of = seconds_of
    team = Team()

    def works(n, algorithm="auto"):
        x = np.full(n, 10.0**team.rank, np.float32)
        assert (team.allreduce(x, algorithm=algorithm) == 1111).all()
        return two_level.plan(team, 0, x) if algorithm == "auto" else None

    works(100)
    works(2048, "ring")
    assert not asked, "it learned where the choice does not matter"
    assert tuple(map(works, (2048, 2**14, 2**20))) == ways
    assert asked == [1]
    machine = team.machine
    assert len(machine.lane.sizes) == sizes and (machine.ranks, machine.nodes) == (4, 2)
    for part in ("lane", "single", "inside", "leaders", "add"):
        curve = getattr(machine, part)
        expected = [seconds[part](size) for size in learning.SIZES[:sizes]]
        assert curve.seconds == pytest.approx(expected[: len(curve.seconds)]), part
    assert len(set(map(repr, team.comm.allgather(machine)))) == 1


@pytest.mark.thorough(but="narrow streams")
@pytest.mark.parametrize("name", links())
def test_what_is_learned_decides(on_ranks, name):
    on_ranks(4, learns, name, env=NODES)


def fails_while_it_learns():
    from numba_kernels import MismatchError, PeerError, Team
    from numba_kernels.allreduce import costs, learning

    team = Team()

    def works():
        x = np.full(5000, 10.0**team.rank, np.float32)
        assert (team.allreduce(x) == 1111).all()
        return team.machine

    # Rank 2 fails in the midst; its own call ends in its own error.
    seconds_of, turns = learning.seconds_of, []

    def fails(*arguments):
        turns.append(1)
        if team.rank == 2 and len(turns) == 7:
            raise ZeroDivisionError("in the midst")
        return seconds_of(*arguments)

    learning.seconds_of = fails
    with pytest.raises(ZeroDivisionError if team.rank == 2 else PeerError) as error:
        try:
            works()
        except ZeroDivisionError as own:
            team.abort(own)
            raise
    if team.rank != 2:
        assert error.value.rank == 2 and "in the midst" in str(error.value)
    assert team.machine.message is costs.UNMEASURED.message
    learning.seconds_of = seconds_of
    team.recover(120)
    first = works()
    assert works() is first and first.ranks == 4

    # After a recovery nobody relies on what only some ranks may have learned.
    team.recover(120)
    assert team.machine.message is costs.UNMEASURED.message
    # Different calls are named as the user wrote them, also where the ranks would learn first.
    with pytest.raises(MismatchError) as differ:
        team.allreduce(np.zeros(5000 + (team.rank == 3), np.float32))
    assert "allreduce(float32[500" in str(differ.value) and "measure" not in str(differ.value)
    team.recover(120)
    works()


@pytest.mark.thorough
def test_a_failure_while_it_learns(on_ranks):
    on_ranks(4, fails_while_it_learns, env=NODES)

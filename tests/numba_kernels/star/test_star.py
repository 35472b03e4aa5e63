"""A star: a hub serves leaves in the order of their requests.

Leaves are in the node's window, reached by messages, or of both kinds at once.
"""

import random
import time

import clock
import numpy as np
import pytest
from places import WINDOW, places, ranks_at

WHERE = ranks_at(
    "2-window", "3-window", "4-window", "2-messages", "3-messages", "4-messages", "3-mixed",
    "4-mixed",
)  # fmt: skip
TURNS = 12


def serve_all(star, handle, seconds=300.0):
    """Serve until all leaves are dropped; `handle(leaf)` returns whether to drop it."""
    end = time.monotonic() + seconds
    while star.leaves:
        leaf = star.next(0.2)
        assert time.monotonic() < end, f"{star.leaves} are left"
        if leaf is not None and handle(leaf):
            star.drop(leaf)
        assert star.lost() == {}


def every_request(seed):
    """Every kind of request, with vectors of several sizes and dtypes."""
    from numba_kernels import Team
    from numba_kernels.star.star import HEAD, Star

    team, text = Team(), b"the end" * 1000
    for sent, received, dtype, in_place in (
        (1000, 10, "float32", False), (7, 70_001, "float64", False), (0, 3, "float32", False),
        (50_001, 50_001, "float32", True), (33, 33, "float16", True), (5, 5, "int64", False),
        (50_001, 50_001, "float32", False),
    ):  # fmt: skip
        star = Star(team, sent, received, dtype, in_place=in_place)
        turn = dict.fromkeys(range(team.size), -1)

        def handle(leaf, star=star, turn=turn):
            k = turn[leaf] = turn[leaf] + 1
            words, vector = star.head(leaf), star.sent(leaf)
            assert words.shape == (HEAD,) and vector.shape == (star.out.size,)
            assert words[0] == leaf and words[1] == k and not words[3:].any()
            if words[2]:
                assert (vector == leaf + k).all()
            assert star.wanted(leaf) == (k % 4 != 3)
            star.answer_vector(leaf)[:] = leaf + 2 * k
            star.answer(leaf, [k, leaf] if k < TURNS - 1 else np.arange(HEAD), vector=k % 5 != 4)
            return k == TURNS - 1

        if team.rank == 0:
            assert star.is_hub and star.leaves == list(range(1, team.size))
            serve_all(star, handle)
            assert all(star.send_bytes(leaf, text) for leaf in range(1, team.size))
        else:
            chance = random.Random(seed + team.rank)
            assert star.out.shape == (sent,) and star.into.shape == (received,)
            assert not star.out.any() and not star.into.any()
            assert star.out.ctypes.data % 64 == star.into.ctypes.data % 64 == 0
            assert in_place == (star.out.ctypes.data == star.into.ctypes.data)
            for k in range(TURNS):
                with_vector, wanted = k % 3 != 2, k % 4 != 3
                star.out[:] = team.rank + k
                places = star.out, star.into
                swap = wanted and sent == received and chance.random() < 0.5
                words = star.ask([team.rank, k, with_vector], with_vector, wanted, swap)
                given = wanted and k % 5 != 4
                if given:
                    assert (star.into == team.rank + 2 * k).all()
                swapped = star.out is places[1] and star.into is places[0]
                assert swapped == (swap and given and star.near and not in_place)
                assert swapped or (star.out is places[0] and star.into is places[1])
                expected = [k, team.rank] + [0] * (HEAD - 2)
                assert words.tolist() == (expected if k < TURNS - 1 else list(range(HEAD)))
                time.sleep(chance.choice([0, 0, 0.0005, 0.003]))
            assert star.receive_bytes() == text
        star.close()
        with pytest.raises(RuntimeError, match="closed"):
            star.next(0) if team.rank == 0 else star.ask()
    team.barrier()


@pytest.mark.thorough(but=["3-window", "2-messages", "3-mixed"])
@WHERE
def test_every_request(on_ranks, ranks, env):
    on_ranks(ranks, every_request, 1, env=env)


def stress(requests):
    """Many requests at random moments: none is lost, and none is taken for another."""
    from numba_kernels import Team
    from numba_kernels.star.star import Star

    team = Team()
    n = 64
    star = Star(team, n, n)
    if team.rank == 0:
        count = [0] * team.size
        chance = random.Random(5)

        def handle(leaf):
            k = count[leaf]
            vector = star.sent(leaf)
            assert star.head(leaf)[0] == k and (vector == 1000 * leaf + k % 1000).all()
            star.answer_vector(leaf)[:] = -vector
            star.answer(leaf, [k])
            count[leaf] += 1
            if chance.random() < 0.002:
                time.sleep(0.002)
            return count[leaf] == requests

        serve_all(star, handle, 300)
    else:
        chance = random.Random(team.rank)
        for k in range(requests):
            star.out[:] = 1000 * team.rank + k % 1000
            assert star.ask([k])[0] == k
            assert (star.into == -1000 * team.rank - k % 1000).all()
            if chance.random() < 0.01:
                time.sleep(chance.choice([0, 0.0001, 0.001]))
    team.barrier()


@pytest.mark.thorough
@places("window", "mixed")
def test_many_requests(on_ranks, env):
    on_ranks(5, stress, 2000, env=env)


def in_order():
    """Waiting requests are served in the order of their arrival."""
    from mpi4py import MPI

    from numba_kernels import Team
    from numba_kernels.star.star import Star

    team, world = Team(), MPI.COMM_WORLD
    star = Star(team, 4, 4)
    order = [2, 3, 1]
    for turn in range(3):
        team.barrier()
        if team.rank == 0:
            world.recv(source=order[-1])  # meanwhile all of them ask, one after the other
            time.sleep(0.3)
            came = [star.next(120) for _ in order]
            assert came == order, f"in turn {turn}: {came}"
            for leaf in reversed(came):  # answers may be given in any order
                star.answer(leaf, [leaf])
        else:
            place = order.index(team.rank)
            if place:
                world.recv(source=order[place - 1])
                time.sleep(0.3)  # by now that leaf has asked
            world.send("asks", [*order, 0][place + 1])
            used = time.process_time()
            assert star.ask()[0] == team.rank
            clock.note("processor time of a leaf that waits", time.process_time() - used)
    team.barrier()


def test_order_of_arrival(on_ranks):
    on_ranks(4, in_order, env=WINDOW)


def woken():
    """A sleeping hub or leaf is woken; otherwise each would add 4 ms to every request.

    A test in `make soak` asserts that a request takes less.
    """
    from numba_kernels import Team
    from numba_kernels.star.memory_layout import SPINS
    from numba_kernels.star.star import Star

    team, turns = Team(), 60
    star = Star(team, 4, 4)
    star._star[SPINS] = 20  # hub and leaf soon sleep
    if team.rank == 0:
        for _ in range(turns):
            leaf = star.next(120)
            time.sleep(0.001)  # the leaf sleeps
            star.answer(leaf)
    else:
        took = []
        for _ in range(turns):
            time.sleep(0.001)  # the hub sleeps
            began = time.perf_counter()
            star.ask()
            took.append(time.perf_counter() - began)
        clock.note("a sleeping hub or leaf is woken", np.quantile(took[5:], 0.25))
    team.barrier()


def test_sleepers_are_woken(on_ranks):
    on_ranks(2, woken, env=WINDOW)


def wrong():
    """Wrong arguments raise an error on every rank, also on late ones, and the team still works."""
    from numba_kernels import MismatchError, Team
    from numba_kernels.star.star import Star

    team = Team()
    me = team.rank

    def late():  # ranks 0 and 1 have compared their calls long before
        time.sleep(0.4 if me == 2 else 0)

    late()
    with pytest.raises(
        MismatchError, match=r"Star\(1[01], 5, float32\).*Star\(1[01], 5, float32\)"
    ):
        Star(team, 10 + (me == 1), 5)
    with pytest.raises(MismatchError, match="in_place=True"):
        Star(team, 10, 10, in_place=me == 0)
    late()
    with pytest.raises(MismatchError, match="float64"):
        Star(team, 10, 10, np.float64 if me == 1 else np.float32)
    late()
    with pytest.raises(ValueError if me == 1 else MismatchError, match=r"got -1|an invalid Star"):
        Star(team, -1 if me == 1 else 10, 10)
    with pytest.raises(ValueError, match="in_place needs sent == received, got 10 and 11"):
        Star(team, 10, 11, in_place=True)
    with pytest.raises(TypeError, match="complex64"):
        Star(team, 10, 10, np.complex64)
    star = Star(team, 10, 10)
    with pytest.raises(RuntimeError, match="is the hub" if me == 0 else "is a leaf"):
        star.ask() if me == 0 else star.next(0)
    if me:
        with pytest.raises(ValueError, match="a head has room for 16 words, got 17"):
            star.ask(range(17))
        with pytest.raises(ValueError, match="10 elements are sent and none come back"):
            star.ask(answer=False, swap=True)
    assert (team.allreduce(np.ones(5)) == team.size).all()


@places("window", "messages")
def test_wrong_arguments(on_ranks, env):
    on_ranks(3, wrong, env=env)


# What the hub does with gradients --------------------------------------------------------------


def helped():
    """Requests that leaves help to serve give the bits of serial updates, in the order served."""
    from zlib import crc32

    from numba_kernels import Team, optimizers
    from numba_kernels.optimizers.serve import serve
    from numba_kernels.star import helping
    from numba_kernels.star.star import Star

    team, n, turns = Team(), 1_500_007, 4
    source = np.random.default_rng(1).standard_normal(n).astype("float32")
    chunks = {"apart": 0, "in place": 0, "swapped": 0}  # chunks that leaves have taken
    for rule in (optimizers.SGD(0.1), optimizers.Adam(), optimizers.RMSprop(momentum=0.5)):
        for form in chunks:
            star = Star(team, n, n, in_place=form == "in place", kept=5 * n)
            if team.rank == 0:
                expected, alone = np.zeros(n, "float32"), rule.init(n)
                assert star._memory is not None, "leaves can't help"
                weights, state = star.keep(n), rule.init(n)
                star.adopt(state)
                for _ in range(turns * (team.size - 1)):
                    leaf = star.next(600)
                    factor = star.head(leaf)[0]
                    serve(rule, weights, star.sent(leaf), state, star.answer_vector(leaf))
                    rule.update(expected, np.float32(factor) * source, alone)
                    assert (weights == expected).all() and (state.slots == alone.slots).all()
                    assert (star.answer_vector(leaf) == expected).all()
                    chunks[form] += star._star[helping.LEFT]
                    star.answer(leaf, [crc32(expected)])
            else:
                for k in range(turns):
                    factor = k + team.rank
                    np.multiply(source, np.float32(factor), out=star.out)
                    words = star.ask([factor], swap=form == "swapped")
                    assert crc32(star.into) == words[0], (str(rule), form, k)
            star.close()
    if team.rank == 0 and star._alone:  # each rank has its own core
        assert all(chunks.values()), f"no leaf took part: {chunks}"
    team.barrier()


@pytest.mark.thorough(but="4")
@pytest.mark.parametrize("ranks", [2, 4])
def test_leaves_help(on_ranks, ranks):
    on_ranks(ranks, helped, env=WINDOW)


def rules():
    """Each rule, and each form of those that have several."""
    from numba_kernels import optimizers

    forms = [(0.9, False), (0.0, True), (0.9, True)]
    of_rmsprop = [optimizers.RMSprop(momentum=mu, centered=centered) for mu, centered in forms]
    return [*map(optimizers.get, optimizers.NAMES), *of_rmsprop]


@pytest.mark.parametrize("rule", rules(), ids=str)
def test_served(rule):
    """One pass gives the same bits as an update and a copy, wherever the answer is written."""
    from numba_kernels.optimizers.serve import serve

    n, chance = 10_037, np.random.default_rng(3)
    weights = chance.standard_normal(n).astype("float32")
    expected, apart = weights.copy(), np.zeros(n, "float32")
    segments = [0, 17, 5000, 9000]
    state, other = (rule.init(n, segments=segments) for _ in range(2))
    for k, form in enumerate(("apart", "over", "apart", "over", "not wanted", "over")):
        g = chance.standard_normal(n).astype("float32")
        before = g.copy()
        answer = {"apart": apart, "over": g, "not wanted": None}[form]
        serve(rule, weights, g, state, answer)
        rule.update(expected, before, other)
        assert (weights == expected).all() and (state.slots == other.slots).all()
        assert answer is None or (answer == expected).all()
        assert form == "over" or (g == before).all(), "the gradient was changed"
        assert state.step == k + 1
    with pytest.raises(ValueError, match="the answer is float32"):
        serve(rule, weights, g, state, apart[1:])

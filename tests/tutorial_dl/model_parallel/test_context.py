"""Ring attention equals plain attention of the whole sequence, and its work is even."""

import doctest
import sys

import numpy as np
import pytest

WITHIN = {"float32": 1e-5, "float64": 1e-12}


def plain(q, k, v, dy, causal):
    """The output of attention as its definition says, and the gradients of sum(dy * output)."""
    score = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        score[..., np.triu(np.ones(score.shape[-2:], bool), 1)] = -np.inf
    p = np.exp(score - score.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = dy @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])  # softmax's Jacobian
    return p @ v, ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dy


@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_by_differences(causal):
    """The gradients of `plain` are those of its output."""
    random = np.random.default_rng(0)
    q, k, v, dy = random.normal(size=(4, 1, 2, 5, 3))
    found = plain(q, k, v, dy, causal)[1:]
    for x, gradient in zip((q, k, v), found, strict=True):
        for place in [(0, 0, 0, 0), (0, 1, 2, 1), (0, 1, 4, 2)]:
            kept, sums = x[place], []
            for change in (1e-6, -1e-6):
                x[place] = kept + change
                sums.append((plain(q, k, v, dy, causal)[0] * dy).sum())
            x[place] = kept
            assert gradient[place] == pytest.approx((sums[0] - sums[1]) / 2e-6, rel=1e-6, abs=1e-9)


def test_the_examples():
    from tutorial_dl.model_parallel import positions

    found = doctest.testmod(sys.modules[positions.__name__])
    assert found.attempted and not found.failed


@pytest.mark.parametrize("length, ranks", [(6, 3), (13, 2), (29, 4), (8, 1)])
@pytest.mark.parametrize("order", ["zigzag", "in order"])
def test_positions(length, ranks, order):
    from tutorial_dl.model_parallel.positions import Positions

    positions = Positions(length, ranks, order)
    every = np.concatenate([positions.kept_by(rank) for rank in range(ranks)])
    assert sorted(every) == list(range(length))
    x = np.random.default_rng(1).normal(size=(2, length, 3))
    parts = [positions.take(x, rank) for rank in range(ranks)]
    assert (positions.join(parts) == x).all()
    sizes = np.diff(positions.edges)
    assert sizes.max() - sizes.min() <= 1


def test_work_is_even_in_zigzag_order():
    from tutorial_dl.model_parallel.positions import Positions

    def work(positions, ranks):
        """Scores that each rank computes; of a masked pair, the part that counts is a half."""
        lengths = [
            [
                (q.stop - q.start) * (k.stop - k.start) * (0.5 if masked else 1)
                for other in range(ranks)
                for q, k, masked in positions.pairs(rank, other, True)
            ]
            for rank in range(ranks)
        ]
        return [sum(one) for one in lengths], [len(one) for one in lengths]

    for ranks in (2, 3, 4, 8):
        length = 16 * ranks  # pieces of 8
        scores, pairs = work(Positions(length, ranks), ranks)
        assert pairs == [2 * ranks + 1] * ranks
        assert scores == [2 * ranks * 64] * ranks  # (2C - 1) whole pairs and two halves
        scores, _ = work(Positions(length, ranks, "in order"), ranks)
        assert scores == [256 * (rank + 0.5) for rank in range(ranks)]


def equals_plain(dtype, lengths):
    """Forward and backward, causal and full, both orders; bytes and blocks are counted."""
    from numba_kernels import Team
    from tutorial_dl.model_parallel.context import RingAttention

    team, (s, h, d) = Team(), (2, 3, 4)
    ranks = team.size
    for length in lengths:
        random = np.random.default_rng(length)
        q, k, v, dy = random.normal(size=(4, s, h, length, d)).astype(dtype)
        for causal, order in ((True, None), (True, "in order"), (False, None), (False, "zigzag")):
            ring = RingAttention(team, length, causal, order)
            expected = plain(*(x.astype("float64") for x in (q, k, v, dy)), causal)
            y, saved = ring.forward(*map(ring.take, (q, k, v)))
            mine = len(ring.positions.kept_by(team.rank))
            counts, blocks = ring.sent, ring.computed
            found = [y, *ring.backward(ring.take(dy), saved)]
            for name, ours, theirs in zip(["y", "dq", "dk", "dv"], found, expected, strict=True):
                error = np.abs(ring.gather(ours) - theirs).max() / np.abs(theirs).max()
                assert error < WITHIN[dtype], (name, length, causal, order, error)
            sent = ring.sent
            if causal and order is None:
                assert blocks == 2 * ranks + 1
            elif not causal and order is None:
                assert blocks == ranks
            # Scores of hundreds: without the running maximum, e^score is infinite.
            y, _ = ring.forward(*map(ring.take, (200 * q, k, v)))
            y = np.abs(ring.gather(y) - plain(200 * q, k, v, dy, causal)[0]).max()
            assert y < 50 * WITHIN[dtype], (length, causal, order, y)
            if length % (2 * ranks) == 0:
                block = s * h * mine * d * np.dtype(dtype).itemsize
                assert mine == length // ranks
                assert counts == 2 * (ranks - 1) * block
                backward = 2 * (ranks - 1) * block + 2 * ranks * block * (ranks > 1)
                assert sent - counts == backward
    team.barrier()


@pytest.mark.thorough(but="3")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_equal_to_plain_attention(on_ranks, ranks):
    for dtype in ("float32", "float64"):
        on_ranks(ranks, equals_plain, dtype, [2 * ranks, 24, 37])


def scores_in_memory(causal):
    """The most memory of a call, in blocks of scores: all else is small here."""
    import tracemalloc

    from numba_kernels import Team
    from tutorial_dl.model_parallel.context import RingAttention

    team, length = Team(), 768
    ring = RingAttention(team, length, causal)
    q, k, v = np.random.default_rng(0).normal(size=(3, 1, 1, length, 2)).astype(np.float32)
    mine, most = [ring.take(one) for one in (q, k, v)], []
    block = 4 * (length / len(ring.positions.edges[1:])) ** 2  # bytes
    ring.backward(*ring.forward(*mine))  # what is compiled and imported stays out of the count
    tracemalloc.start()
    try:
        y, saved = ring.forward(*mine)
        most.append(tracemalloc.get_traced_memory()[1] / block)
        tracemalloc.reset_peak()
        ring.backward(y, saved)
        most.append(tracemalloc.get_traced_memory()[1] / block)
    finally:
        tracemalloc.stop()
    masks = 0.8 * causal  # which keys are later, a byte each, and while that is found out
    assert most[0] < 1.5 + masks and most[1] < 2.5 + masks, most  # backward: p and ds
    team.barrier()


@pytest.mark.parametrize("causal", [False, True])
def test_one_block_of_scores_at_a_time(on_ranks, causal):
    on_ranks(2, scores_in_memory, causal)


def refusals():
    from numba_kernels import Team
    from tutorial_dl.model_parallel.context import RingAttention

    team = Team()
    with pytest.raises(ValueError, match=r"3 positions is too short for 2 ranks.*at least 4"):
        RingAttention(team, 3)
    ring = RingAttention(team, 8)
    x = np.ones((1, 1, 4, 2))
    with pytest.raises(ValueError, match=r"4 positions, width\) on rank"):
        ring.forward(x, x[:, :, :3], x)
    with pytest.raises(TypeError, match="must all be float32 or all float64"):
        ring.forward(x, x.astype("float32"), x)


def test_wrong_sizes(on_ranks):
    on_ranks(2, refusals)

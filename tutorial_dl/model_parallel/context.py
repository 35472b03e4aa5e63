"""Ring attention: one sequence over several ranks (context parallelism).

Attention compares each position of a sequence with every other one, so a long sequence does not
fit into one rank's memory. Here each of C ranks keeps the queries q, keys k and values v of its own
positions. The blocks of keys and values go round a ring; a rank computes with the block that it
has, while that block is on its way to the right and the next one arrives from the left:

    C = 3, whose keys and values each rank computes with

                 rank 0      rank 1      rank 2
    step 0       block 0     block 1     block 2       its own
    step 1       block 2     block 0     block 1       each from the left
    step 2       block 1     block 2     block 0

No rank ever holds scores of the whole sequence. The softmax over all keys is built up block by
block, from a running maximum m, sum l and weighted values o of each query (online softmax). With
scores s_j = q . k_j / sqrt(d) of a new block:

    m' = max(m, max_j s_j)
    l' = l e^(m - m') + sum_j e^(s_j - m')
    o' = o e^(m - m') + sum_j e^(s_j - m') v_j           at the end, the output is o / l

The order of blocks makes no difference but for rounding, and no exponent is above 0.

Backward. With the output y = o / l, its gradient dy, and L = m + log l from the forward pass, the
weights of a block are p_j = e^(s_j - L) again, and

    dv_j = sum_i p_ij dy_i          dp_ij = dy_i . v_j          ds_ij = p_ij (dp_ij - dy_i . y_i)
    dq_i = sum_j ds_ij k_j / sqrt(d)                  dk_j = sum_i ds_ij q_i / sqrt(d)

dk and dv of a block travel with it, one step behind: each rank adds its part and passes them on;
after C steps they are home.

Causal attention (no query sees a later key) leaves half of the work, and unevenly: with pieces in
their order, the first rank has 1 block to compute, the last one C. So the sequence is cut into 2C
pieces, and rank r keeps pieces r and 2C - 1 - r ("zigzag"). Every rank then computes 2C + 1 pairs
of pieces, two of them half masked:

    C = 2: queries below, keys across             keys      0  1  2  3
    rank 0 keeps pieces 0 and 3: 1 + 4 pairs      piece 0   0  .  .  .
    rank 1 keeps pieces 1 and 2: 2 + 3 pairs            1   1  1  .  .
                                                        2   1  1  1  .
                                                        3   0  0  0  0

Liu, Zaharia and Abbeel, arXiv 2310.01889; online softmax: Milakov and Gimelshein, arXiv 1805.02867;
backward: Dao, arXiv 2307.08691, algorithm 2; zigzag: as in Brandon et al., arXiv 2311.09431.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numba_kernels.spans import span
from numba_kernels.team.exchange import begin
from numba_kernels.team.team import Team
from tutorial_dl.model_parallel.positions import Positions


class Saved(NamedTuple):
    """What the backward pass needs of a forward pass; t is the number of this rank's positions."""

    q: np.ndarray  # (s, h, t, d)
    kv: np.ndarray  # (2, s, h, t, d): keys and values
    y: np.ndarray  # (s, h, t, d): the output
    logarithm: np.ndarray  # (s, h, t, 1): log of the sum of e^score over all keys


class RingAttention:
    """Softmax attention over a sequence whose positions lie on the ranks of `team`.

    Args:
        team: The ranks that share each sequence, C.
        length: Number of positions of the whole sequence. All ranks give the same.
        causal: Whether a query sees only keys of its own position and of earlier ones.
        order: See `Positions`. By default "zigzag" if causal, where it makes the work even, and
            "in order" otherwise.

    Attributes:
        positions: Which positions each rank keeps; `take` gives this rank's part of an array.
        computed: Pairs of pieces that this rank has computed in forward passes.
        sent: Bytes that this rank has sent. A forward pass sends 2 (C - 1) blocks (keys and
            values), a backward pass 2 (C - 1) + 2 C (the same, and their gradients).
    """

    def __init__(
        self, team: Team, length: int, causal: bool = True, order: str | None = None
    ) -> None:
        order = order or ("zigzag" if causal else "in order")
        self.team, self.causal = team, causal
        self.positions = Positions(length, team.size, order)
        self.computed = self.sent = 0

    def take(self, x: np.ndarray, axis: int = -2) -> np.ndarray:
        """This rank's part of the whole `x`; `axis` is that of positions."""
        return self.positions.take(x, self.team.rank, axis)

    def gather(self, part: np.ndarray, axis: int = -2) -> np.ndarray:
        """The whole array, on all ranks, from the part of each. Collective."""
        axis %= part.ndim
        shape = [list(part.shape) for _ in range(self.team.size)]
        for rank, one in enumerate(shape):
            one[axis] = len(self.positions.kept_by(rank))
        parts = self.team.allgather(np.ascontiguousarray(part))
        parts = [flat.reshape(one) for flat, one in zip(parts, shape, strict=True)]
        return self.positions.join(parts, axis)

    def forward(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, Saved]:
        """Attention of this rank's queries to all keys. Collective.

        Args:
            q, k, v: Shape (s, h, t, d), float32 or float64: samples, heads, this rank's positions,
                width of a head.

        Returns:
            The output, shape (s, h, t, d), and what `backward` needs.
        """
        self._check(q, k, v)
        mine = np.ascontiguousarray(np.stack([k, v]))  # (2, s, h, t, d)
        o = np.zeros_like(q)
        m = np.full((*q.shape[:-1], 1), -np.inf, q.dtype)  # (s, h, t, 1)
        total = np.zeros_like(m)
        for rank, kv in self._round(mine):
            with span("attention"):
                for i, j, masked in self.positions.pairs(self.team.rank, rank, self.causal):
                    # No name for the scores: they would stay while the next ones are computed.
                    so_far = m[:, :, i], total[:, :, i], o[:, :, i]
                    _add(*so_far, _scores(q[:, :, i], kv[0, :, :, j], masked), kv[1, :, :, j])
                    self.computed += 1
        o /= total
        return o, Saved(q, mine, o, m + np.log(total))

    def backward(self, dy: np.ndarray, saved: Saved) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The gradients with respect to this rank's q, k and v, from that of its output.

        Collective. `dy` and the three results have shape (s, h, t, d).
        """
        team, q = self.team, saved.q
        right, left = (team.rank + 1) % team.size, (team.rank - 1) % team.size
        scale = q.dtype.type(q.shape[-1] ** -0.5)
        dq = np.zeros_like(q)
        of_y = (dy * saved.y).sum(-1, keepdims=True)  # (s, h, t, 1): dy . y
        passed, arriving, outgoing = None, None, None
        for rank, kv in self._round(saved.kv):
            with span("attention"):
                d_kv = np.zeros_like(kv)  # this rank's part of the block's gradient
                for i, j, masked in self.positions.pairs(team.rank, rank, self.causal):
                    k, v, dy_i = kv[0, :, :, j], kv[1, :, :, j], dy[:, :, i]
                    p = _scores(q[:, :, i], k, masked)
                    p -= saved.logarithm[:, :, i]
                    np.exp(p, out=p)  # (s, h, i, j)
                    d_kv[1, :, :, j] += _turned(p) @ dy_i
                    ds = dy_i @ _turned(v)
                    ds -= of_y[:, :, i]
                    ds *= p
                    ds *= scale
                    dq[:, :, i] += ds @ k
                    d_kv[0, :, :, j] += _turned(ds) @ q[:, :, i]
                    del p, ds  # before the next pair's are computed
            if passed is not None:  # what the ranks to the left have added to this block
                passed.wait()
                d_kv += arriving
            # Now this rank has done its part: to the right, which adds to it in its next step.
            target = (rank - 1) % team.size  # the block that the rank to the left has now done
            arriving, outgoing = self._block(target, saved.kv), d_kv
            passed = begin(team, outgoing, right, arriving, left, self.positions.length)
            self.sent += outgoing.nbytes * (team.size > 1)
        passed.wait()  # the gradients of this rank's own keys and values are home
        return dq, arriving[0], arriving[1]

    def _round(self, mine: np.ndarray):
        """Yield (rank, its keys and values) for each step, while the next block is on its way."""
        team = self.team
        right, left = (team.rank + 1) % team.size, (team.rank - 1) % team.size
        block = mine
        for step in range(team.size):
            rank = (team.rank - step) % team.size  # whose block this is
            on_its_way = None
            if step < team.size - 1:
                following = self._block((rank - 1) % team.size, mine)
                length = self.positions.length  # equal on all ranks, the blocks need not be
                on_its_way = begin(team, block, right, following, left, length)
                self.sent += block.nbytes
            yield rank, block
            if on_its_way is not None:
                on_its_way.wait()
                block = following

    def _block(self, rank: int, like: np.ndarray) -> np.ndarray:
        """Memory for the keys and values of `rank`."""
        two, s, h, _, d = like.shape
        return np.empty((two, s, h, len(self.positions.kept_by(rank)), d), like.dtype)

    def _check(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        t = len(self.positions.kept_by(self.team.rank))
        if not q.shape == k.shape == v.shape or q.ndim != 4 or q.shape[2] != t:
            raise ValueError(
                f"q, k and v must have shape (samples, heads, {t} positions, width) on rank "
                f"{self.team.rank}, got {q.shape}, {k.shape} and {v.shape}"
            )
        if not q.dtype == k.dtype == v.dtype or q.dtype not in (np.float32, np.float64):
            raise TypeError(
                "q, k and v must all be float32 or all float64, got "
                f"{q.dtype}, {k.dtype} and {v.dtype}"
            )


def _turned(x: np.ndarray) -> np.ndarray:
    """The last two axes exchanged."""
    return x.swapaxes(-1, -2)


def _scores(q: np.ndarray, k: np.ndarray, masked: bool) -> np.ndarray:
    """q . k / sqrt(d): (s, h, i, j); -inf where a key is later than the query, if `masked`."""
    scores = q @ _turned(k)
    scores *= scores.dtype.type(q.shape[-1] ** -0.5)
    if masked:  # queries and keys of one piece
        later = np.triu(np.ones(scores.shape[-2:], bool), 1)
        np.copyto(scores, -np.inf, where=later)  # an index would make lists of places
    return scores


def _add(
    m: np.ndarray, total: np.ndarray, o: np.ndarray, scores: np.ndarray, v: np.ndarray
) -> None:
    """Add a block of keys to the running maximum, sum and weighted values, in place."""
    largest = np.maximum(m, scores.max(-1, keepdims=True))
    old = np.exp(m - largest)  # 0 for the first block, where m is -inf
    scores -= largest
    np.exp(scores, out=scores)
    total *= old
    total += scores.sum(-1, keepdims=True)
    o *= old
    o += scores @ v
    m[:] = largest

"""What goes over the wire: collectives of numpy arrays, which ranks agree on before they begin.

Every call starts with a round of its own, one short allreduce: each rank says what it is about to
do. That costs some microseconds and is good for two things.

    rank 0: "allreduce(float32[3], op=Sum)"      alike: go on
    rank 1: "broadcast(float32[3], root=0)"      else:  MismatchError on all, with both texts
    rank 2: "I have joined"                      it takes part with zeros

So calls are matched by what they are, their name included, and ranks that differ find out instead
of mixing two tensors of the same length. And a rank without data (`join`) learns what the others
do, as long as there are others.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from numba_kernels.errors import MismatchError

from .arrays import (
    DTYPES,
    LINE,
    by_dtype,
    carried,
    check_rows,
    describe,
    join_flat,
    lay_out,
    named,
    named_dtype,
    scale,
    share,
    uncarried,
)
from .reductions import Adasum, Average, Max, Min, Product, Sum

OPS = {Average: "mean", Sum: "sum", Min: "min", Max: "max", Product: "product"}
ALLREDUCE, OTHER = 1, 2  # kinds of calls, for ranks that have joined
NOBODY = -(1 << 62)
MOST_PLANS = 1000

lock = threading.RLock()  # TensorFlow runs ops on threads of its own


class Wire:
    """The calls of one team (a process set), in one order on all its ranks.

    Arguments of the methods are lists of C-contiguous arrays; what is returned may lie in memory
    that the next call overwrites, so it is copied at once (`graph.in_order` does).
    """

    def __init__(self, team):
        self.team = team
        self._table = np.zeros(8, np.int64)
        self._rounds = 0  # the same on all ranks
        self._generation = team.generation
        self._fused: dict[np.dtype, np.ndarray] = {}
        self._plans: dict[tuple, list[_Plan]] = {}

    # The calls

    def allreduce(self, arrays: Sequence[np.ndarray], op, before=1.0, after=1.0, name="") -> list:
        """Each array reduced over all ranks, after and before multiplying it; one message a dtype.

        Raises MismatchError where ranks differ in shapes, dtypes, op or name.
        """
        out: list = [None] * len(arrays)
        key = op, name, *((a.dtype, a.shape) for a in arrays)
        plans = self._plans.get(key)
        if plans is None:
            plans = [
                _Plan(arrays, wide, members, op, name)
                for wide, members in by_dtype(arrays, op == Adasum).items()
            ]
            if len(self._plans) < MOST_PLANS:
                self._plans[key] = plans
        for plan in plans:
            with lock:
                self._agree(plan.text, ALLREDUCE, plan.code, plan.total, plan.checksum)
                fused = self._buffer(plan.total, plan.dtype)
                pieces = [fused[first:last].reshape(shape) for first, last, shape in plan.pieces]
                for piece, i in zip(pieces, plan.members, strict=True):
                    scale(arrays[i], before, piece)
                if op == Adasum:
                    self._add_up(fused, plan)
                else:
                    self.team.allreduce(fused, OPS[op])
                for piece, i in zip(pieces, plan.members, strict=True):
                    if after != 1.0:
                        scale(piece, after, piece)
                    out[i] = piece.astype(arrays[i].dtype, copy=False)
        return out

    def allgather(self, arrays: Sequence[np.ndarray], name="") -> list[np.ndarray]:
        """Each array's rows on all ranks, in the order of ranks; first dimensions may differ."""
        check_rows(arrays)
        listed = "+".join(describe(a.dtype, ("?", *a.shape[1:])) for a in arrays)
        with lock:
            self._agree(f"allgather({listed}{named(name)})")
            rows = np.array([a.shape[0] for a in arrays], np.int64)
            rows = self.team.allgather(rows)  # (ranks, arrays)
            out: list = [None] * len(arrays)
            for dtype, members in by_dtype(arrays).items():
                sizes = [math.prod(arrays[i].shape[1:]) for i in members]
                ends = np.cumsum(rows[:, members] * sizes, axis=1)  # (ranks, members)
                flat = join_flat([arrays[i] for i in members], dtype)
                if not ends[:, -1].any():
                    parts = [flat] * self.team.size
                else:
                    parts = self.team.allgather(flat)
                for k, i in enumerate(members):
                    begin = ends[:, k] - rows[:, i] * sizes[k]
                    cut = [part[b:e] for part, b, e in zip(parts, begin, ends[:, k], strict=True)]
                    shape = (int(rows[:, i].sum()), *arrays[i].shape[1:])
                    out[i] = uncarried(np.concatenate(cut).reshape(shape), arrays[i].dtype)
        return out

    def broadcast(self, arrays: Sequence[np.ndarray], root: int, name="") -> list[np.ndarray]:
        """What the arrays are on rank `root` of this team."""
        listed = "+".join(describe(a.dtype, a.shape) for a in arrays)
        out: list = [None] * len(arrays)
        with lock:
            self._agree(f"broadcast({listed}, root={root}{named(name)})")
            for dtype, members in by_dtype(arrays).items():
                flat = join_flat([arrays[i] for i in members], dtype)
                self.team.broadcast(flat, root)
                at = 0
                for i in members:
                    part = flat[at : at + arrays[i].size].reshape(arrays[i].shape)
                    out[i] = uncarried(part, arrays[i].dtype)
                    at += arrays[i].size
        return out

    def alltoall(self, x: np.ndarray, splits: np.ndarray | None, name="") -> tuple:
        """(rows that came, in the order of ranks; how many came from each).

        `splits[r]` rows go to rank r; None: as many to each. Blocks travel at the length of the
        longest: ranks of very different shares send more than they have.
        """
        check_rows([x])
        ranks = self.team.size
        if splits is None:
            if len(x) % ranks:
                raise ValueError(
                    f"alltoall of {len(x)} rows among {ranks} ranks: give splits, or a multiple"
                )
            splits = np.full(ranks, len(x) // ranks)
        splits = np.asarray(splits)
        if splits.shape != (ranks,) or (splits < 0).any() or splits.sum() != len(x):
            raise ValueError(
                f"alltoall of {len(x)} rows with splits {splits.tolist()}: needed are {ranks} "
                "numbers, one a rank, that add up to the rows"
            )
        with lock:
            listed = describe(x.dtype, ("?", *x.shape[1:]))
            self._agree(f"alltoall({listed}{named(name)})")
            table = self.team.allgather(splits.astype(np.int64))  # (from, to)
            came = table[:, self.team.rank]
            longest, row = int(table.max()), math.prod(x.shape[1:])
            flat = carried(x)
            blocks = np.zeros((ranks, longest * row), flat.dtype)
            begin = np.cumsum(splits) - splits
            for to in range(ranks):
                part = flat[begin[to] : begin[to] + splits[to]]
                blocks[to, : part.size] = part.reshape(-1)
            if blocks.size:
                blocks = self.team.alltoall(blocks)
            parts = [blocks[r, : came[r] * row] for r in range(ranks)]
            out = np.concatenate(parts).reshape((int(came.sum()), *x.shape[1:]))
            return uncarried(out, x.dtype), came.astype(np.int32)

    def reducescatter(self, arrays, op, before=1.0, after=1.0, name="") -> list[np.ndarray]:
        """This rank's rows of each array reduced; the first ranks get one more if need be."""
        check_rows(arrays)
        if op not in OPS:
            raise ValueError(f"reducescatter knows no op {op}; {', '.join(map(str, OPS))} are")
        ranks, rank = self.team.size, self.team.rank
        out: list = [None] * len(arrays)
        for dtype, members in by_dtype(arrays).items():
            listed = "+".join(describe(arrays[i].dtype, arrays[i].shape) for i in members)
            # Blocks of equal length, of whole cache lines, are what a Team cuts a vector into.
            most = [-(-len(arrays[i]) // ranks) * math.prod(arrays[i].shape[1:]) for i in members]
            block = -(-sum(most) // LINE) * LINE
            with lock:
                self._agree(f"reducescatter({listed}, op={op}{named(name)})")
                fused = self._buffer(ranks * block, dtype)
                for to in range(ranks):
                    at = to * block
                    for i, room in zip(members, most, strict=True):
                        x = arrays[i]
                        first, last = share(len(x), ranks, to)
                        piece = fused[at : at + room]
                        used = (last - first) * math.prod(x.shape[1:])
                        scale(x[first:last].reshape(-1), before, piece[:used])
                        piece[used:] = 0
                        at += room
                    fused[at : (to + 1) * block] = 0
                mine = self.team.reduce_scatter(fused, OPS[op]) if block else fused
                at = 0
                for i, room in zip(members, most, strict=True):
                    x = arrays[i]
                    first, last = share(len(x), ranks, rank)
                    used = (last - first) * math.prod(x.shape[1:])
                    piece = mine[at : at + used].reshape((last - first, *x.shape[1:]))
                    if after != 1.0:
                        scale(piece, after, piece)
                    out[i] = piece.astype(x.dtype, copy=False)
                    at += room
        return out

    def barrier(self) -> None:
        with lock:
            self._agree("barrier()")

    def join(self) -> int:
        """Stand in with zeros for what others still reduce; the last rank that came here."""
        size = self.team.size
        if size == 1:
            return 0
        with lock:
            mine = self._rounds * size + self.team.rank
            while True:
                self._table[:] = [NOBODY] * 6 + [1, mine]
                self._round()
                if self._table[0] == NOBODY:
                    return int(self._table[7] % size)
                self._check("join()")
                _, code, length = self._table[:3].tolist()
                dtype, op = DTYPES[code & 255], list(OPS)[code >> 8]
                fused = self._buffer(length, named_dtype(dtype))
                fused[:] = 0
                self.team.allreduce(fused, OPS[op])

    # What they have in common

    def _agree(self, text, kind=OTHER, code=0, length=0, checksum=None) -> None:
        if self.team.size == 1:
            return
        code = NOBODY + 1 if kind != ALLREDUCE or code < 0 else code
        checksum = zlib.crc32(text.encode()) if checksum is None else checksum
        self._table[:] = checksum, code, length, -checksum, -code, -length, 0, NOBODY
        self._round()
        self._check(text)

    def _round(self) -> None:
        self.team.allreduce(self._table, "max")
        self._rounds += 1
        if self._generation != self.team.generation:
            # The team was recovered from a failure, before which ranks may have got differently
            # far: what they have in common is made anew.
            self._generation, self._rounds = self.team.generation, 1
            self._fused.clear()

    def _check(self, text: str) -> None:
        """Raise on all ranks alike if they differ, or if ranks that joined can't stand in."""
        table = self._table
        joined = table[6] == 1
        able = table[1] >= 0 and list(OPS)[table[1] >> 8] in (Sum, Average)
        if (table[:3] == -table[3:6]).all() and (able or not joined):
            return
        mine = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        texts = [
            np.asarray(line, np.uint8).tobytes().decode() for line in self.team.allgather(mine)
        ]
        first = texts[0]
        other = next((r for r, said in enumerate(texts) if said != first), 0)
        message = ""
        if joined and len(set(texts) - {"join()"}) == 1:
            call = next(said for said in texts if said != "join()")
            message = (
                f"{call} was called while rank {texts.index('join()')} has joined: "
                "only an allreduce, Sum or Average, goes on without the ranks that have"
            )
        raise MismatchError({0: first, other: texts[other]}, message)

    def _buffer(self, n: int, dtype: np.dtype) -> np.ndarray:
        """`n` elements in the window of the team's ranks, so that reducing them copies nothing."""
        have = self._fused.get(dtype)
        if have is None or have.size < n:
            self._fused.pop(dtype, None)
            have = self._fused[dtype] = self.team.empty(max(n, 4096), dtype)
        return have[:n]

    def _add_up(self, fused: np.ndarray, plan: _Plan) -> None:
        """Adasum, of each tensor by itself."""
        if self.team.size == 1:
            return
        from numba_kernels import compression

        method = compression.get("adasum")
        ends = [*(first for first, _, _ in plan.pieces[1:]), fused.size]
        for (_, last, _), following in zip(plan.pieces, ends, strict=True):
            fused[last:following] = 0  # gaps count with the layer before
        if plan.adasum is None:
            layers = [SimpleNamespace(offset=first, shape=shape) for first, _, shape in plan.pieces]
            plan.adasum = method.init(fused.size, layers, fused.dtype)
        method.allreduce(self.team, fused, plan.adasum)


class _Plan:
    """Where the tensors of one dtype lie in the vector in which they travel, and what is said."""

    def __init__(self, arrays, dtype: np.dtype, members: list[int], op, name):
        self.dtype, self.members, self.adasum = dtype, members, None
        shapes = [arrays[i].shape for i in members]
        offsets, self.total = lay_out(shapes, dtype.itemsize)
        self.pieces = [
            (at, at + math.prod(shape), shape) for at, shape in zip(offsets, shapes, strict=True)
        ]
        listed = "+".join(describe(arrays[i].dtype, arrays[i].shape) for i in members)
        self.text = f"allreduce({listed}, op={op}{named(name)})"
        self.checksum = zlib.crc32(self.text.encode())
        self.code = DTYPES.index(dtype.name) | list(OPS).index(op) << 8 if op != Adasum else -1

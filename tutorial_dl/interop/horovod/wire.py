"""Collectives of numpy arrays; the ranks agree on each call before it begins.

Every call starts with one short allreduce, in which each rank announces the call:

    rank 0: "allreduce(float32[3], op=Sum)"      if equal: continue
    rank 1: "broadcast(float32[3], root=0)"      else: MismatchError on all ranks, with both texts
    rank 2: "I have joined"                      it takes part with zeros

Calls are matched by their text, names included, so ranks that differ get an error instead of mixing
two tensors of the same length. And a rank without data (`join`) learns which calls the others make,
as long as some rank still has data.
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
    carrier,
    check_rows,
    describe,
    join_flat,
    named_dtype,
    scale,
    share,
)
from .reductions import Adasum, Average, Max, Min, Product, Sum

OPS = {Average: "mean", Sum: "sum", Min: "min", Max: "max", Product: "product"}
ALLREDUCE, OTHER = 1, 2  # kinds of calls, for ranks that have joined
NOBODY = -(1 << 62)
MOST_PLANS = 1000

lock = threading.RLock()  # TensorFlow runs ops on its own threads


class Wire:
    """The collectives of one team (a process set), in the same order on all its ranks.

    Arguments of the methods are lists of C-contiguous arrays. Results may lie in memory that the
    next call overwrites, so callers copy them at once (`collectives.in_order` does).
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
        """Reduce each array over all ranks, with factors before and after."""
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
        with lock:
            self._agree(describe("allgather", arrays, name, rows="?"))
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
                    whole = np.concatenate(cut).reshape(shape)
                    out[i] = whole.astype(arrays[i].dtype, copy=False)
        return out

    def broadcast(self, arrays: Sequence[np.ndarray], root: int, name="") -> list[np.ndarray]:
        """The values of the arrays on rank `root` of this team."""
        out: list = [None] * len(arrays)
        with lock:
            self._agree(describe("broadcast", arrays, name, f", root={root}"))
            for dtype, members in by_dtype(arrays).items():
                flat = join_flat([arrays[i] for i in members], dtype)
                self.team.broadcast(flat, root)
                parts = np.split(flat, np.cumsum([arrays[i].size for i in members]))
                for i, part in zip(members, parts, strict=False):  # the last part is empty
                    out[i] = part.reshape(arrays[i].shape).astype(arrays[i].dtype, copy=False)
        return out

    def alltoall(self, arrays: Sequence[np.ndarray], name="") -> tuple:
        """(Received rows, how many from each rank); `arrays`: the rows, and how many go to each."""
        x, *splits = arrays
        check_rows([x])
        ranks = self.team.size
        if not splits:
            if len(x) % ranks:
                raise ValueError(
                    f"alltoall of {len(x)} rows among {ranks} ranks: give splits, or a multiple of "
                    f"{ranks} rows"
                )
            splits = [np.full(ranks, len(x) // ranks)]
        splits = np.asarray(splits[0])
        if splits.shape != (ranks,) or (splits < 0).any() or splits.sum() != len(x):
            raise ValueError(
                f"alltoall of {len(x)} rows with splits {splits.tolist()}: expected {ranks} "
                "numbers, one per rank, that add up to the rows"
            )
        with lock:
            self._agree(describe("alltoall", [x], name, rows="?"))
            table = self.team.allgather(splits.astype(np.int64))  # (from, to)
            came = table[:, self.team.rank]
            # All blocks are padded to the longest; very unequal shares send more than needed.
            longest, row = int(table.max()), math.prod(x.shape[1:])
            flat = np.ascontiguousarray(x).astype(carrier(x.dtype), copy=False)
            blocks = np.zeros((ranks, longest * row), flat.dtype)
            begin = np.cumsum(splits) - splits
            for to in range(ranks):
                part = flat[begin[to] : begin[to] + splits[to]]
                blocks[to, : part.size] = part.reshape(-1)
            if blocks.size:
                blocks = self.team.alltoall(blocks)
            parts = [blocks[r, : came[r] * row] for r in range(ranks)]
            out = np.concatenate(parts).reshape((int(came.sum()), *x.shape[1:]))
            return out.astype(x.dtype, copy=False), came.astype(np.int32)

    def reducescatter(self, arrays, op, before=1.0, after=1.0, name="") -> list[np.ndarray]:
        """Reduce each array and return this rank's rows; the first ranks may get one row more."""
        check_rows(arrays)
        if op not in OPS:
            known = ", ".join(map(str, OPS))
            raise ValueError(f"reducescatter does not support op {op}; choose one of {known}")
        ranks, rank = self.team.size, self.team.rank
        out: list = [None] * len(arrays)
        for dtype, members in by_dtype(arrays).items():
            text = describe("reducescatter", [arrays[i] for i in members], name, f", op={op}")
            # A Team splits a vector into blocks of equal length, each of whole cache lines.
            most = [-(-len(arrays[i]) // ranks) * math.prod(arrays[i].shape[1:]) for i in members]
            block = -(-sum(most) // LINE) * LINE
            with lock:
                self._agree(text)
                fused = self._buffer(ranks * block, dtype)
                fused[:] = 0
                starts = np.cumsum([0, *most])
                for to in range(ranks):
                    for i, start in zip(members, to * block + starts, strict=False):
                        first, last = share(len(arrays[i]), ranks, to)
                        part = arrays[i][first:last].reshape(-1)
                        scale(part, before, fused[start : start + part.size])
                mine = self.team.reduce_scatter(fused, OPS[op]) if block else fused
                for i, start in zip(members, starts, strict=False):
                    first, last = share(len(arrays[i]), ranks, rank)
                    shape = (last - first, *arrays[i].shape[1:])
                    piece = mine[start : start + math.prod(shape)].reshape(shape)
                    if after != 1.0:
                        scale(piece, after, piece)
                    out[i] = piece.astype(arrays[i].dtype, copy=False)
        return out

    def barrier(self) -> None:
        with lock:
            self._agree("barrier()")

    def join(self) -> int:
        """Contribute zeros to the others' reductions; returns the last rank that joined."""
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

    # Shared by all calls

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
            # The team recovered from a failure, at which ranks may have got differently far, so
            # their shared state starts afresh.
            self._generation, self._rounds = self.team.generation, 1
            self._fused.clear()

    def _check(self, text: str) -> None:
        """Raise on all ranks if calls differ, or if joined ranks can't contribute zeros."""
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
                "only an allreduce with Sum or Average works without ranks that have joined"
            )
        raise MismatchError({0: first, other: texts[other]}, message)

    def _buffer(self, n: int, dtype: np.dtype) -> np.ndarray:
        """`n` elements in the team's shared window, so that reducing them needs no copy."""
        have = self._fused.get(dtype)
        if have is None or have.size < n:
            self._fused.pop(dtype, None)
            have = self._fused[dtype] = self.team.empty(max(n, 4096), dtype)
        return have[:n]

    def _add_up(self, fused: np.ndarray, plan: _Plan) -> None:
        """Adasum, for each tensor separately."""
        if self.team.size == 1:
            return
        from numba_kernels import compression

        method = compression.get("adasum")
        ends = [*(first for first, _, _ in plan.pieces[1:]), fused.size]
        for (_, last, _), following in zip(plan.pieces, ends, strict=True):
            fused[last:following] = 0  # gaps belong to the layer before
        if plan.adasum is None:
            layers = [SimpleNamespace(offset=first, shape=shape) for first, _, shape in plan.pieces]
            plan.adasum = method.init(fused.size, layers, fused.dtype)
        method.allreduce(self.team, fused, plan.adasum)


class _Plan:
    """The places of the tensors of one dtype in the fused vector, and the text of the call."""

    def __init__(self, arrays, dtype: np.dtype, members: list[int], op, name):
        self.dtype, self.members, self.adasum = dtype, members, None
        self.pieces, self.total, line = [], 0, 64 // dtype.itemsize
        for i in members:  # each begins on a cache line
            last = self.total + arrays[i].size
            self.pieces.append((self.total, last, arrays[i].shape))
            self.total = -(-last // line) * line
        self.text = describe("allreduce", [arrays[i] for i in members], name, f", op={op}")
        self.checksum = zlib.crc32(self.text.encode())
        self.code = DTYPES.index(dtype.name) | list(OPS).index(op) << 8 if op != Adasum else -1

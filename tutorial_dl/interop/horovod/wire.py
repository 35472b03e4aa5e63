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
from enum import IntEnum
from types import SimpleNamespace

import numpy as np

from numba_kernels.errors import LEFT, MismatchError, PeerError

DTYPES = ("float32", "float64", "int32", "int64", "float16", "bfloat16")
# Dtypes that a Team does not support are sent as wider ones that it does. Numbers stay exact.
CARRIERS = dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16"), "int32") | dict.fromkeys(
    ("uint32", "uint64"), "int64"
)
ALLREDUCE, OTHER = 1, 2  # kinds of calls, for ranks that have joined
NOBODY = -(1 << 62)
MOST_PLANS = 1000

UNEQUAL = (
    "give all ranks equally many steps (steps_per_epoch, or batches with drop_remainder=True), let "
    "callbacks that stop training go by averages (MetricAverageCallback before them), or call "
    "hvd.join() on a rank whose data end"
)

lock = threading.RLock()  # TensorFlow runs ops on its own threads


class Reduction(IntEnum):
    """Reduction operators as small integers, because scripts compare them: `op=0` is Average."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    def __str__(self) -> str:
        return self.name


Average, Sum, Adasum, Min, Max, Product = Reduction
OPS = {Average: "mean", Sum: "sum", Min: "min", Max: "max", Product: "product"}


def reduction(op: int | None, average: bool | None = None) -> Reduction:
    """The reduction given by `op`, or by the older argument `average`; by default Average.

    Raises:
        ValueError: If both are given, or `op` is unknown.
    """
    if op is not None and average is not None:
        raise ValueError("give either op or average, not both")
    if op is None:
        return Sum if average is False else Average
    try:
        return Reduction(op)
    except ValueError:
        names = ", ".join(r.name for r in Reduction)
        raise ValueError(f"unknown op {op!r}; choose one of {names}") from None


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

    def allreduce(
        self, arrays: Sequence[np.ndarray], op, before=1.0, after=1.0, name="", call="allreduce"
    ) -> list:
        """Reduce each array over all ranks, with factors before and after.

        `call` is how it is announced; ranks that have joined take part in an allreduce only.
        """
        out: list = [None] * len(arrays)
        for plan in self._planned(call, arrays, op, name):
            with lock:
                kind = ALLREDUCE if call == "allreduce" else OTHER
                self._agree(plan.text, kind, plan.code, plan.total, plan.checksum)
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

    def reducescatter(self, arrays, op, before=1.0, after=1.0, name="") -> list[np.ndarray]:
        """Reduce each array and return this rank's rows; the first ranks may get one row more."""
        check_rows(arrays)
        if op not in OPS:
            known = ", ".join(map(str, OPS))
            raise ValueError(f"reducescatter does not support op {op}; choose one of {known}")
        reduced = self.allreduce(arrays, op, before, after, name, "reducescatter")
        return [np.array_split(x, self.team.size)[self.team.rank] for x in reduced]

    def allgather(self, arrays: Sequence[np.ndarray], name="") -> list[np.ndarray]:
        """Each array's rows on all ranks, in the order of ranks; first dimensions may differ."""
        check_rows(arrays)
        out = []
        with lock:
            self._agree(describe("allgather", arrays, name, rows="?"))
            rows = self.team.allgather(np.array([len(a) for a in arrays], np.int64))
            for a, total in zip(arrays, rows.sum(axis=0), strict=True):
                shape = int(total), *a.shape[1:]
                flat = a.reshape(-1).astype(carrier(a.dtype))
                parts = self.team.allgather(flat) if math.prod(shape) else [flat]
                out.append(np.concatenate(list(parts)).astype(a.dtype, copy=False).reshape(shape))
        return out

    def broadcast(self, arrays: Sequence[np.ndarray], root: int, name="") -> list[np.ndarray]:
        """The values of the arrays on rank `root` of this team."""
        out = []
        with lock:
            self._agree(describe("broadcast", arrays, name, f", root={root}"))
            for a in arrays:
                x = a.astype(carrier(a.dtype))  # a copy, since it is overwritten
                if x.size:
                    self.team.broadcast(x, root)
                out.append(x.astype(a.dtype, copy=False))
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
            blocks = np.zeros((ranks, table.max(), *x.shape[1:]), carrier(x.dtype))
            for block, rows in zip(blocks, np.split(x, np.cumsum(splits)[:-1]), strict=True):
                block[: len(rows)] = rows
            if blocks.size:
                blocks = self.team.alltoall(blocks)
            rows = [block[:n] for block, n in zip(blocks, came, strict=True)]
            return np.concatenate(rows).astype(x.dtype, copy=False), came.astype(np.int32)

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
                fused = self._buffer(length, named_dtype(DTYPES[code & 255]))
                fused[:] = 0
                self.team.allreduce(fused, OPS[list(OPS)[code >> 8]])

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
        try:
            self.team.allreduce(self._table, "max")
        except PeerError as error:
            if error.reason == LEFT:
                error.reason = f"{LEFT}; {UNEQUAL}"
                error.name_roles(error.roles)
            raise
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
        calls = {0: first, other: texts[other]}
        kinds = {(call.partition("(")[0], "name=" in call) for call in calls.values()}
        if not message and len(kinds) > 1:  # a rank has gone on to what follows its last step
            message = f"{MismatchError(calls)}; if their numbers of steps differ, {UNEQUAL}"
        raise MismatchError(calls, message)

    def _planned(self, call: str, arrays: Sequence[np.ndarray], op, name) -> list[_Plan]:
        """A plan per dtype, kept for the next call with such arrays."""
        key = call, op, name, *((a.dtype, a.shape) for a in arrays)
        plans = self._plans.get(key)
        if plans is None:
            groups = by_dtype(arrays, op == Adasum).items()
            plans = [_Plan(call, arrays, wide, members, op, name) for wide, members in groups]
            if len(self._plans) < MOST_PLANS:
                self._plans[key] = plans
        return plans

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

    def __init__(self, call: str, arrays, dtype: np.dtype, members: list[int], op, name):
        self.dtype, self.members, self.adasum = dtype, members, None
        self.pieces, self.total, line = [], 0, 64 // dtype.itemsize
        for i in members:  # each begins on a cache line
            last = self.total + arrays[i].size
            self.pieces.append((self.total, last, arrays[i].shape))
            self.total = -(-last // line) * line
        self.text = describe(call, [arrays[i] for i in members], name, f", op={op}")
        self.checksum = zlib.crc32(self.text.encode())
        self.code = DTYPES.index(dtype.name) | list(OPS).index(op) << 8 if op != Adasum else -1


# Arrays for sending


def describe(call: str, arrays: Sequence[np.ndarray], name: str | None, more="", rows=None) -> str:
    """A call in words, for example "allreduce(float32[3], op=Sum)"; `rows` replaces lengths."""
    shapes = [a.shape if rows is None else (rows, *a.shape[1:]) for a in arrays]
    listed = "+".join(
        f"{a.dtype.name}[{', '.join(map(str, shape))}]"
        for a, shape in zip(arrays, shapes, strict=True)
    )
    return f"{call}({listed}{more}{f', name={name!r}' if name else ''})"


def named_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        from ml_dtypes import bfloat16

        return np.dtype(bfloat16)
    return np.dtype(name)


def carrier(dtype: np.dtype) -> np.dtype:
    """The dtype in which `dtype` is sent; raises TypeError if there is none."""
    name = CARRIERS.get(dtype.name, dtype.name)
    if name not in DTYPES:
        known = ", ".join([*DTYPES, *CARRIERS])
        raise TypeError(f"no collectives of {dtype.name}; choose one of {known}")
    return named_dtype(name)


def by_dtype(arrays: Sequence[np.ndarray], widened: bool = False) -> dict[np.dtype, list[int]]:
    """{dtype for sending: indices of arrays}; half-precision arrays as float32 if `widened`."""
    groups: dict[np.dtype, list[int]] = {}
    for i, a in enumerate(arrays):
        dtype = carrier(a.dtype)
        if widened and dtype.itemsize == 2:
            dtype = np.dtype("float32")
        groups.setdefault(dtype, []).append(i)
    return groups


def scale(x: np.ndarray, factor: float, out: np.ndarray) -> None:
    """out = factor x, in the dtype of `out`; integers are rounded towards zero."""
    if factor == 1.0:
        np.copyto(out, x, casting="unsafe")
    elif out.dtype.kind == "f":
        np.multiply(x, out.dtype.type(factor), out=out, casting="unsafe")
    else:
        np.copyto(out, x * factor, casting="unsafe")


def check_rows(arrays: Sequence[np.ndarray]) -> None:
    for a in arrays:
        if a.ndim == 0:
            raise ValueError("a scalar has no rows; reshape it to one dimension first")

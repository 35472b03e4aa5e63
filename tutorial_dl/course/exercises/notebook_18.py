"""Checks of notebook 18, sharding and long sequences."""

import numpy as np

from . import NotYet, call, must_have, whole
from .answers import same

# Exercise 1: parameters; bytes per parameter of weights, gradient and Adam's two averages, in
# float32; and the bytes that a rank has for them.
PARAMETERS, WEIGHTS, GRADIENT, STATE, MEMORY = 1_500_000_000, 4, 4, 8, 10_000_000_000
ALL = WEIGHTS + GRADIENT + STATE


def ranks(answer) -> str:
    """Exercise 1: the least number of ranks on which stage 2 fits, and stage 3."""
    parts = must_have(answer, 2, "two numbers: the ranks for stage 2, and for stage 3")
    for stage, part, kept in zip((2, 3), parts, (WEIGHTS, 0), strict=True):
        _fits(whole(part, 1, None, f"ranks for stage {stage}"), stage, kept)
    return "stage 1 never fits: weights and gradients alone take 12 GB"


def _fits(p: int, stage: int, kept: int) -> None:
    """`kept`: bytes per parameter that stay whole on each rank."""
    needed = PARAMETERS * (kept + (ALL - kept) / p)
    if needed > MEMORY:
        raise NotYet(f"stage {stage} on ranks = {p}: each needs {needed / 1e9:.1f} GB, and has 10")
    if p > 1 and PARAMETERS * (kept + (ALL - kept) / (p - 1)) <= MEMORY:
        hint = "but so would fewer ranks"
        if stage == 3 and p == 5:
            hint = "but this is the number for stage 2"
        raise NotYet(f"stage {stage} on ranks = {p} fits, {hint}")


QUERIES, WIDTH = 3, 2


def add(answer) -> str:
    """Exercise 2: a block of keys joins the running maximum, sum and weighted values."""
    random = np.random.default_rng(18)
    for what, sizes, shifts in (
        ("one block", (4,), (0,)),
        ("blocks of 4, 1 and 3 keys", (4, 1, 3), (0, 0, 0)),
        ("scores that grow by 500 from block to block", (3, 3, 3), (0, 500, 1000)),
        ("scores that fall by 500 from block to block", (3, 3, 3), (0, -500, -1000)),
        ("scores near 1000", (5, 2), (1000, 1000)),
    ):
        blocks = [
            (random.normal(size=(QUERIES, k)) + shift, random.normal(size=(k, WIDTH)))
            for k, shift in zip(sizes, shifts, strict=True)
        ]
        _join(answer, blocks, what)
    return "the softmax over all keys, block by block, and no exponent overflows"


def _nothing() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """m, total and o before the first block."""
    return np.full(QUERIES, -np.inf), np.zeros(QUERIES), np.zeros((QUERIES, WIDTH))


def _join(answer, blocks: list, what: str) -> None:
    m, total, o = _nothing()
    for count, (s, v) in enumerate(blocks, start=1):
        with np.errstate(all="ignore"):
            found = must_have(call(answer, m, total, o, s, v), 3, "three arrays: m, total, o")
        try:
            m, total, o = (np.asarray(part, float) for part in found)
        except (TypeError, ValueError):
            raise NotYet("m, total and o must be arrays of numbers") from None
        for name, part, shape in (("m", m, (QUERIES,)), ("total", total, (QUERIES,)),
                                  ("o", o, (QUERIES, WIDTH))):  # fmt: skip
            if part.shape != shape:
                raise NotYet(f"{name} must have shape {shape}, yours has {part.shape}")
        _judge(total, o, blocks[:count], f"{what}, after block {count}")


def _judge(total: np.ndarray, o: np.ndarray, blocks: list, where: str) -> None:
    """Whatever m is: o / total must be the attention over the blocks so far."""
    s = np.concatenate([one for one, _ in blocks], axis=1)
    v = np.concatenate([one for _, one in blocks])
    e = np.exp(s - s.max(axis=1, keepdims=True))
    right = e @ v / e.sum(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        y = o / total[:, None]
    if np.allclose(y, right, rtol=1e-9, atol=1e-9):
        return
    if not np.isfinite(y).all():
        raise NotYet(
            f"{where}: o / total is not finite: does the exponent use the largest score so far, of "
            "the old keys and of this block?"
        )
    last_s, last_v = blocks[-1]
    own = np.exp(last_s - last_s.max(axis=1, keepdims=True))
    alone = own @ last_v / own.sum(axis=1, keepdims=True)
    if same(o, right, rtol=1e-6):
        raise NotYet(
            f"{where}: your o is divided by total already; divide once, after the last block"
        )
    if len(blocks) > 1 and same(y, alone, rtol=1e-6, atol=1e-9):
        raise NotYet(
            f"{where}: only this block is in it; m, total and o of the blocks before are lost"
        )
    for hint, sums in _mistakes(blocks).items():
        if same(y, sums[1] / sums[0][:, None], rtol=1e-6, atol=1e-9):
            raise NotYet(f"{where}: {hint}")
    raise NotYet(f"{where}: o / total is off by up to {np.abs(y - right).max():.3g}")


def _mistakes(blocks: list) -> dict[str, tuple]:
    """Hint -> (total, o) that the mistake leads to."""
    found = {}
    for hint, (of_total, of_o) in {
        "the old total and o belong to another maximum: multiply both by e^(m - m')": (0, 0),
        "total is multiplied by e^(m - m'), but o is not": (1, 0),
        "o is multiplied by e^(m - m'), but total is not": (0, 1),
        "total and o are multiplied by e^(m' - m): the exponent has the wrong sign": (-1, -1),
    }.items():
        m, total, o = _nothing()
        for s, v in blocks:
            new = np.maximum(m, s.max(axis=1))
            with np.errstate(all="ignore"):
                was = np.where(np.isfinite(m), m - new, 0)
                e = np.exp(s - new[:, None])
                total = total * np.exp(of_total * was) + e.sum(axis=1)
                o = o * np.exp(of_o * was)[:, None] + e @ v
            m = new
        found[hint] = total, o
    return found

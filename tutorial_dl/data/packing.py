"""A batch as a block of memory: what one rank sends to another.

    block = [inputs[0] | inputs[1] | targets | weights]     arrays begin at multiples of 8 bytes

The form of a batch (`form_of`) says what is in the block; it changes rarely, so it is sent only
when it does. Text goes as the lengths of all texts, then the texts.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from tutorial_dl.data.dataset import Batch, by_name

TEXT = "text"  # in place of a dtype


def form_of(batch: Batch) -> list:
    """The structure of a batch, dtypes, and shapes of one sample, as JSON can hold them."""
    return [[_names(part), [_kind(a) for a in by_name(part).values()]] for part in batch]


def _names(part: Any) -> Any:
    """None for an array, the number of arrays of a tuple, the names of a dict."""
    if isinstance(part, dict):
        return list(part)
    return len(part) if isinstance(part, tuple) else None


def _kind(array: np.ndarray) -> list:
    dtype = array.dtype
    # (The bytes of bfloat16, of the package ml_dtypes, have no letter of their own.)
    named = TEXT if dtype.hasobject else dtype.name if dtype.kind == "V" else dtype.str
    return [named, list(array.shape[1:])]


def pack(batches: list[Batch]) -> tuple[np.ndarray, list[int]]:
    """Several batches, one after the other, as int64 words; and each one's number of words."""
    blocks = [list(_parts(batch)) for batch in batches]
    lengths = [sum(-(-part.nbytes // 8) for part in parts) for parts in blocks]
    words, at = np.empty(sum(lengths), np.int64), 0
    memory = words.view(np.uint8)
    for parts in blocks:
        for part in parts:
            memory[at : at + part.nbytes] = part
            at += -(-part.nbytes // 8) * 8
    return words, lengths


def _parts(batch: Batch) -> Iterator[np.ndarray]:
    """The bytes of each array, as uint8."""
    for part in batch:
        for array in by_name(part).values():
            if array.dtype == object:
                texts = array.ravel().tolist()
                yield np.array([len(one) for one in texts], np.int64).view(np.uint8)
                yield np.frombuffer(b"".join([*texts, b"\0"]), np.uint8)[:-1]
            else:
                yield np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def unpack(form: list, samples: int, words: np.ndarray) -> Batch:
    """The batch of so many samples in these words; its arrays are views of them, except text."""
    memory, at, parts = words.view(np.uint8), 0, []

    def taken(nbytes: int) -> np.ndarray:
        nonlocal at
        first, at = at, at + -(-nbytes // 8) * 8
        return memory[first : first + nbytes]

    for names, kinds in form:
        arrays = []
        for named, of_one in kinds:
            shape = (samples, *of_one)
            if named == TEXT:
                lengths = taken(8 * prod(shape)).view(np.int64)
                ends = np.cumsum(lengths)
                text = taken(int(lengths.sum())).tobytes()
                made = np.empty(len(ends), object)
                made[:] = [text[e - n : e] for e, n in zip(ends, lengths, strict=True)]
            else:
                dtype = np.dtype(named)
                made = taken(dtype.itemsize * prod(shape)).view(dtype)
            arrays.append(made.reshape(shape))
        if isinstance(names, list):
            parts.append(dict(zip(names, arrays, strict=True)))
        else:
            parts.append(arrays[0] if names is None else tuple(arrays))
    return tuple(parts)

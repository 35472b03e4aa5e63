"""`text`: characters of Python's own standard library, to predict the next one from those before.

The source code that every Python brings along is some ten million characters of real text, and
needs no download. Which characters they are depends on the version of Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tutorial_dl.data.dataset import Data, Dataset

# Tab, newline, and the printable characters of ASCII; UNKNOWN stands for any other one.
ALPHABET = "\t\n" + "".join(map(chr, range(32, 127)))
UNKNOWN = "?"
EVERY = 10  # of so many files, one is for validation


def text(length: int = 64, characters: int = 500_000) -> Dataset:
    """Load windows of the standard library's source, and for each the characters that follow.

    Files are the modules directly in the folder of `os`, in the order of their names; every tenth
    is for validation, the others for training. Each part ends after its share of `characters`.

    Args:
        length: Characters in a window; windows do not overlap.
        characters: At most so many in all, of which a tenth is for validation.

    Returns:
        Dataset of inputs uint8 (n, length), numbers of characters in `ALPHABET`, and targets of the
        same shape, shifted by one: targets[i, t] follows inputs[i, t].
    """
    if length < 1:
        raise ValueError(f"length must be at least 1 character, got {length}")
    if characters < EVERY * (length + 1):
        raise ValueError(
            f"characters must be at least {EVERY * (length + 1)} for windows of {length}, "
            f"got {characters}"
        )
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    kept = characters // EVERY
    train = _read((f for i, f in enumerate(files) if i % EVERY), characters - kept)
    validation = _read(files[::EVERY], kept)
    return Dataset("text", _windows(train, length), _windows(validation, length), len(ALPHABET))


def encode(words: str) -> np.ndarray:
    """The number of each character in `ALPHABET`, uint8 (n,)."""
    table = np.full(128, ALPHABET.index(UNKNOWN), np.uint8)
    table[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))
    points = np.frombuffer(words.encode("utf-32-le"), np.uint32)
    return table[np.where(points < 128, points, ord(UNKNOWN))]


def decode(numbers: Iterable[int]) -> str:
    """The reverse of `encode`."""
    return "".join(ALPHABET[int(n)] for n in numbers)


def _read(files: Iterable[Path], characters: int) -> np.ndarray:
    parts, left = [], characters
    for file in files:
        if left <= 0:
            break
        parts.append(encode(file.read_text(encoding="utf-8", errors="replace"))[:left])
        left -= len(parts[-1])
    return np.concatenate(parts)


def _windows(numbers: np.ndarray, length: int) -> Data:
    n = (len(numbers) - 1) // length
    inputs, targets = numbers[: n * length], numbers[1 : n * length + 1]
    return Data.of(inputs.reshape(n, length), targets.reshape(n, length))

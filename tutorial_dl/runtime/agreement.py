"""What ranks were given, compared before they train: data, models, losses, options.

Ranks that differ would train on a mixture, and no one would notice: the loss still falls. So each
rank describes what it was given, by name, and one line says what differs, and on which rank.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sized
from typing import Any

import numpy as np

from numba_kernels.team.bytes import broadcast_text, collect

from ..data import Data, Dataset
from ..data.dataset import by_name
from ..replica.base import Replica
from ..replica.proxy import ReplicaProxy

IN_MEMORY, IN_FILES = 64, 4  # samples that are compared
LONGEST = 100  # characters of a value that are shown
NUMBER = re.compile(r"\d+\.\d{8,}")


def check_same(team, mine: dict[str, Any]) -> None:
    """Raise ValueError on all ranks, with what differs first, unless all ranks have equal `mine`.

    Names are like "learning rate", values are shown by `str`. Collective.
    """
    if team.size == 1:
        return
    text = json.dumps({name: str(value) for name, value in mine.items()})
    sums = np.array([zlib.crc32(text.encode()), len(text)], np.int64)
    if (team.allgather(sums) == sums).all(1).all():  # the same on all ranks, or on none
        return
    found = collect(team, text.encode())
    every = broadcast_text(team, json.dumps([json.loads(t) for t in found or ()]), 0)
    if words := difference(json.loads(every)):
        raise ValueError(words)


def difference(given: list[dict[str, str]]) -> str | None:
    """In words, what differs first between the ranks' descriptions; None: nothing does."""
    for name in dict.fromkeys(name for of in given for name in of):
        values = [of.get(name, "missing") for of in given]
        usual = max(values, key=values.count)
        for rank, value in enumerate(values):
            if value != usual:
                return (
                    f"ranks differ in the {name}: {_short(value)} on rank {rank}, {_short(usual)} "
                    f"on rank {values.index(usual)}; all ranks must be given the same"
                    f"{HINTS.get(name.split()[0], '')}"
                )
    return None


HINTS = {
    part: " samples in the same order, since the Trainer divides them: seed what shuffles or draws "
    "them"
    for part in ("training", "validation")
}


def _short(value: str) -> str:
    value = NUMBER.sub(lambda found: f"{float(found[0]):.7g}", value)  # float32 has no more digits
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 3]}..."


def of_data(dataset: Dataset) -> dict[str, str]:
    """Sizes, shapes and a checksum of some samples; nothing of a stream, which one rank reads."""
    found = {}
    for what in ("training", "validation"):
        part = getattr(dataset, what.removesuffix("ing"))
        if not isinstance(part, Sized):
            continue
        if isinstance(part, Data):
            samples = part.take(np.unique(np.linspace(0, len(part) - 1, IN_MEMORY).astype(int)))
        else:  # a rank opens the files of its own share only, and the first one here
            samples = part.take(slice(0, IN_FILES))
        names = zip(("inputs", "targets", "weights"), samples, strict=False)
        for name, arrays in names:
            for shown, array in by_name(arrays, f"{what} {name}").items():
                found[shown] = f"{len(part)} samples of {_array(array)}"
    return found


def _array(array: np.ndarray) -> str:
    content = array.tolist() if array.dtype.hasobject else np.ascontiguousarray(array)
    checksum = zlib.crc32(repr(content).encode() if array.dtype.hasobject else content)
    return f"shape {array.shape[1:]}, {array.dtype}, checksum {checksum:08x}"


def of_model(replica: Replica) -> dict[str, str]:
    """Shapes of weights; of a Keras model also its layers, losses and metrics."""
    if replica.holding is not None:  # each rank has a part of its own
        return {}
    # Not by name, since Keras numbers names in the order in which a process makes models.
    found = {f"shape of weights {i}": str(s.shape) for i, s in enumerate(replica.segments, 1)}
    if replica.traits.library == "keras":
        while isinstance(replica, ReplicaProxy):
            replica = replica.inner
        from ..replica.keras.describing import described

        found = described(replica.model) | found
    return found

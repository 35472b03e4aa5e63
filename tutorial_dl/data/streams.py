"""`Stream`: training or validation data that come batch by batch, as in Keras's `fit`.

    Trainer(model, (train_ds, val_ds))                                # tf.data.Dataset, PyDataset
    Trainer(model, data.stream(generator, steps=100))                 # 100 batches per epoch

Each batch of the stream is one global batch, which all ranks share. One rank reads it (sources.py),
makes arrays of it (elements.py) and hands the others their shares (runtime/handing_out.py).
"""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from numba_kernels.errors import message_of
from tutorial_dl.data import weights
from tutorial_dl.data.dataset import Batch, Data
from tutorial_dl.data.elements import batch_of
from tutorial_dl.data.files import DataError
from tutorial_dl.data.sources import is_source, source_of
from tutorial_dl.user_function import is_ours, place_of

# What TensorFlow puts before the message itself.
FRAME = re.compile(
    r"\{\{[^}]*\}\}\s*|Error in user-defined function passed to .* with iterator: [\w:\[\]]*: "
)


def stream(source: Any, steps: int | None = None) -> Stream:
    """Data that come batch by batch; without `steps`, pass the source itself.

    Args:
        source: A tf.data.Dataset, a keras.utils.PyDataset, a generator, a function that returns a
            new one for each epoch (called with the epoch's number, from 0, if it takes an
            argument), or anything else to iterate over. It gives batches x, (x,), (x, y) or
            (x, y, weights of samples), where x and y are arrays, or tuples or dicts of arrays.
        steps: Batches per epoch, or of an evaluation; None: all. A source that never ends needs
            it, and so does a generator for more than one epoch. Where a source can be begun anew,
            it is when it ends.
    """
    return Stream(source, steps)


class Stream:
    """See `stream`. Ranks other than rank 0 never read theirs.

    Attributes:
        name: For messages.
        steps: Batches per epoch, if known. (Until the ranks have looked at the first batch, only if
            given.)
        given: `steps` as given; `known`: as they are known before the first epoch.
        head: The first samples, as `Data`, once the ranks have looked at the first batch
            (runtime/handing_out.py); `inputs`, `targets` and `take` are its.
        batch_size: Samples of the first batch.
        samples: Samples of the last epoch that was read to its end; before, an estimate, or None.
    """

    def __init__(self, source: Any, steps: int | None = None, name: str = "stream") -> None:
        self.source = source_of(source)
        if steps is not None and operator.index(steps) < 1:
            raise ValueError(f"steps must be at least 1 batch per epoch, got {steps}")
        self.steps = self.given = self.known = None if steps is None else operator.index(steps)
        self.name = name
        self.class_weight: Mapping[int, float] | None = None
        self.head: Data | None = None
        self.batch_size, self.samples = 0, None

    inputs = property(lambda self: self._seen().inputs)
    targets = property(lambda self: self._seen().targets)

    def take(self, indices: np.ndarray | slice) -> Batch:
        """Some of the first samples, to try out a model on."""
        return self._seen().take(indices)

    def _seen(self) -> Data:
        if self.head is None:
            raise DataError(f"{self.name} is a stream, whose first batch has not been read yet")
        return self.head

    def weighted(self, class_weight: Mapping[int, float] | str) -> Stream:
        """The same stream, with weights of samples by their class."""
        weights.check_for_streams(class_weight)
        made = copy.copy(self)
        made.class_weight, made.head = class_weight, None
        return made

    # On the rank that reads

    def look(self) -> tuple[Batch, dict]:
        """The first batch, and what the other ranks must know."""
        source = self.source
        with self.telling(0, 0):
            if source.endless and self.given is None:
                raise DataError(
                    f"{source.words} never ends: give the number of batches per epoch, "
                    "data.stream(source, steps=...)"
                )
            batch = self.batch(source.peek())
            return batch, {"steps": self.given or source.length}

    def batch(self, element: Any) -> Batch:
        """The batch that an element is; ValueError if it can't be used."""
        batch = batch_of(element)
        if self.class_weight is not None:
            batch = weights.of_batch(batch, self.class_weight)
        return batch

    @contextmanager
    def telling(self, epoch: int, number: int) -> Iterator[None]:
        """Errors within are about batch `number` of an epoch (both from 0): in one line."""
        try:
            yield
        except DataError as error:
            raise DataError(f"{self.name}: {error}") from None
        except Exception as error:
            where = f"{self.name}: batch {number + 1} of epoch {epoch + 1}"
            if isinstance(error, ValueError) and is_ours(error):
                raise DataError(f"{where}: {message_of(error)}") from None
            text = FRAME.sub("", message_of(error))
            text = next((line for line in text.splitlines() if line.strip()), "no message")
            kind = type(error).__name__
            raise DataError(f"{where}: {kind}: {text.strip()[:120]}{place_of(error)}") from error


def is_stream(made: Any) -> bool:
    return isinstance(made, Stream) or is_source(made)


def stream_of(made: Any, name: str) -> Stream:
    """The Stream that a user's object is, with this name."""
    found = copy.copy(made) if isinstance(made, Stream) else Stream(made)
    found.name = name
    return found

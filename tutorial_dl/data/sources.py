"""Where the batches of a stream come from, and which of them an epoch has.

    tf.data.Dataset, or anything else with __iter__    a new pass per epoch; epochs of `steps`
                                                       batches go on where the last one ended
    keras.utils.PyDataset                              any batch by its number
    a function                                         a new pass per epoch; if it takes an
                                                       argument, that of epoch 0, 1, ...
    a generator, or another iterator                   one pass

A source is read by one rank, and by one thread at a time.
"""

import inspect
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf
from typing import Any

import numpy as np

from tutorial_dl.data.files import DataError


class Source:
    """Base class.

    Attributes:
        words: What it is, in messages.
        once: Whether it can be read only once.
        note: What the user should know, if anything.
    """

    words = "the iterable"
    once = False
    note = ""

    def size(self) -> float | None:
        """Batches per pass: inf if it is known to have no end; None if that is not known."""
        return None

    @property
    def endless(self) -> bool:
        return self.size() == inf

    @property
    def length(self) -> int | None:
        return None if self.endless else self.size()

    def peek(self) -> Any:
        """The first element; the first epoch has it all the same. DataError if there is none."""
        raise NotImplementedError

    def epoch(self, number, start=0, steps=None, seed=None, anew=False) -> Iterator[Any]:
        """Yield the elements of epoch `number` (from 0), but for the first `start`.

        Args:
            steps: Elements of every epoch; None: all of a pass. DataError if there are fewer.
            seed: Shuffle the elements, where the order is ours to choose (None: don't).
            anew: Begin a new pass, if possible, though epochs have `steps` elements.
        """
        raise NotImplementedError


class Passes(Source):
    """What is read from the beginning to the end: `begin(epoch)` returns the iterator of a pass.

    `own`: whether a pass belongs to one epoch, so that no other epoch goes on with it; `size` and
    `once` as in `Source`.
    """

    def __init__(
        self, begin: Callable[[int], Iterator], words: str, own=False, once=False,
        size: Callable[[], float | None] = lambda: None,
    ) -> None:  # fmt: skip
        self.words, self.once, self.size = words, once, size
        self._begin, self._own = begin, own
        self._pass: Iterator | None = None
        self._unused = False  # whether the pass has only been peeked at
        self._first: list[Any] = []

    def peek(self) -> Any:
        if not self._first:
            begun = self._begin(0)
            self._first = list(itertools.islice(begun, 1))
            if not self._first:
                raise DataError(f"{self.words} has no batches")
            self._pass, self._unused = itertools.chain(self._first, begun), True
        return self._first[0]

    def epoch(self, number, start=0, steps=None, seed=None, anew=False) -> Iterator[Any]:
        anew = anew or steps is None or self._own
        if self._pass is None or (self._own and number) or (anew and not self._unused):
            if self._pass is None or not self.once:
                self._pass = self._begin(number)
            elif steps is None:
                raise DataError(
                    f"{self.words} can be read only once: give the number of batches per epoch, "
                    "data.stream(source, steps=...), or a function that returns a new one"
                )
        self._unused = False
        elements = self._pass if steps is None else itertools.islice(self._on(number), steps)
        place = 0
        for element in elements:
            place += 1
            if place > start:
                yield element
        if place < (steps or max(1, start)):
            asked = f"but steps is {steps}" if steps else f"expected at least {max(1, start)}"
            raise DataError(f"{self.words} ended after {place} batches of this epoch, {asked}")

    def _on(self, number: int) -> Iterator[Any]:
        """Elements of this pass and, where new ones can be begun, of all others after it."""
        yield from _unclosed(self._pass)
        while not (self.once or self._own):
            self._pass, empty = self._begin(number), True
            for element in _unclosed(self._pass):
                empty = False
                yield element
            if empty:
                return


def _unclosed(iterator: Iterator[Any]) -> Iterator[Any]:
    """The same, but `yield from` must not close a generator that the next epoch goes on with."""
    for element in iterator:  # noqa: UP028
        yield element


class ByNumber(Source):
    """A keras.utils.PyDataset: batch i is dataset[i], so that any epoch can be read anew."""

    words = "the PyDataset"

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def size(self) -> float:
        return inf if self._dataset.num_batches is None else self._dataset.num_batches

    @property
    def note(self) -> str:
        if not getattr(self._dataset, "use_multiprocessing", False):
            return ""
        return "use_multiprocessing of a PyDataset is done by threads: MPI does not allow forks"

    def peek(self) -> Any:
        if self.length == 0:
            raise DataError(f"{self.words} has no batches")
        return self._dataset[0]

    def epoch(self, number, start=0, steps=None, seed=None, anew=False) -> Iterator[Any]:
        self._event("on_epoch_begin")  # it may change the length
        length, first = self.length, 0
        size = steps or length
        if not size or not 0 <= start <= size:
            raise DataError(f"{self.words} has {size} batches per epoch, expected over {start}")
        if steps is not None and not anew:
            first = number * steps
        elif length is not None:
            first, size = number * length * (seed is not None), min(size, length)
        yield from self._read(self._order(range(first + start, first + size), length, seed))
        self._event("on_epoch_end")

    def _order(self, places: range, length: int | None, seed: int | None) -> Iterator[int]:
        """The numbers of the batches at these places of all passes, one after the other."""
        if length is None:
            yield from places
            return
        order, of = np.arange(length), -1
        for place in places:
            number, within = divmod(place, length)
            if seed is not None and number != of:
                order, of = np.random.default_rng((seed, number)).permutation(length), number
            yield int(order[within])

    def _read(self, numbers: Iterable[int]) -> Iterator[Any]:
        """Read batches in this order, on as many threads as the dataset asks for."""
        workers = getattr(self._dataset, "workers", 1)
        if workers <= 1:
            yield from map(self._dataset.__getitem__, numbers)
            return
        most = max(workers, getattr(self._dataset, "max_queue_size", 10))
        pool, waiting = ThreadPoolExecutor(workers, "reading batches"), deque()
        try:
            for number in numbers:
                waiting.append(pool.submit(self._dataset.__getitem__, number))
                if len(waiting) >= most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _event(self, name: str) -> None:
        getattr(self._dataset, name, lambda: None)()


def _is(made: Any, name: str, library: str) -> bool:
    """Whether a class or a base class is the library's, which need not be imported for this."""
    classes = type(made).__mro__
    return any(c.__name__ == name and c.__module__.partition(".")[0] == library for c in classes)


def is_source(made: Any) -> bool:
    """Whether a stream can be made of it; an array, or a list, is data in memory instead."""
    if isinstance(made, type):
        return False
    if _is(made, "DatasetV2", "tensorflow") or _is(made, "PyDataset", "keras"):
        return True
    of_arrays = any(hasattr(made, name) for name in ("__array__", "dtype", "__getitem__"))
    if of_arrays or isinstance(made, Sequence):
        return False
    return hasattr(made, "__iter__") or callable(made)


def source_of(made: Any) -> Source:
    """The Source that a user's object is; TypeError if it is none."""
    if not is_source(made):
        raise TypeError(
            "a stream must be a tf.data.Dataset, a keras.utils.PyDataset, a generator, or a "
            f"function that returns one, got a {type(made).__name__}"
        )
    if _is(made, "PyDataset", "keras"):
        return ByNumber(made)
    if _is(made, "DatasetV2", "tensorflow"):
        return Passes(
            lambda epoch: iter(made), "the tf.data.Dataset", size=lambda: _cardinality(made)
        )
    if hasattr(made, "__next__"):
        endless = isinstance(made, itertools.cycle | itertools.count)
        kind = "generator" if inspect.isgenerator(made) else type(made).__name__
        size = inf if endless else None
        return Passes(lambda epoch: iter(made), f"the {kind}", once=True, size=lambda: size)
    if hasattr(made, "__iter__"):  # for example a torch DataLoader
        words = f"the {type(made).__name__}"
        return Passes(lambda epoch: iter(made), words, size=lambda: _length(made))
    return Passes(_of_function(made), f"what {_name(made)}() returns", own=True)


def _cardinality(dataset: Any) -> float | None:
    number = int(dataset.cardinality())  # tf.data.INFINITE_CARDINALITY is -1
    return number if number >= 0 else inf if number == -1 else None


def _length(made: Any) -> int | None:
    with suppress(TypeError):  # it has no length
        return len(made)
    return None


def _name(function: Callable) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _of_function(function: Callable) -> Callable[[int], Iterator]:
    """The `begin` of a user's function, of no argument or of the epoch's number."""
    takes = 0
    with suppress(TypeError, ValueError):  # a signature that Python can't tell
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        given = inspect.signature(function).parameters.values()
        takes = sum(p.kind in kinds and p.default is p.empty for p in given)

    def begin(epoch: int) -> Iterator:
        made = function(epoch) if takes else function()
        if not is_source(made) or not hasattr(made, "__iter__"):
            raise DataError(
                f"function {_name(function)} must return batches one after the other (a generator, "
                f"a tf.data.Dataset), got a {type(made).__name__}"
            )
        return iter(made)

    return begin

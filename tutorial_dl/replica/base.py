"""`Replica`: a model as two flat vectors, the interface that strategies and the Trainer use.

A network's weights are many arrays of many shapes; every rule of parallel training treats them as
one long vector. A Replica connects the two: it owns the model and presents it as `parameters[n]`
and `gradient[n]`, where `segments` lists the part of the vectors that belongs to each layer.

With `place`, a strategy moves the two vectors where it needs them, typically into memory that all
ranks of a node share (`Team.empty`), so that reducing gradients needs no copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tutorial_dl.data.dataset import Batch, each_array

if TYPE_CHECKING:
    from numba_kernels.optimizers import Optimizer


@dataclass(frozen=True)
class Segment:
    """One layer's array inside the flat vector: `vector[offset : offset + size].reshape(shape)`."""

    name: str
    offset: int  # elements
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    def of(self, vector: np.ndarray) -> np.ndarray:
        """The view of this segment in `vector` (no copy), in its own shape."""
        return vector[self.offset : self.offset + self.size].reshape(self.shape)


def lay_out(arrays: Iterable[tuple[str, tuple[int, ...]]], align: int = 1) -> tuple[Segment, ...]:
    """Place named arrays one after the other; each starts at a multiple of `align` elements.

    Gaps are zero and have zero gradient, so every optimizer here leaves them at zero.
    """
    segments, end = [], 0
    for name, shape in arrays:
        offset = -(-end // align) * align
        segments.append(Segment(name, offset, tuple(shape)))
        end = offset + segments[-1].size
    return tuple(segments)


def length(segments: tuple[Segment, ...]) -> int:
    return max((s.offset + s.size for s in segments), default=0)


def plain(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and targets of a batch, for a model that takes one array of each."""
    x, y, *weights = batch
    if weights:
        raise ValueError("this model takes no weights of samples; Keras models do")
    if isinstance(y, tuple) and not y:
        raise ValueError("this model needs targets; Keras models with add_loss do without")
    return x, y


class Brought(NamedTuple):
    """An optimizer that a model brings along; see `Replica.own_optimizer`."""

    optimizer: Optimizer
    schedule: Callable[[int], float] | None  # the learning rate by the step, if it changes
    clip_norm: float | None
    name: str  # in the model's library
    by_default: bool  # whether it is the one that the library chooses if none is given


class TrainedBy(NamedTuple):
    """What has trained a model, for `Replica.save`: the optimizer and its state.

    `slots`, shape (k, n), are its running averages, as in the optimizer's State. None: no rank has
    them for all weights, as with elastic averaging, where each worker has its own.
    """

    optimizer: Optimizer  # with the present learning rate
    slots: np.ndarray | None
    updates: int
    schedule: Callable[[int], float] | None = None  # as in `Brought`
    clip_norm: float | None = None


class Replica:
    """One rank's copy of the model: the base class of all replicas.

    A subclass sets `parameters`, `gradient` and `segments`, and has `compute_gradient` and
    `evaluate`; everything else has a default. `tutorial_dl.replica.check` tells whether a new
    replica keeps the contract; `replica.of` accepts objects of other classes that have the
    required attributes (`REQUIRED`).

    Attributes:
        parameters, gradient: Flat arrays, shape (n,), same dtype (float32 unless asked otherwise).
        segments: The place of each layer's array in them.
        state: Flat array, shape (k,), that is averaged over ranks but not optimised (moving
            statistics of batch normalisation); length 0 if there is none. It may be a read-only
            copy, so assign all of it to change it: `replica.state = average`.
    """

    parameters: np.ndarray
    gradient: np.ndarray
    segments: tuple[Segment, ...]
    state: np.ndarray = np.zeros(0, np.float32)
    # Optional attributes.
    model: Any = None  # the Keras model inside
    saved_as: tuple[str, ...] = (".npz",)  # what file names of `save` may end in
    saves_optimizer: bool = False  # whether `save` has a second argument, a TrainedBy or None
    uses_team: bool = False  # whether the loops are to call `use_team`
    # How the replica computes a "gradient" and an "evaluation": "graph", "xla" or "eager"; None if
    # there is no choice. Where `compiles`, compilation.py may call `seconds_by` and `compile_by`
    # (keras_xla.py).
    compiled: dict[str, str] | None = None
    compiles: bool = False
    refuses_xla: str = "it is no Keras model"
    # Seeds and counters of the model's generators, int64 (2k,). Loops read and assign it when
    # training begins (random_state.py), and checkpoints hold it.
    random: np.ndarray | None = None
    # Sums as of `measure`, over the samples of `compute_gradient` since {} was assigned; None: it
    # counts none. Loops assign it at the beginning of an epoch; `metrics_of` makes metrics of it.
    trained: dict[str, Any] | None = None
    counts_training: bool = False  # whether it can count so; loops in step then assign {}
    fixed_batch: int | None = None  # the number of samples that each batch must have
    # Whether `compute_gradient` changes `parameters` (SpectralNormalization does): all ranks that
    # share them must then compute each batch together. (`check` does not fit such a replica.)
    changes_parameters: bool = False
    constrained: bool = False  # whether `constrain` is to be called
    # What this rank holds of the whole model, and with which ranks: a Holding; None: all of it
    holding: Any = None
    # Whether `measure` is collective, so that all ranks must be given every batch, also with their
    # share of it empty
    measures_together: bool = False
    # What the loss is multiplied by while its gradient is computed, and `gradient` divided by; None
    # if the replica can't do so. strategies/loss_scale.py assigns it.
    loss_scale: float | None = None
    # Whether `loss_scale="auto"` means "dynamic"; the Trainer asks once, when it is made.
    computes_in_float16: bool = False
    # Whether `compute_gradient` has the option `apart=(first, last)`, a part of the gradient that
    # may stay elsewhere in memory; strategies.Synchronous then uses it. `own`, int64 (3, parts),
    # has offsets in `gradient`, sizes and addresses; Synchronous hands them to Step.own after each
    # gradient. The numbers there must be multiplied by the factor.
    keeps_apart: bool = False
    own: np.ndarray | None = None
    own_factor: float = 1.0

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        """Fill `gradient` with the gradient of the batch's mean loss; return (mean loss, samples).

        A batch of 0 samples fills `gradient` with zeros and returns (0.0, 0).
        """
        raise NotImplementedError

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Metrics averaged over all samples of `batches`, with at least "loss" and "samples"."""
        raise NotImplementedError

    def measure(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Numbers that sum over the samples of `batches`, by name, and "samples"; for `metrics_of`.

        Ranks add up what each has measured on its share of the samples. By default, all that
        `evaluate` returns are means over samples. Without samples, "samples" is enough.
        """
        found = self.evaluate(batches)
        samples = found["samples"]
        return found | {name: found[name] * samples for name in found if name != "samples"}

    def metrics_of(self, sums: dict[str, Any]) -> dict[str, float]:
        """The metrics that `sums` amount to, those of `measure` added up over any ranks."""
        samples = sums["samples"] or 1
        return {name: float(sums[name] / samples) for name in sums if name != "samples"}

    def try_out(self, batch: Batch, shared: bool, by_team: bool = True) -> None:
        """Before training, with a few samples: raise ValueError if it would not be exact.

        The Trainer calls it on every rank, with the same samples.

        Args:
            batch: Samples to try the model on.
            shared: Whether each batch is cut into parts that ranks compute (or a rank, one after
                the other), so that the loss must be a mean over samples.
            by_team: Whether only the ranks of `use_team` share a batch, all of them each.
        """

    def predict(self, x: Any) -> Any:
        """The model's outputs for inputs `x`, samples first.

        Trainer.predict calls it on every rank; users may, on a single one.
        """
        raise NotImplementedError(f"{type(self).__name__} has no predict")

    def predictions(self, inputs: Iterable[Any], one: Any) -> list[Any]:
        """`predict` of each of `inputs`; of none, a list with outputs of length 0.

        `one` has the inputs of one sample. Every rank calls it, each with any number of inputs.
        """
        parts = [self.predict(x) for x in inputs]
        return parts or [each_array(lambda a: a[:0], self.predict(one))]

    def save(self, path: Path | str) -> None:
        """Write the trained model to a file, whose name ends as `saved_as` says.

        Here: one array per segment, by its name, as numpy.load reads them. A replica whose
        `holding` is a part of a model is also given `parameters`, those of the whole model.
        """
        save_arrays(self, path, self.segments, self.parameters)

    def own_optimizer(self, given: Any = None) -> Brought | None:
        """The optimizer that the model was compiled with, or `given`, one of the same library.

        None if there is none; ValueError if it can't be used.
        """
        return None

    def use_team(self, team: Any) -> None:
        """Take the ranks that compute this rank's batches together, for layers that need them.

        The loop calls it before the first step; again if a model trains on other ranks later; with
        a master also after a failure, with a new team. The last team counts.
        """

    def constrain(self, parameters: np.ndarray) -> None:
        """Move these parameters, shape (n,), to where the model allows them (MaxNorm, NonNeg).

        Strategies call it after each update, on workers and masters.
        """

    @property
    def gradient_is_finite(self) -> bool:
        """Whether the gradient just computed is free of NaN and infinity.

        Strategies and workers ask after every gradient, before they exchange it. A replica that
        has already checked it sets an attribute instead (see KerasReplica).
        """
        return isfinite(np.dot(self.gradient, self.gradient))  # a quick pass that finds any NaN

    def place(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        """Move both vectors, values included, into the given memory and use it from now on.

        Both must be contiguous, of this replica's length and dtype, and 64-byte aligned, else
        nothing moves and ValueError is raised. Either may be the vector that the replica already
        uses. Other code may change `parameters` between two calls of this replica, so the replica
        keeps no copy of them.
        """
        check_place(self, parameters, gradient)
        parameters[:], gradient[:] = self.parameters, self.gradient
        self._hold(parameters, gradient)

    def swap(self) -> None:
        """Exchange the memory of `parameters` and `gradient`, contents included, without a copy."""
        self._hold(self.gradient, self.parameters)

    def __init_subclass__(cls, **options: Any) -> None:
        """A class with an `evaluate` of its own, and nothing else, measures what that returns."""
        super().__init_subclass__(**options)
        if "evaluate" in vars(cls) and "measure" not in vars(cls):
            cls.measure, cls.metrics_of = Replica.measure, Replica.metrics_of

    @property
    def can_swap(self) -> bool:
        """Whether a worker may call `swap` to receive weights in the gradient's place (Client).

        A class that overrides `place` alone would inherit a `swap` that doesn't fit it.
        """
        return can_swap(type(self))

    def _hold(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        """Use this memory; a subclass that has views of the vectors makes them anew here."""
        self.parameters, self.gradient = parameters, gradient


def can_swap(kind: type) -> bool:
    """Whether a class has a `swap` at least as derived as its `place`."""
    classes = kind.__mro__
    swap, place = (
        next((i for i, one in enumerate(classes) if name in vars(one)), len(classes))
        for name in ("swap", "place")
    )
    return swap < len(classes) and swap <= place


REQUIRED = ("parameters", "gradient", "segments", "compute_gradient", "evaluate", "place")


class Around(Replica):
    """A Replica around another object: what a subclass does not define is the inner object's.

    Hooks that the object lacks have their defaults. `own` are further attributes of this object.
    """

    inner: Any = None

    def __init__(self, inner: Any, **own: Any) -> None:
        vars(self).update(own, inner=inner)

    @property
    def can_swap(self) -> bool:
        replica = isinstance(self.inner, Replica)
        return self.inner.can_swap if replica else can_swap(type(self.inner))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self) or hasattr(type(self), name):  # the latter for the properties below
            super().__setattr__(name, value)
        else:
            setattr(self.inner, name, value)


def _of_inner(name: str) -> property:
    """The inner object's attribute or method; if it has none, the default."""

    def get(self: Around) -> Any:
        kind, default = type(self.inner), vars(Replica).get(name)
        # A wrapper that passes on what it lacks may have an `evaluate` of its own.
        by_evaluate = name in ("measure", "metrics_of") and hasattr(kind, "evaluate")
        if not by_evaluate or hasattr(kind, name):
            with suppress(AttributeError):
                return getattr(self.inner, name)
        if name == "uses_team":
            return hasattr(self.inner, "use_team")
        return default.__get__(self) if hasattr(default, "__get__") else default

    return property(get, lambda self, value: setattr(self.inner, name, value))


for _name in (
    *Replica.__annotations__, "gradient_is_finite", "compute_gradient", "evaluate", "measure",
    "metrics_of", "try_out", "predict", "save", "place", "use_team", "swap", "constrain",
    "own_optimizer",
):  # fmt: skip
    setattr(Around, _name, _of_inner(_name))


def check_ending(replica: Replica, path: Path | str) -> None:
    """Raise ValueError unless `replica.save(path)` can write such a file."""
    if Path(path).suffix not in replica.saved_as:
        raise ValueError(
            f"cannot save the model as {str(path)!r}: the name must end in "
            f"{' or '.join(replica.saved_as)}"
        )


@contextmanager
def written(replica: Replica, path: Path | str) -> Iterator[Path]:
    """Yields another name to write to, which then becomes `path` at once, or is removed."""
    check_ending(replica, path)
    path = Path(path)
    part = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def save_arrays(
    replica: Replica, path: Path | str, segments: Iterable[Segment], parameters: np.ndarray
) -> None:
    """Write one array per segment, by its name, as numpy.load reads them."""
    with written(replica, path) as part:
        np.savez(part, **{one.name: one.of(parameters) for one in segments})


def check_place(replica: Replica, parameters: np.ndarray, gradient: np.ndarray) -> None:
    """Raise ValueError unless a replica's vectors can move into this memory (see `place`)."""
    like = replica.parameters
    for name, vector in (("parameters", parameters), ("gradient", gradient)):
        if vector.shape != like.shape or vector.dtype != like.dtype:
            raise ValueError(
                f"place: {name} is {vector.dtype} {vector.shape}, "
                f"expected {like.dtype} {like.shape}"
            )
        if not vector.flags.c_contiguous or not vector.flags.writeable:
            raise ValueError(f"place: {name} must be contiguous and writeable")
        if vector.ctypes.data % 64:
            raise ValueError(
                f"place: {name} starts at address {vector.ctypes.data:#x}, "
                "expected a multiple of 64 bytes (use Team.empty)"
            )


def assign(replica: Replica, parameters: np.ndarray, state: np.ndarray) -> None:
    """Copy parameters and state of another copy of the model, or of an earlier time."""
    replica.parameters[:] = parameters
    if state.size:
        replica.state = np.copy(state)


class LossNotFinite(FloatingPointError):
    """The loss is NaN or infinite; other FloatingPointErrors of a step are about the gradient."""

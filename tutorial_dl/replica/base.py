"""`Replica`: a model as two flat vectors, the interface that strategies and the Trainer use.

A network's weights are many arrays of many shapes; every rule of parallel training treats them as
one long vector. A Replica connects the two: it owns the model and presents it as `parameters[n]`
and `gradient[n]`, where `segments` lists the part of the vectors that belongs to each layer.

With `place`, a strategy moves the two vectors where it needs them, typically into memory that all
ranks of a node share (`Team.empty`), so that reducing gradients needs no copy. What else differs
between replicas stands in their `traits`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tutorial_dl.data.dataset import Batch

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

    def __getattr__(self, name: str) -> Any:
        words = "is gone: write Segment.view" if name == "of" else "does not exist"
        raise AttributeError(f"Segment.{name} {words}")

    def view(self, vector: np.ndarray) -> np.ndarray:
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


class CompiledOptimizer(NamedTuple):
    """The optimizer that a model was compiled with; see `Replica.own_optimizer`."""

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
    schedule: Callable[[int], float] | None = None  # as in `CompiledOptimizer`
    clip_norm: float | None = None


@dataclass(frozen=True)
class Traits:
    """What a replica is, and what it has beside the members of every Replica.

    Attributes:
        library: "keras" if its `model` is a Keras model; "" for a model in numpy.
        saved_as: What file names of `save` may end in.
        saves_optimizer: `save` takes a TrainedBy or None as its second argument.
        uses_team: The loops call `use_team`.
        constrained: Strategies call `constrain`.
        fixed_batch: The number of samples that each batch must have.
        changes_parameters: `compute_gradient` changes `parameters` (SpectralNormalization does), so
            all ranks that share them must compute each batch together. (`check` does not fit it.)
        measures_together: `measure` is collective: all ranks must be given every batch, also with
            their share of it empty; and it has `predictions` (runtime/evaluation.py).
        whole_batches: A batch of validation is measured by one rank, since something that is
            measured is no mean over samples.
        computes_in_float16: `loss_scale="auto"` means "dynamic".
        refuses_xla: Why XLA can't compile it; "" if it may be tried.

        compiles: There is a choice how it computes: it has `compilation` (keras/xla.py).
        counts_training: It has `trained`, sums as of `measure` over the samples of
            `compute_gradient` since {} was assigned; None: it counts none. Loops assign it at the
            beginning of an epoch.
        scales_loss: It has `loss_scale`, which its loss is multiplied by while it computes the
            gradient, which is divided by it. strategies/loss_scale.py assigns it.
        checks_gradient: It has `gradient_is_finite`, whether the gradient just computed is free of
            NaN and infinity; else those who ask look at it themselves.
        keeps_apart: `compute_gradient` has the option `apart=(first, last)`, a part of the gradient
            that may stay elsewhere in memory. `own`, int64 (3, parts), has offsets in `gradient`,
            sizes and addresses, for `Step.own`; the numbers there must be multiplied by
            `own_factor`.
        swaps: It has `swap()`, which exchanges the memory of both vectors, contents included, so
            that a worker receives weights in the gradient's place.
        tries_out: It has `try_out(batch, shared, by_team)`, which raises ValueError if training
            would not be exact. The Trainer calls it on every rank, with the same samples. `shared`:
            each batch is cut into parts that ranks compute (or a rank, one after the other), so the
            loss must be a mean over samples. `by_team`: only the ranks of `use_team` share it.
    """

    library: str = ""
    saved_as: tuple[str, ...] = (".npz",)
    saves_optimizer: bool = False
    uses_team: bool = False
    constrained: bool = False
    fixed_batch: int | None = None
    changes_parameters: bool = False
    measures_together: bool = False
    whole_batches: bool = False
    computes_in_float16: bool = False
    refuses_xla: str = "it is no Keras model"

    compiles: bool = False
    counts_training: bool = False
    scales_loss: bool = False
    checks_gradient: bool = False
    keeps_apart: bool = False
    swaps: bool = False
    tries_out: bool = False


class Replica:
    """One rank's copy of the model: the base class of all replicas.

    A subclass sets `parameters`, `gradient` and `segments`, and has `compute_gradient` and
    `measure`; everything else has a default. `tutorial_dl.replica.check` tells whether a new
    replica keeps the contract; `replica.of` accepts objects of other classes that have the
    required attributes (`REQUIRED`).

    Attributes:
        parameters, gradient: Flat arrays, shape (n,), same dtype (float32 unless asked otherwise).
        segments: The place of each layer's array in them.
        state: Flat array, shape (k,), that is averaged over ranks but not optimised (moving
            statistics of batch normalisation); length 0 if there is none. It may be a read-only
            copy, so assign all of it to change it: `replica.state = average`.
        random: Seeds and counters of the model's generators, int64 (2k,), or None. Loops read and
            assign it when training begins (random_state.py), and checkpoints hold it.
        holding: What this rank holds of the whole model, and with which ranks; None: all of it.
        traits: What else there is to know of it.
    """

    parameters: np.ndarray
    gradient: np.ndarray
    segments: tuple[Segment, ...]
    state: np.ndarray = np.zeros(0, np.float32)
    random: np.ndarray | None = None
    holding: Any = None  # a Holding
    traits: Traits = Traits()

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        """Fill `gradient` with the gradient of the batch's mean loss; return (mean loss, samples).

        A batch of 0 samples fills `gradient` with zeros and returns (0.0, 0).
        """
        raise NotImplementedError

    def measure(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Numbers that sum over the samples of `batches`, by name: at least "loss" and "samples".

        Ranks add up what each has measured on its share of the samples. Metrics are means over the
        samples, unless the replica has `metrics_of(sums)`. Without samples, "samples" is enough.
        """
        raise NotImplementedError

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Metrics averaged over all samples of `batches`, with at least "loss" and "samples"."""
        sums = self.measure(batches)
        found = self.metrics_of(sums) if hasattr(self, "metrics_of") else means(sums)
        return {"loss": 0.0} | found | {"samples": int(sums["samples"])}

    def predict(self, x: Any) -> Any:
        """The model's outputs for inputs `x`, samples first.

        Trainer.predict calls it on every rank; users may, on a single one.
        """
        raise NotImplementedError(f"{type(self).__name__} has no predict")

    def save(self, path: Path | str) -> None:
        """Write the trained model to a file, whose name ends as `traits.saved_as` says.

        Here: one array per segment, by its name, as numpy.load reads them. A replica whose
        `holding` is a part of a model is also given `parameters`, those of the whole model.
        """
        save_arrays(self, path, self.segments, self.parameters)

    def own_optimizer(self, given: Any = None) -> CompiledOptimizer | None:
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

    def _hold(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        """Use this memory; a subclass that has views of the vectors makes them anew here."""
        self.parameters, self.gradient = parameters, gradient


def measure(replica: Any, batches: Iterable[Batch]) -> dict[str, Any]:
    """What `replica.measure` returns; or what its `evaluate` does, if it has only that."""
    if not _only_evaluates(type(replica)):
        return replica.measure(batches)
    found = replica.evaluate(batches)
    samples = found["samples"]
    return found | {name: found[name] * samples for name in found if name != "samples"}


def metrics_of(replica: Any, sums: dict[str, Any]) -> dict[str, float]:
    """The metrics that `sums` amount to, those of `measure` added up over any ranks."""
    if hasattr(replica, "metrics_of") and not _only_evaluates(type(replica)):
        return replica.metrics_of(sums)
    return means(sums)


def means(sums: dict[str, Any]) -> dict[str, float]:
    samples = sums["samples"] or 1
    return {name: float(sums[name] / samples) for name in sums if name != "samples"}


def _only_evaluates(kind: type) -> bool:
    """Whether a class has an `evaluate` of its own, which returns means, and no `measure`."""
    own = next((one for one in kind.__mro__ if {"measure", "evaluate"} & vars(one).keys()), kind)
    return "measure" not in vars(own)


def try_out(replica: Replica, batch: Batch, shared: bool, by_team: bool = True) -> None:
    """Before training, with a few samples: raise ValueError if it would not be exact."""
    if replica.traits.tries_out:
        replica.try_out(batch, shared, by_team)


def compiled(replica: Replica) -> dict[str, str] | None:
    """How it computes its "gradient" and its "evaluation"; None if there is no choice."""
    return replica.compilation.chosen if replica.traits.compiles else None


def trained_sums(replica: Replica) -> dict[str, Any] | None:
    """Sums of metrics over the samples it trained on in this epoch; None if it counts none."""
    return replica.trained if replica.traits.counts_training else None


def gradient_is_finite(replica: Replica) -> bool:
    """Whether the gradient just computed is free of NaN and infinity.

    Strategies and workers ask after every gradient, before they exchange it.
    """
    if replica.traits.checks_gradient:
        return replica.gradient_is_finite
    return isfinite(np.dot(replica.gradient, replica.gradient))  # a quick pass that finds any NaN


REQUIRED = ("parameters", "gradient", "segments", "compute_gradient", "place")  # and one of:
MEASURING = ("measure", "evaluate")


def check_ending(replica: Replica, path: Path | str) -> None:
    """Raise ValueError unless `replica.save(path)` can write such a file."""
    if Path(path).suffix not in replica.traits.saved_as:
        raise ValueError(
            f"cannot save the model as {str(path)!r}: the name must end in "
            f"{' or '.join(replica.traits.saved_as)}"
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
        np.savez(part, **{one.name: one.view(parameters) for one in segments})


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

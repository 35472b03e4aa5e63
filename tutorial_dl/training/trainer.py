"""`Trainer`: trains any model by any strategy."""

import inspect
import weakref
from contextlib import contextmanager, nullcontext

import numpy as np

from numba_kernels.team.team import abort_all

from ..data import dataset_of
from ..data.streams import is_stream
from ..replica.base import check_ending
from ..runtime.compilation import choose as choose_way
from ..runtime.errors import Terminated, TrainingError
from ..runtime.evaluation import predict
from ..runtime.handing_out import check_epochs, opened
from ..runtime.history import History
from ..runtime.termination import WARNINGS, heeding
from .plan import Plan
from .progress import progress as progress_of

__all__ = ["History", "Trainer", "TrainingError"]


@contextmanager
def reported(*by_all: type[Exception]):
    """If this rank fails within, the other ranks are notified; not so of what all ranks raise."""
    try:
        yield
    except (Terminated, *by_all):
        raise
    except BaseException as error:
        abort_all(error)
        raise


class Trainer:
    """Trains a model on a dataset by a strategy, on all ranks of the strategy's team.

    Args:
        model: A Replica, a compiled keras.Model, or a Game (replica/gan.py).
        dataset: Training and validation data, the same on every rank: a Dataset, or arrays
            ((x, y), (x_val, y_val)), or (x, y), of which the last samples are held out; see
            `data.loading.dataset_of` for weights of samples, and for data without targets. Or
            streams, (train, validation) or train alone: tf.data.Dataset, keras.utils.PyDataset,
            generators (`data.stream`); then the history has no validation columns.
        strategy: Name of a strategy, or a strategy object (which has its team). Of a game: for
            both players, or a pair.
        optimizer: Name of an optimizer, or an optimizer object, ours or Keras's. None: the one that
            the model was compiled with, with its learning rate, schedule and clipping; without one,
            the strategy's default, which is "adam" for most. Of a game: a pair. A RunConfig: what
            its options say.
        batch_size: Samples per update, over all ranks together (the global batch size B): more
            ranks do the same updates faster and end with the same weights. With an asynchronous
            strategy: samples per gradient of a worker. A stream brings its own batches.
        seed: Seed of the order of samples.
        team: The ranks that train, unless the strategy object has a team; None: all ranks.
        progress: Whether rank 0 shows a progress bar; a line an epoch where there is no terminal.
        validation_batch_size: Samples that a rank evaluates at once; changes no result.
        timeline: A `timeline.Timeline` to record what every rank does, or None.
        learning_rate: A number, a function of the step (`schedules`), or a ScheduleConfig, which
            counts in epochs; None: the optimizer's.
        correct_momentum: Correct the momentum when the rate changes, see `Optimizer.at_rate`; None:
            yes, except with the schedule of a compiled optimizer, as Keras doesn't.
        accumulate: Number of micro-batches in which each rank computes its share of a batch, one
            after the other: takes less memory, and changes nothing else
            (replica/proxy.py).
        clip_norm: Largest norm of the gradient of the whole batch; longer gradients are scaled down
            to it. None: no clipping.
        callbacks: See `callbacks`; called in this order, on all ranks. Most of Keras's callbacks
            work, too (keras_callbacks.py).
        checkpoint: Folder for checkpoints that all ranks see; None: no checkpoints. With a folder,
            a batch system's warning (SIGTERM, SIGUSR1, SIGUSR2) writes a checkpoint and raises
            Terminated.
        checkpoint_every: Steps between two checkpoints; None: at the end of each epoch.
        keep_checkpoints: Number of newest checkpoints to keep.
        check_every: Steps between two checks that all ranks have the same weights, besides the
            check after each epoch. (With a master, workers' weights differ.)
        loss_scale: For models that compute in half precision (strategies/loss_scale.py): "auto" is
            "dynamic" for float16 and None otherwise; a number is a fixed scale.
        validation_split: The share of the samples to hold out for validation, if the data have no
            validation part; None: 0.2.
        class_weight: Class -> weight of its samples in the loss of training, or "balanced"; see
            `data.weights.by_class`.
        shuffle: Whether each epoch has an order of samples of its own (Batches), or of batches for
            a PyDataset. Other streams have their own order.
        compile: How TensorFlow computes a Keras model: "graph", "xla", or "auto", which measures
            both on a batch if the run is long enough (runtime/compilation.py).

    Attributes, besides those of its Run (runtime/run.py: steps, history, stopped, replica ...):
        run: The state of training.
        loop: The loop that trains.

    Raises:
        ValueError, TypeError: If an argument can't be used, before anything is trained.
    """

    def __init__(self, *arguments, **named):  # see __signature__
        plan = Plan(*arguments, **named)
        self.loop, self.progress = plan.loop(), plan.progress
        self.run = self.loop.run

    Plan.__init__.__qualname__ = "Trainer"  # in errors of Python's about arguments
    __init__.__signature__ = inspect.signature(Plan.__init__)

    @classmethod
    def of(cls, loop, progress: bool = True) -> "Trainer":
        """A Trainer for a `Run` of your own, for example of several players, or with its own clock.

        `loop` is InStepLoop(run) or MasterLoop(run). For checkpoints, set
        `run.saving = loop.saving(folder, every, keep)` before.
        """
        trainer = cls.__new__(cls)
        trainer.run, trainer.loop, trainer.progress = loop.run, loop, progress
        return trainer

    @contextmanager
    def _together(self, what: str = ""):
        """Within, all ranks have the same state, and are notified if this one fails."""
        if what and self.loop.apart:
            raise RuntimeError(
                f"{what} needs all ranks, but callbacks of a run with a master run on one rank; "
                "use trainer.replica.evaluate(batches) or .predict(x) there"
            )
        self.run.front = weakref.ref(self)  # dropping the Trainer frees its windows at once
        with reported():
            self.run.agree(self.loop)
            yield

    def fit(self, epochs: int) -> History:
        """Train for `epochs` more epochs.

        An epoch that was resumed in the middle, from a checkpoint, counts as the first. After a
        failure, once the team is usable again, training continues from rank 0's weights at the
        beginning of the interrupted epoch. If this rank fails, for any reason, the other ranks are
        notified.

        Returns:
            The history of all epochs so far.

        Raises:
            TrainingError: If the loss is not finite.
            PeerError: If another rank failed.
            Terminated: After SIGTERM, SIGUSR1 or SIGUSR2.
        """
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}")
        if self.run.saving is not None:
            with reported(ValueError):
                self.run.saving.check_folder()  # before anything can be overwritten
        run, run.stopped = self.run, None
        check_epochs(run.dataset, len(run.history.epochs) + epochs)
        try:
            with self._together():
                seen = nullcontext()
                if run.timeline is not None:
                    seen = run.timeline.over(run.team, lambda: not run.history.lost)
                # They end a process at once, and are caught only to write a checkpoint first.
                heeded = nullcontext([]) if run.saving is None else heeding(*WARNINGS)
                choose_way(run, self.loop, epochs, self.progress)
                with seen, heeded as signals, self._bar(epochs) as bar:
                    run.notify("on_fit_begin")
                    self.loop.train(epochs, bar, signals)
        finally:
            run.batches.close()
        return run.history

    def fit_to(self, epochs: int) -> History:
        """Train until there are `epochs` in all, including those of a resumed run.

        Does nothing if there are already, or if the run was stopped before (`stopped`).
        """
        left = epochs - len(self.history.epochs)
        if left > 0 and self.stopped is None:
            return self.fit(left)
        with self._together():
            self.run.show(True, ends=True)
            self.run.notify("on_fit_end")
        return self.history

    def resume(self) -> bool:
        """Resume from the newest complete checkpoint; False if there is none. Collective.

        On equally many ranks, the run ends with the same bits as an uninterrupted one; on another
        number of ranks it sees the same samples in the same order.

        Raises:
            CheckpointError: If the checkpoint is from another model or other settings.
            ValueError: Without `checkpoint`.
        """
        if self.saving is None:
            raise ValueError("resume() needs Trainer(checkpoint=folder)")
        with self._together():
            return self.loop.load()

    def stop(self, why: str) -> None:
        """For callbacks: make this epoch the last one.

        It is enough if one rank calls it; with a master, only rank 0's call has an effect.
        """
        self.run.stop(why)

    def evaluate(self, data=None) -> dict[str, float]:
        """Metrics over the validation data (or `data`), each rank evaluating its share.

        `data` are a part of a dataset, such as `dataset.train`, or a stream.
        """
        if data is None and self.dataset.validation is None:
            raise ValueError(f"data '{self.dataset.name}' have no validation part: evaluate(data)")
        with self._together("evaluate()"):
            return self.run.evaluate(self._of_stream(data))

    def predict(self, inputs) -> np.ndarray:
        """The model's outputs for `inputs`, shape (samples, ...), in order, on every rank.

        Each rank computes its share. `inputs` are arrays, data such as `dataset.validation`, in
        memory or not, or a stream. For several outputs it returns a tuple or dict, as the model
        does.
        """
        with self._together("predict()"):
            data = self._of_stream(inputs)
            return predict(
                self.strategy.sharers, self.replica, data, self.run.validation_batch_size
            )

    def _of_stream(self, data):
        """A Stream of what a user has as one; anything else as it is. Collective."""
        if not is_stream(data):
            return data
        if self.strategy.sharers is not self.strategy.team:
            raise ValueError(
                f"{self.strategy.name}: this needs samples by number, not a stream: use arrays or "
                "HDF5 files"
            )
        return opened(dataset_of(data), self.team).train

    def save(self, path) -> None:
        """Write the trained model to a file, by rank 0; all ranks wait for it.

        A Keras model is saved as Keras does (.keras, .h5), with the optimizer that has trained it
        and its state, so that `fit` of the loaded model goes on. Other models are saved as arrays
        (.npz). The file is replaced at once, when it is complete.
        """
        check_ending(self.replica, path)
        with self._together("save()"):
            self.run.save_model(path)
            self.team.barrier()

    def check_agreement(self) -> None:
        """Raise ValueError on all ranks if they were given different data or settings."""
        with reported():
            self.run.check_agreement(self.loop)

    def _bar(self, epochs: int):
        words = f"{self.strategy.name} on {self.team.size} rank" + "s" * (self.team.size > 1)
        return progress_of(words, self.run, epochs, self.progress and self.team.rank == 0)


def _of_run(name: str) -> property:
    """An attribute that the Trainer's run has, and keeps."""
    return property(
        lambda self: getattr(self.run, name), lambda self, value: setattr(self.run, name, value)
    )


for _name in (
    "batches", "callbacks", "clip_norm", "clock", "dataset", "history", "layout", "optimizer",
    "players", "replica", "round", "save_model", "saving", "schedule", "steps", "steps_per_epoch",
    "stopped", "strategy", "team", "timeline", "validation_batch_size",
):  # fmt: skip
    setattr(Trainer, _name, _of_run(_name))

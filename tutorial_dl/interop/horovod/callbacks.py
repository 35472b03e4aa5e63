"""Callbacks for `model.fit`: equal weights at the start, averaged metrics, learning rates."""

import zlib

import keras
import numpy as np

from tutorial_dl.runtime.agreement import difference

from . import basics
from .basics import global_process_set
from .gradients import key
from .objects import allgather_object, broadcast_variables
from .wire import Average


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Broadcasts `root_rank`'s weights and optimizer state to all ranks at the start of training.

    It does so before the first batch; variables that are created during that batch (in a model
    without an input shape) follow after it. Random seeds, for example of dropout, are not
    broadcast.

    After each epoch, it compares the ranks' trainable weights, which a rate or a loss of one rank's
    own would have driven apart without a word. (Horovod does not.)

    Args:
        root_rank: The rank whose values are broadcast.
        local_variables: Variables that are not broadcast.
        check_weights: Whether weights are compared.
    """

    def __init__(self, root_rank, device="", local_variables=None, check_weights=True):
        super().__init__()
        self.root_rank, self.check_weights = root_rank, check_weights
        if hasattr(local_variables, "assign"):
            local_variables = [local_variables]
        self.local = {key(v) for v in local_variables or []}
        self.done: set[int] | None = set()

    def register_local_var(self, variable) -> None:
        self.local.add(key(variable))

    def on_train_begin(self, logs=None):
        self._broadcast()

    def on_train_batch_end(self, batch, logs=None):
        if self.done is not None:
            self._broadcast()
            self.done = None

    def on_epoch_end(self, epoch, logs=None):
        if not self.check_weights or basics.size() == 1:
            return
        weights = [v for v in self.model.trainable_variables if key(v) not in self.local]
        # By number, since Keras numbers names in the order in which a process makes models.
        sums = {
            f"checksum of trainable weights {i}": zlib.crc32(np.ascontiguousarray(v))
            for i, v in enumerate(weights)
        }
        rate = getattr(self.model.optimizer, "learning_rate", None)
        mine = sums if rate is None else {"learning rate": f"{float(rate):.7g}"} | sums
        every = allgather_object({name: str(value) for name, value in mine.items()})
        if words := difference(every):
            raise RuntimeError(
                f"after epoch {epoch + 1}, {words.partition(';')[0]}. A callback that goes by each "
                "rank's own loss, such as ReduceLROnPlateau, needs hvd.callbacks."
                "MetricAverageCallback() before it; and the optimizer must be a "
                "DistributedOptimizer (check_weights=False leaves this check out)"
            )

    def _broadcast(self) -> None:
        if self.done is None:
            return
        variables, optimizer = [*self.model.weights], self.model.optimizer
        if optimizer is not None:
            if self.model.built and not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            variables += optimizer.variables
            # Accumulated gradients belong to each rank until they are reduced.
            inner = getattr(optimizer, "inner_optimizer", optimizer)
            self.local |= {key(v) for v in getattr(inner, "_accumulated_gradients", [])}
        new = {key(v): v for v in variables if key(v) not in self.done | self.local}
        broadcast_variables(new.values(), self.root_rank)
        self.done |= new.keys()


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the epoch's metrics over ranks, for the callbacks after this one and for History.

    Every rank has the same weight, whatever its number of samples.
    """

    def __init__(self, device=""):
        super().__init__()

    def on_epoch_end(self, epoch, logs=None):
        if not logs or basics.size() == 1:
            return
        names = sorted(logs)
        values = np.array([float(logs[name]) for name in names])
        [mean] = global_process_set.wire().allreduce([values], Average, name=", ".join(names))
        logs.update(zip(names, mean.tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets learning rate = initial_lr x multiplier(epoch) for start_epoch <= epoch < end_epoch.

    Args:
        initial_lr: Learning rate at the start of training.
        multiplier: A function of the epoch; or a number m, for m ** (epoch - start_epoch).
        start_epoch, end_epoch: First epoch, and the one after the last (None: no end).
        staircase: Set it once per epoch. False: set it in every batch, with the fractional epoch
            epoch + batch / steps_per_epoch.
        momentum_correction: When the rate of an SGD with momentum changes, scale its velocity,
            which contains the old rate, by new / old (Goyal et al., arXiv 1706.02677, section 3).
        steps_per_epoch: Batches per epoch, if Keras does not know the number.
    """

    def __init__(
        self, initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True,
        momentum_correction=True, steps_per_epoch=None,
    ):  # fmt: skip
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr must be the learning rate at the start, got None")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase, self.momentum_correction = staircase, momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.multiplier = multiplier
        if not callable(multiplier):
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)
        self.epoch = 0

    def on_train_begin(self, logs=None):
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = (self.params or {}).get("steps")
        if not self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__}: the number of batches is unknown; give steps_per_epoch"
            )

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        over = self.end_epoch is not None and self.epoch >= self.end_epoch
        if self.epoch < self.start_epoch or over:
            return
        if not self.staircase:
            self._set(self.epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set(self.epoch)

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _set(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = float(optimizer.learning_rate), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        if self.momentum_correction and old and new != old and getattr(optimizer, "momentum", 0):
            velocities = getattr(optimizer, "momentums", getattr(optimizer, "_momentums", []))
            for velocity in velocities:
                if velocity is not None:
                    velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the rate from initial_lr / size to initial_lr over `warmup_epochs`, batch by batch.

    `initial_lr` is the rate for all ranks together. Goyal et al., arXiv 1706.02677, section 2.2.
    """

    def __init__(
        self, initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0
    ):
        def multiplier(epoch):
            epoch += 1 / self.steps_per_epoch  # so that each epoch ends at a whole number
            size = basics.size()
            return (epoch * (size - 1) / warmup_epochs + 1) / size

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose and basics.rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the best model so far, on rank 0 only.

    Put it after MetricAverageCallback, so that "best" refers to all ranks. `filepath` may also be
    assigned later; by default it is best_model.keras, or best_model.weights.h5 for weights only.
    Arguments are those of keras.callbacks.ModelCheckpoint.
    """

    def __init__(
        self, monitor="val_loss", verbose=0, save_weights_only=False, mode="auto",
        save_freq="epoch", filepath=None,
    ):  # fmt: skip
        if filepath is None:
            filepath = "best_model.weights.h5" if save_weights_only else "best_model.keras"
        super().__init__(
            filepath, monitor, verbose, save_best_only=True, save_weights_only=save_weights_only,
            mode=mode, save_freq=save_freq,
        )  # fmt: skip

    def _save_model(self, *args, **kwargs):
        if basics.rank() == 0:
            super()._save_model(*args, **kwargs)

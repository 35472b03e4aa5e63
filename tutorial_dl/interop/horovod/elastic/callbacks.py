"""Callbacks for `model.fit` in an elastic training function."""

import weakref

import keras
from keras.src.backend.tensorflow import trainer as _trainer


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state after every `batches_per_commit` batches, and after every epoch.

    Put it after the callbacks that update the state.
    """

    def __init__(self, state, batches_per_commit: int = 1):
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit must be at least 1, got {batches_per_commit}")
        self.state, self.batches_per_commit = state, batches_per_commit
        self.batches = 0  # since the last commit

    def on_train_begin(self, logs=None):
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches == self.batches_per_commit:
            self.batches = 0
            self.state.commit()

    def on_epoch_end(self, epoch, logs=None):
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Sets `state.batch` to the number of batches done in this epoch; 0 when it ends.

    If `fit` begins with `state.batch` above 0, its first epoch is so many batches shorter.
    """

    def __init__(self, state):
        super().__init__()
        self.state, self.done, self.steps = state, 0, None
        _note_iterators()

    def on_train_begin(self, logs=None):
        # `fit` has just made it. Validation makes others later.
        self.iterator = _iterators[-1]()
        self.done, self.steps = self.state.batch, self.iterator.num_batches
        self.given = self.iterator.steps_per_epoch

    def on_epoch_begin(self, epoch, logs=None):
        if self.done and self.steps:
            self.iterator.steps_per_epoch = max(1, self.steps - self.done)

    def on_train_batch_end(self, batch, logs=None):
        self.state.batch = self.done + batch + 1

    def on_epoch_end(self, epoch, logs=None):
        self.iterator.steps_per_epoch = self.given
        self.state.batch = self.done = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Sets `state.epoch` to the number of epochs done, also those before the ranks regrouped.

    So `fit` is called with epochs=all_of_them - state.epoch, or with initial_epoch=state.epoch.
    """

    def __init__(self, state):
        super().__init__()
        self.state, self.before = state, None

    def on_train_begin(self, logs=None):
        self.before = None

    def on_epoch_begin(self, epoch, logs=None):
        if self.before is None:  # Keras counts from 0, or from its argument initial_epoch
            self.before = self.state.epoch - epoch

    def on_epoch_end(self, epoch, logs=None):
        self.state.epoch = self.before + epoch + 1


_iterators: list[weakref.ref] = []  # the last one that Keras made


def _note_iterators() -> None:
    """Note the iterators that Keras makes; a callback has no other way to shorten an epoch."""
    kind = _trainer.TFEpochIterator
    if getattr(kind, "noted", False):
        return
    before = kind.__init__

    def __init__(self, *args, **kwargs):
        before(self, *args, **kwargs)
        _iterators[:] = [weakref.ref(self)]

    kind.__init__, kind.noted = __init__, True

"""Runs with a master that are stopped at a step, and whose weights count samples."""

import numpy as np
import pytest

EPOCHS, SAMPLES, BATCH = 3, 216, 12  # 216: whole batches for 1, 2, 3 workers


class Cut(RuntimeError):
    """The error by which a test ends a run."""


def at_step(step, act):
    """A callback that calls `act(trainer)` after this step."""
    from tutorial_dl.training.callbacks import Callback

    class There(Callback):
        def on_step_end(self, trainer, loss, samples):
            if trainer.steps == step:
                act(trainer)

    return There()


def cut_at(step, rank=None):
    """A callback that raises Cut, on `rank` or all, after the first step there is from this on."""
    from tutorial_dl.training.callbacks import Callback

    class CutThere(Callback):
        def on_step_end(self, trainer, loss, samples):
            if trainer.steps >= step and rank in (None, trainer.team.rank):
                raise Cut

    return CutThere()


def run_until(made, step):
    """Train until a step in which all ranks fail, or a master; then its workers raise PeerError."""
    from numba_kernels import PeerError

    made.callbacks.append(cut_at(step))
    fails = made.team.rank == 0 or not made.loop.has_master
    with pytest.raises(Cut if fails else PeerError):
        made.fit(EPOCHS)
    made.callbacks.pop()
    made.team.recover()


def same_bits(one, other):
    """Both runs have the same weights, and the same history apart from times."""
    np.testing.assert_array_equal(one.replica.parameters, other.replica.parameters)
    clocks = ("seconds", "samples_per_second")
    for a, b in zip(one.history.epochs, other.history.epochs, strict=True):
        assert {k: a[k] for k in a if k not in clocks} == {k: b[k] for k in b if k not in clocks}


def resumed_bit_for_bit(make, folder, cuts, state):
    """Runs that `make(place, **options)` makes end with the same bits wherever they are cut.

    cuts: (checkpoint_every, step of the cut, step of the last checkpoint before it)
    state: the optimizer's of a strategy, an array
    """
    whole = make(None)
    whole.fit(EPOCHS)
    assert whole.steps == 33
    for every, step, at in cuts:
        place = f"{folder}_{every}_{step}"
        cut, resumed = (make(place, checkpoint_every=every) for _ in range(2))
        run_until(cut, step)
        assert resumed.resume() and resumed.steps == at
        assert alike(resumed.team, resumed.replica.parameters)
        resumed.fit_to(EPOCHS)
        assert resumed.steps == 33
        same_bits(whole, resumed)
        np.testing.assert_array_equal(state(whole.strategy), state(resumed.strategy))
        again = make(place)  # resumes a run that has ended
        assert again.resume() and again.steps == 33
        assert len(again.fit_to(EPOCHS).epochs) == EPOCHS
        same_bits(whole, again)


def alike(team, vector) -> bool:
    return bool((team.allgather(np.ascontiguousarray(vector)) == vector).all())


def counting(team, folder=None, synchronous=False, data=None, batch_size=BATCH, **where):
    """A trainer whose weights count samples (support/faults.py)."""
    from faults import Counting, numbers

    from numba_kernels.optimizers import SGD
    from tutorial_dl import Trainer
    from tutorial_dl.strategies import Downpour

    rule = Downpour(team=team, synchronous=synchronous, **where)
    return Trainer(
        Counting(SAMPLES), data or numbers(SAMPLES), rule, SGD(float(batch_size)),
        batch_size,
        progress=False, checkpoint=folder, checkpoint_every=4,
    )  # fmt: skip


def counted(trainer, epochs=EPOCHS):
    """Check that weights and history have counted each sample once per epoch."""
    np.testing.assert_allclose(trainer.replica.parameters, -epochs, atol=1e-4)
    history = trainer.history
    assert [row["epoch"] for row in history.epochs] == [*range(1, epochs + 1)]
    for row in history.epochs:
        seen = row["samples_per_second"] * row["seconds"]
        assert seen == pytest.approx(SAMPLES, rel=1e-6), history.epochs
        assert row["loss"] == pytest.approx(0.5)


def some_digits(samples, kept=None):
    """The first `samples` digits to train on, and all or `kept` for validation."""
    from tutorial_dl import data

    digits = data.digits()
    train = data.Data.of(*digits.train.take(slice(0, samples)))
    validation = data.Data.of(*digits.validation.take(slice(0, kept)))
    return data.Dataset("some digits", train, validation, digits.classes)

"""Streams of batches: p ranks train on them as one does, and say in one line what is wrong."""

import itertools
import threading

import numpy as np
import pytest

from tutorial_dl import data

SIZES = (8, 5, 2, 8, 1)  # samples of the batches: also fewer than ranks


def batches(seed=0, weighted=False):
    """An epoch's batches: two inputs per sample, classes 0 to 2."""
    dice = np.random.default_rng(seed)
    for n in SIZES:
        x = dice.standard_normal((n, 2)).astype(np.float32)
        yield x, np.argmax(x @ [[1, -1, 0], [0, 1, -1]], axis=1)


class Counting:
    """Something to iterate over, which counts its passes and batches."""

    def __init__(self):
        self.passes = self.read = 0

    def __iter__(self):
        self.passes += 1
        for batch in batches():
            self.read += 1
            yield batch


def network(seed=3):
    from tutorial_dl.replica import DenseReplica

    return DenseReplica((2, 8, 3), "tanh", "cross_entropy", seed=seed)


def trained(made, epochs=2, team=None, model=None, **options):
    from tutorial_dl import Trainer, optimizers, strategies

    model = model or network()
    strategy = strategies.Synchronous(team)
    trainer = Trainer(model, made, strategy, optimizers.get("sgd", 0.3), progress=False, **options)
    return trainer, trainer.fit(epochs)


def by_hand(epochs=2, make=lambda epoch: batches(), weigh=None):
    """The weights after plain gradient descent on whole batches, and the mean loss per epoch."""
    model, losses = network(), []
    for epoch in range(epochs):
        sums = np.zeros(2)
        for batch in make(epoch):
            loss, n = model.compute_gradient(batch)
            model.parameters -= np.float32(0.3) * model.gradient
            sums += loss * n, n
        losses.append(sums[0] / sums[1])
    return model.parameters.copy(), losses


def no_threads():
    return not [t for t in threading.enumerate() if t.name.startswith("reading")]


def as_by_hand():
    from numba_kernels import Team

    team = Team()
    expected, losses = by_hand()
    counting, kept = Counting(), list(batches(1))
    for made in (
        (counting, lambda: iter(kept)),
        (lambda: batches(), data.stream(itertools.cycle(kept), steps=len(kept))),
        (data.stream(itertools.chain(batches(), batches()), steps=len(SIZES)), kept[0]),
    ):
        trainer, history = trained(made, team=team)
        np.testing.assert_allclose(trainer.replica.parameters, expected, atol=1e-6)
        np.testing.assert_allclose(history.column("loss"), losses, rtol=1e-5)
        assert trainer.steps == 2 * len(SIZES) and trainer.steps_per_epoch == len(SIZES)
        assert "val_loss" in history.last
    # One rank alone reads, once per epoch; what was peeked at belongs to the first.
    assert (counting.passes, counting.read) == ((2, 2 * len(SIZES)) if team.rank == 0 else (0, 0))
    # Metrics are those of all samples.
    alone = network()
    alone.parameters[:] = trainer.replica.parameters
    found, right = trainer.evaluate(lambda: iter(kept)), alone.evaluate(kept)
    assert {n: found[n] for n in ("loss", "accuracy")} == pytest.approx(
        {n: right[n] for n in ("loss", "accuracy")}, rel=1e-5
    )
    outputs = trainer.predict(iter(kept))
    right = np.concatenate([alone.predict(x) for x, _ in kept])
    np.testing.assert_allclose(outputs, right, rtol=1e-5)
    # In micro-batches, and without validation data.
    trainer, history = trained(Counting(), accumulate=2, team=team)
    np.testing.assert_allclose(trainer.replica.parameters, expected, atol=1e-6)
    assert set(history.last) == {"epoch", "loss", "samples_per_second", "seconds"}
    with pytest.raises(ValueError, match="have no validation part"):
        trainer.evaluate()
    assert no_threads()


@pytest.mark.thorough(but="2")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_train_on_a_stream_as_one_does(on_ranks, ranks):
    on_ranks(ranks, as_by_hand)


def test_ranks_train_over_messages(on_ranks):
    on_ranks(3, as_by_hand, env={"NUMBA_KERNELS_WINDOW": "0"})


def unseeded():
    """The ranks' copies of the stream differ; rank 0's counts."""
    from numba_kernels import Team

    team, seen = Team(), []

    def load():
        for x, y in batches(np.random.SeedSequence().entropy):
            seen.append(x)
            yield x, y

    trainer, _ = trained(load, team=team, epochs=3)
    assert len(seen) == (3 * len(SIZES) if team.rank == 0 else 0)
    rows = team.allgather(trainer.replica.parameters)
    assert (rows == rows[0]).all()
    assert (
        team.broadcast(np.array([trainer.history.last["loss"]]))[0] == trainer.history.last["loss"]
    )


def test_ranks_agree_on_a_random_stream(on_ranks):
    on_ranks(3, unseeded)


def one_ahead():
    """Batch k + 1 is read while the ranks compute on batch k, and batch k + 3 is not."""
    from numba_kernels import Team
    from tutorial_dl.training.callbacks import Callback

    team, read = Team(), [threading.Event() for _ in SIZES]

    def load():
        for number, batch in enumerate(batches()):
            read[number].set()
            yield batch

    class Looks(Callback):
        def on_step_end(self, trainer, loss, samples):
            if team.rank == 0 and trainer.steps < len(SIZES):
                assert read[trainer.steps].wait(600)  # without it, only after this step
                assert not any(event.is_set() for event in read[trainer.steps + 2 :])

    trained(load, team=team, epochs=1, callbacks=[Looks()])


def test_the_next_batch_is_read_ahead(on_ranks):
    on_ranks(2, one_ahead)


# What goes wrong


def broken(after):
    for number, batch in enumerate(batches()):
        if number == after:
            raise OSError("the file server\nis down")
        yield batch


def with_nan(after):
    for number, (x, y) in enumerate(batches()):
        if number == after:
            x[1, 1] = np.nan
        yield x, y


HERE = "test_streams.py"
FAILURES = {
    "broken": (
        lambda: lambda: broken(3),
        "batch 4 of epoch 1: OSError: the file server (.*%s, line",
    ),
    "nan": (lambda: lambda: with_nan(2), r"batch 3 of epoch 1: inputs\[1, 1\] is nan"),
    "late": (
        lambda: lambda epoch: with_nan([9, 1][epoch]),
        r"batch 2 of epoch 2: inputs\[1, 1\] is nan",
    ),
    "short": (
        lambda: data.stream(itertools.chain(batches(), batches()), steps=7),
        "the chain ended after 3 batches of this epoch, but steps is 7",
    ),
    "uneven": (
        lambda: lambda: ((x, y[:1]) for x, y in batches()),
        "batch 1 of epoch 1: arrays of different numbers of samples: inputs 8, targets 1",
    ),
    "parts": (lambda: lambda: ((x, x, y, y) for x, y in batches()), "batch 1 .*: it has 4 parts"),
    "numbers": (lambda: lambda: iter([1.5]), "batch 1 .*: inputs is float64 of shape ()"),
    "none": (lambda: lambda: iter(()), "returns has no batches"),
    "empty": (lambda: lambda: iter([(np.ones((0, 2)), np.ones(0))]), "batch 1 .* has no samples"),
    "endless": (lambda: itertools.cycle(batches()), "the cycle never ends: give the number"),
    "twice": (lambda: batches(), "the generator can be read once, so not for 2 epochs"),
    "function": (lambda: lambda: (1, 2), "must return batches one after the other .* got a tuple"),
}


def each_failure():
    """Each is raised on all ranks, with the reason; afterwards the team is of use."""
    import re

    from numba_kernels import Team

    team = Team()
    for name, (make, words) in FAILURES.items():
        model = network()
        before = model.parameters.copy()
        words = words.replace("%s", re.escape(HERE)).replace("server (", r"server \(")
        with pytest.raises(ValueError, match=words) as caught:
            trained(make(), team=team, model=model)
        assert len(str(caught.value)) <= 260 and "\n" not in str(caught.value), name
        assert str(caught.value).startswith("data 'data'"), name
        if name not in ("broken", "nan", "late", "short"):  # before anything was trained
            assert (model.parameters == before).all(), name
        if name == "nan":  # two updates were made, and none with the NaN
            one, _ = by_hand(1, lambda epoch: itertools.islice(batches(), 2))
            np.testing.assert_allclose(model.parameters, one, atol=1e-6)
        assert no_threads(), name
        if team.failure is not None:
            team.settle()
            team.recover(60)
    trained(Counting(), team=team)


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_fails_is_said_on_all_ranks(on_ranks, ranks):
    on_ranks(ranks, each_failure)


def goes_on():
    """After a failure, training begins the epoch anew; a run that stops leaves no thread."""
    from numba_kernels import PeerError, Team
    from tutorial_dl import Trainer, optimizers, strategies
    from tutorial_dl.training.callbacks import Callback

    team, calls = Team(), []

    def load():
        calls.append(1)
        return broken(3) if len(calls) == 1 else batches()

    trainer = Trainer(
        network(), load, strategies.Synchronous(team), optimizers.get("sgd", 0.3), progress=False
    )
    with pytest.raises(data.DataError, match="the file server"):
        trainer.fit(1)
    team.settle()
    team.recover(60)
    history = trainer.fit(2)
    assert len(history.epochs) == 2 and trainer.steps == 3 + 2 * len(SIZES)

    def on_step_end(self, trainer, loss, samples):
        raise KeyError("in a callback")

    stops = type("Stops", (Callback,), {"on_step_end": on_step_end})()
    with pytest.raises((KeyError, PeerError), match="in a callback"):
        trained(Counting(), team=team, callbacks=[stops])
    assert no_threads()


def test_training_goes_on_after_a_failure(on_ranks):
    on_ranks(2, goes_on)


REFUSED = [
    (
        dict(strategy="downpour"),
        "'downpour' hands out samples by their number.*arrays or HDF5 files",
    ),
    (dict(strategy="hogwild"), "'hogwild' hands out samples by their number"),
    (dict(validation_split=0.2), "validation_split takes samples of arrays"),
    (dict(class_weight="balanced"), "class_weight must be weights by class for a stream"),
    (dict(class_weight={0: -1.0}), "class_weight must be finite and at least 0"),
]


def each_refused():
    from tutorial_dl import Trainer

    for options, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            Trainer(network(), Counting(), **options)
    x, y = next(batches())
    for made, words in (
        (
            (Counting(), y),
            "expected \\(train, validation\\).*got a ndarray; the targets of a stream",
        ),
        ((Counting(), y, y), "the targets of a stream are in its batches"),
        ((None, Counting()), "got a NoneType"),
    ):
        with pytest.raises(TypeError, match=words):
            Trainer(network(), made)
    with pytest.raises(ValueError, match="steps must be at least 1 batch per epoch, got 0"):
        data.stream(Counting(), steps=0)
    with pytest.raises(TypeError, match=r"a stream must be a tf.data.Dataset, .* got a list"):
        data.stream([(x, y)])


def test_what_a_stream_cannot_do(on_ranks):
    on_ranks(2, each_refused)


def weighted():
    """Weights of classes are those of data in memory, batch by batch."""
    from numba_kernels import Team
    from tutorial_dl.data.weights import of_batch

    x, y = next(batches())
    found = of_batch((x, y), {0: 5.0, 1: 0.5})[2]
    np.testing.assert_array_equal(found, np.array([5.0, 0.5, 1.0])[y])
    one_hot = np.eye(3)[y]
    twice = of_batch((x, one_hot, np.full(8, 2.0)), {0: 5.0, 1: 0.5})[2]
    np.testing.assert_array_equal(twice, 2 * found)
    with pytest.raises(ValueError, match="this model takes no weights of samples"):
        trained(Counting(), team=Team(), class_weight={0: 2.0})


def test_weights_of_classes(on_ranks):
    on_ranks(1, weighted)


def resumed(folder, until):
    """Train to the end, or die in epoch 2 and go on."""
    from numba_kernels import Team
    from tutorial_dl import Trainer, optimizers, strategies

    team = Team()

    def trainer(checkpoint, callbacks=()):
        made = lambda epoch: batches(seed=epoch)  # noqa: E731  (another order in each epoch)
        return Trainer(
            network(), made, strategies.Synchronous(team), optimizers.get("adam"), progress=False,
            checkpoint=f"{folder}/{checkpoint}", checkpoint_every=1, callbacks=callbacks,
        )  # fmt: skip

    whole = trainer("whole")
    whole.fit(3)

    from tutorial_dl.training.callbacks import Callback

    class Dies(Callback):
        def on_step_end(self, trainer, loss, samples):
            if trainer.steps == until:
                raise KeyError("in a callback")

    first = trainer("parts", [Dies()])
    with pytest.raises(Exception, match="in a callback"):
        first.fit(3)
    team.settle()
    team.recover(60)
    second = trainer("parts")
    assert second.resume() and second.steps == until - 1 and second.round == (until - 1) % 5
    second.fit_to(3)
    assert (second.replica.parameters == whole.replica.parameters).all()
    assert second.history.column("loss") == whole.history.column("loss")


def test_a_run_goes_on_in_the_middle_of_an_epoch(on_ranks, tmp_path):
    on_ranks(2, resumed, str(tmp_path), 8)

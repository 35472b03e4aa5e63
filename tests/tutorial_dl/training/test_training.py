"""The training loop: history, validation shared among ranks, and refused arguments."""

import numpy as np
import pytest
from rank_tests import with_ranks

from numba_kernels import PeerError, launch
from tutorial_dl import Team, Trainer, data, models, strategies
from tutorial_dl.runtime.evaluation import evaluate
from tutorial_dl.training import History
from tutorial_dl.training.callbacks import Callback
from tutorial_dl.training.columns import columns


def rows(*rates):
    return [
        {"epoch": i + 1, "loss": 1.0, "samples_per_second": rate, "seconds": 2.0}
        for i, rate in enumerate(rates)
    ]


def test_history():
    history = History(rows(1.0, 30.0, 10.0, 20.0))
    assert history.column("epoch") == [1, 2, 3, 4]
    assert history.seconds == 8 and history.last["epoch"] == 4
    assert history.samples_per_second == 20  # the median without the first epoch
    assert History(rows(7.0)).samples_per_second == 7
    assert History(rows(7.0, 1.0, 3.0)).samples_per_second == 2
    assert repr(history) == "History(4 epochs; the last: loss 1)"
    assert repr(History()) == "History(no epochs)"
    table = history._repr_html_()
    assert table.count("<tr>") == 5 and "samples_<wbr>per_<wbr>second</th>" in table


def shares(n):
    """Metrics and outputs of p ranks are those of one process, with each sample counted once."""
    team, digits = Team(), data.digits()
    part = data.Data.of(*digits.validation.take(slice(0, n)))
    trainer = Trainer(models.dense(digits), digits, team=team, progress=False)
    replica, trainer.validation_batch_size = trainer.replica, 7
    together = evaluate(team, replica, part, batch_size=7)
    alone = replica.evaluate([part.take(slice(0, n))])
    assert together.keys() == {"loss", "accuracy"}
    for name, value in together.items():
        assert value == pytest.approx(alone[name], rel=1e-6), name
    same = team.allgather(np.array(list(together.values())))
    assert (same == same[0]).all()
    outputs = trainer.predict(part.inputs)
    np.testing.assert_allclose(outputs, replica.predict(part.inputs), rtol=1e-5)


@pytest.mark.parametrize(("ranks", "n"), [(1, 100), (3, 100), (4, 3), (5, 1)])
def test_validation_and_predictions_are_shared_out(on_ranks, ranks, n):
    on_ranks(ranks, shares, n)


@with_ranks(2)
def test_the_columns_of_a_history_are_told_before():
    team, digits = Team(), data.digits()
    for strategy in ("serial", "synchronous", "downpour", "elastic_averaging"):
        alone = team.split(team.rank) if strategy == "serial" else team
        model = models.softmax(digits, seed=1)
        trainer = Trainer(model, digits, strategy, batch_size=300, progress=False, team=alone)
        told = columns(trainer)
        trainer.fit(1)
        row = trainer.history.last
        assert sorted(told) == sorted(row.keys() - {"epoch"}), (strategy, told, row)


@with_ranks(2)
def test_epochs_go_on():
    """fit(2) and fit(3) equal fit(5): optimizer, order of samples and history continue."""
    digits = data.digits()
    whole, parts = (Trainer(models.softmax(digits), digits, progress=False) for _ in range(2))
    whole.fit(5)
    parts.fit(2)
    history = parts.fit(3)
    np.testing.assert_array_equal(whole.replica.parameters, parts.replica.parameters)
    assert history.column("loss") == whole.history.column("loss")
    assert history.column("epoch") == [1, 2, 3, 4, 5]
    # The loss of an epoch is the mean over its samples, also with a smaller last batch.
    assert parts.evaluate(digits.train)["loss"] == pytest.approx(history.last["loss"], rel=0.1)


@with_ranks(2)
def test_what_is_refused():
    digits, team = data.digits(), Team()
    model = models.softmax(digits)
    for wrong, error, message in (
        (dict(strategy="nosuch"), ValueError, "unknown strategy 'nosuch'; choose one of serial"),
        (dict(optimizer="nosuch"), ValueError, "unknown optimizer 'nosuch'; choose one of sgd"),
        (dict(batch_size=0), ValueError, "batch_size must be at least 1, got 0"),
        (dict(strategy="serial"), ValueError, "'serial' uses 1 rank, not 2"),
        (dict(callbacks=["stop"]), TypeError, "callback must be .*, got 'stop'"),
        (dict(accumulate=0), ValueError, "must be at least 2 to accumulate, got 0"),
        (dict(clip_norm=0.0), ValueError, "clip_norm must .*, got 0"),
        (dict(learning_rate="fast"), TypeError, "a number or a function of the step"),
        (dict(check_every=0), ValueError, "check_every must be at least 1 step, got 0"),
    ):
        with pytest.raises(error, match=message):
            Trainer(model, digits, team=team, progress=False, **wrong)
    with pytest.raises(TypeError, match=r"expected a Dataset or \(\(x, y\), \(x_val, y_val\)\)"):
        Trainer(model, digits.train.inputs, team=team)
    pairs = (tuple(digits.train.take(slice(0, 99))), tuple(digits.validation.take(slice(0, 9))))
    assert Trainer(model, pairs, team=team).dataset.classes == 10
    with pytest.raises(TypeError, match=r"^Trainer\(\) got an unexpected keyword argument 'lr'"):
        Trainer(model, digits, lr=0.1)
    with pytest.raises(TypeError, match="is not a model"):
        Trainer("a model", digits, team=team)
    trainer = Trainer(model, digits, strategies.Synchronous(team), progress=False)
    with pytest.raises(ValueError, match="epochs must be at least 1, got 0"):
        trainer.fit(0)
    trainer.fit(1)  # the trainer still works


@with_ranks(2)
def test_a_failure_in_any_method_is_reported(folder):
    """If one rank fails in any method of a Trainer, the other does not wait for it."""

    class Fault(Exception): ...

    def fails(*arguments):
        raise Fault("by purpose")

    team, digits = Team(), data.digits()
    for call in ("fit", "fit_to", "check_agreement"):
        trainer = Trainer(
            models.softmax(digits), digits, team=team, progress=False, callbacks=[Callback()],
            learning_rate=lambda step: 0.1, checkpoint=folder,
        )  # fmt: skip
        if team.rank == 1:
            trainer.saving.checkpoints.steps = trainer.callbacks[0].on_fit_end = fails
            trainer.run.player.schedule = fails if call == "check_agreement" else lambda step: 0.1
        trainer.run.stopped = "nothing is left to train"
        with pytest.raises(Fault if team.rank == 1 else PeerError, match="by purpose"):
            getattr(trainer, call)(*([] if call == "check_agreement" else [1]))
            team.barrier()
        team.recover()


DATA_DIFFER = """
import numpy as np
from numba_kernels import launch
from tutorial_dl import Trainer
from tutorial_dl.replica import CurveReplica

x = np.linspace(0, 1, 60)
y = x**2
if launch.rank() == 1:
    y[3] = np.nan
Trainer(CurveReplica(2), (x, y), progress=False).fit(1)
"""


def test_a_script_ends_if_the_data_of_one_rank_are_wrong():
    """Without a team: the Trainer makes it before it looks at data that may fail."""
    done = launch.run_ranks(2, ["-c", DATA_DIFFER], timeout=60, capture=True)
    assert done.returncode
    assert "PeerError: rank 1 failed" in done.stderr and "ValueError: data" in done.stderr


# Curves of a history ---------------------------------------------------------------------------


def learned(epochs, factor=1.0, **more):
    columns = {"loss": factor, "accuracy": 0.5, "val_loss": 2 * factor, "val_accuracy": 0.25}
    return History([
        {"epoch": e, **{name: value / e for name, value in (columns | more).items()},
         "samples_per_second": 9.0, "seconds": 1.0}
        for e in range(1, epochs + 1)
    ])  # fmt: skip


def drawn(ax):
    return [(line.get_linestyle(), line.get_ydata().tolist()) for line in ax.get_lines()]


def test_a_history_draws_each_metric_in_training_and_in_validation():
    figure = learned(4, learning_rate=0.1).plot()
    loss, accuracy = figure.axes
    assert drawn(loss) == [("-", [1, 1 / 2, 1 / 3, 1 / 4]), ("--", [2, 1, 2 / 3, 1 / 2])]
    assert drawn(accuracy)[1] == ("--", [0.25, 0.125, 0.25 / 3, 0.0625])
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Loss", "Accuracy"]
    for ax in figure.axes:
        assert ax.get_xlabel() == "epoch" and ax.get_ylabel()
        assert all(float(tick).is_integer() for tick in ax.get_xticks())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["training", "validation"]
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_histories_are_drawn_beside_each_other_and_of_unlike_columns():
    other = History([{"epoch": 1, "loss": 3.0, "auc": 0.5, "seconds": 1.0}])
    figure = learned(2).plot(beside={"1 rank": other}, name="4 ranks")
    titles = {ax.get_title(loc="left"): ax for ax in figure.axes if ax.axison}
    assert list(titles) == ["Loss", "Accuracy", "AUC"]
    assert drawn(titles["Loss"]) == [("-", [1, 0.5]), ("--", [2, 1]), ("-", [3])]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["4 ranks", "1 rank", "training", "validation"]
    with pytest.raises(ValueError, match="the history of 1 rank has no epochs yet; train first"):
        learned(2).plot(beside={"1 rank": History()})

"""Logs of a run: rows as they come, in files and for TensorBoard; lines where no terminal is."""

import csv
import json

import pytest


def trainer_of(**options):
    from tutorial_dl import Trainer, data, models

    curve = data.load("curve")
    return Trainer(models.curve(curve), curve, "serial", "sgd", batch_size=32, **options)


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_a_row_is_there_as_soon_as_its_epoch_ends(tmp_path, name):
    from tutorial_dl import __version__
    from tutorial_dl.training.callbacks import Log

    path, seen = tmp_path / name, []

    def rows():
        with open(path, newline="") as file:
            if path.suffix == ".csv":
                return list(csv.DictReader(file))
            about, *found = map(json.loads, file)
            assert about["run"]["version"] == __version__ and about["run"]["ranks"] == 1
            assert {"time", "host", "command", "git", "folder"} <= about["run"].keys()
            return found

    path.write_text("of a former run\n")
    look = lambda trainer, row: seen.append(len(rows()))  # noqa: E731
    trainer = trainer_of(progress=False, callbacks=[Log(path), look])
    trainer.fit(2)
    trainer.fit(1)
    assert seen == [1, 2, 3]
    for row, mine in zip(rows(), trainer.history.epochs, strict=True):
        assert row.keys() == {"time", *mine}
        for column, value in mine.items():
            assert float(row[column]) == pytest.approx(value)


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_a_resumed_run_appends(tmp_path, name):
    from tutorial_dl.training.callbacks import Log

    path = tmp_path / name
    for epochs in (2, 4):
        trainer = trainer_of(progress=False, callbacks=[Log(path)], checkpoint=tmp_path / "run")
        trainer.resume()
        trainer.fit_to(epochs)
    assert path.read_text().count("\n") == 4 + (1 if name.endswith(".csv") else 2)


def test_events_for_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from tutorial_dl.training.callbacks import Log

    trainer = trainer_of(progress=False, callbacks=[Log(tmp_path / "board")])
    trainer.fit(3)
    found = EventAccumulator(str(tmp_path / "board"))
    found.Reload()
    values = [(event.step, event.value) for event in found.Scalars("val_loss")]
    steps = trainer.steps // 3
    column = trainer.history.column("val_loss")
    assert values == [((i + 1) * steps, pytest.approx(value)) for i, value in enumerate(column)]


@pytest.mark.parametrize("name", ["log.txt", "log.json", "run.csv.gz"])
def test_other_names_are_refused(name):
    from tutorial_dl.training.callbacks import Log

    with pytest.raises(ValueError, match=r"log must end in \.csv or \.jsonl, or be a folder"):
        Log(name)


def test_a_line_an_epoch_where_no_terminal_is(capfd):
    trainer = trainer_of()
    trainer.fit(2)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2 and "\r" not in "".join(lines)
    value = f"{trainer.history.last['val_loss']:.4f}"
    assert lines[1].startswith("serial on 1 rank, epoch 2 of 2: loss ")
    assert f", val_loss {value}; " in lines[1] and lines[1].endswith(" s")
    trainer_of(progress=False).fit(2)
    assert not capfd.readouterr().err

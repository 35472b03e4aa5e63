"""What is shown while a Trainer trains: lines, a bar, a table and a curve; logs in files."""

import csv
import json
import re
import sys
import textwrap
from contextlib import redirect_stderr
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from tutorial_dl import Trainer, __version__, data, models
from tutorial_dl.extras import missing
from tutorial_dl.training import History, progress
from tutorial_dl.training.callbacks import Log
from tutorial_dl.training.progress import NotebookProgress, Nothing, Outlook, curve


def trainer_of(**options):
    curve = data.load("curve")
    return Trainer(models.curve(curve), curve, "serial", "sgd", batch_size=32, **options)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_bar_names_epochs_and_fits_the_terminal(capfd, monkeypatch, columns):
    monkeypatch.setenv(progress.TERMINAL, "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(progress.compiling, "told", True)  # the cache may be empty
    trainer_of().fit(3)
    drawn = capfd.readouterr().err
    assert drawn.endswith("\n")  # what is printed next begins a line
    lines = [line for line in re.split("[\r\n]", drawn) if line]
    assert max(map(len, lines)) < columns and lines[0].startswith("epoch 1 of 3:")
    assert lines[-1].startswith("epoch 3 of 3: 100%|")
    assert columns < 80 or "val_loss" in lines[-1]


# In a notebook ---------------------------------------------------------------------------------


class Display:
    """Stands for IPython's display and its handle; notes what is shown, and when."""

    def __init__(self, clock):
        self.clock, self.shown = clock, []

    def __call__(self, what, display_id):
        assert display_id
        self.update(what)
        return self

    def update(self, what):
        self.shown.append((self.clock.now, repr(what), what._repr_html_()))


def row(epoch):
    value = 1 / epoch
    return {"epoch": epoch, "loss": value, "val_loss": 2 * value, "samples_per_second": 2e5}


def trained(epochs, seconds, before=0, steps=4, samples=100):
    """What is displayed in a run whose epochs take so many seconds each."""
    clock = SimpleNamespace(now=0.0)
    history = History([row(epoch + 1) for epoch in range(before)])
    dataset = SimpleNamespace(train=range(samples))
    run = SimpleNamespace(history=history, dataset=dataset, callbacks=[])
    display = Display(clock)
    plan = Outlook("synchronous on 4 ranks", run, epochs)
    with NotebookProgress(plan, display, lambda: clock.now) as shown:
        for epoch in range(before, before + epochs):
            for _ in range(steps):
                clock.now += seconds / steps
                shown.update(samples // steps)
            history.epochs.append(row(epoch + 1))
            shown.set_postfix({})
    return display.shown


def test_the_display_is_renewed_at_most_once_per_second():
    quick = trained(epochs=100, seconds=0.1)  # 10 s
    times = [now for now, *_ in quick]
    gaps = [b - a for a, b in pairwise(times[:-1])]
    assert min(gaps) >= 1 and len(times) <= 12
    slow = trained(epochs=2, seconds=40.0)
    assert [now for now, *_ in slow] == [0, 10, 20, 30, 40, 50, 60, 70, 80, 80]


def test_it_shows_the_epoch_a_table_and_a_curve():
    shown = trained(epochs=4, seconds=8.0, before=2)
    _, text, page = shown[0]
    assert text.startswith("synchronous on 4 ranks, epoch 3 of 6, 0 s")
    halfway = next(one for one in shown if one[0] == 16 + 2)  # a quarter of the third of four
    assert "epoch 5 of 6, 18 s, about 14 s left: epoch 4, loss 0.25, val_loss 0.5" in halfway[1]
    assert '<progress value="0.562"' in halfway[2] and halfway[2].count("<polyline") == 2
    _, text, page = shown[-1]
    assert "epoch 6 of 6, 32.0 s" in text and "<progress" not in page
    assert page.count("<tr>") == 1 + 6 and "<td>0.1667</td><td>0.3333</td><td>200,000</td>" in page
    assert ">val_<wbr>loss</th>" in page  # it may break, so that many columns fit


def test_a_long_table_shows_the_newest_epochs():
    *_, (_, _, page) = trained(epochs=25, seconds=2.0)
    assert "… 15 earlier" in page and "<td>25</td>" in page and "<td>15</td>" not in page


def test_the_curve_has_its_points_where_the_losses_are():
    """On a logarithmic scale a loss that halves in each epoch is a straight line."""
    rows = [{"epoch": e, "loss": 2.0**-e, "learning_rate": 0.1} for e in range(1, 5)]
    (points,) = re.findall('points="([^"]*)"', curve(rows))
    points = [tuple(map(float, one.split(","))) for one in points.split()]
    x, y = zip(*points, strict=True)
    assert y == (10, 40, 70, 100) and [b - a for a, b in pairwise(x)] == [100] * 3
    assert curve([{"epoch": 1, "a_loss": 1.0}] * 2) == ""  # players of another game
    assert "<polyline" in curve([{"epoch": 1, "loss": 0.0}, {"epoch": 2, "loss": 0.0}])


def test_the_time_left_is_without_that_of_compiling(monkeypatch, capfd):
    """100 s pass, in which kernels are compiled."""
    monkeypatch.setenv(progress.TERMINAL, "1")
    with progress.progress("", trainer_of().run, 1, True) as bar:
        bar.bar.start_t -= 100
        bar.bar.last_print_t -= 100
        begun = bar.bar.start_t
        spent = progress.compiling.spent
        monkeypatch.setattr(spent, "seconds", spent.seconds + 100)
        bar.update(1)
        assert bar.bar.start_t >= begun + 100  # so that those 100 s do not count
        with redirect_stderr(StringIO()) as other:  # of a fit before
            progress.tell_of_compiling()
        other.close()
        monkeypatch.setattr(spent, "seconds", 1e9)
        monkeypatch.setattr(progress.compiling, "told", False)
        progress.compiling.begins()
        progress.compiling.begins()
        with redirect_stderr(other):
            monkeypatch.setattr(progress.compiling, "told", False)
            progress.compiling.begins()
    assert capfd.readouterr().err.count("compiling kernels, once") == 1


def test_which_of_them_a_trainer_shows(monkeypatch, capfd):
    trainer = trainer_of()
    kinds = []
    for shell, terminal in ((None, ""), (None, "1"), ("ZMQInteractiveShell", "")):
        monkeypatch.setenv(progress.TERMINAL, terminal)
        interactive = type(shell, (), {})() if shell else None
        fake = SimpleNamespace(get_ipython=lambda it=interactive: it)
        monkeypatch.setitem(progress.sys.modules, "IPython", fake)
        kinds.append(type(progress.progress("", trainer.run, 1, True)).__name__)
    assert kinds == ["EpochLines", "Bar", "NotebookProgress"]
    assert type(progress.progress("", trainer.run, 1, False)) is Nothing


# Logs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_a_row_is_there_as_soon_as_its_epoch_ends(tmp_path, name):
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
    path = tmp_path / name
    for epochs in (2, 4):
        trainer = trainer_of(progress=False, callbacks=[Log(path)], checkpoint=tmp_path / "run")
        trainer.resume()
        trainer.fit_to(epochs)
    assert path.read_text().count("\n") == 4 + (1 if name.endswith(".csv") else 2)


def test_events_for_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = trainer_of(progress=False, callbacks=[Log(tmp_path / "board")])
    trainer.fit(3)
    found = EventAccumulator(str(tmp_path / "board"))
    found.Reload()
    values = [(event.step, event.value) for event in found.Scalars("val_loss")]
    steps = trainer.steps // 3
    column = trainer.history.column("val_loss")
    assert values == [((i + 1) * steps, pytest.approx(value)) for i, value in enumerate(column)]


# What is called of each library, as wandb 0.28 and mlflow 3.17 do it; one run is active at a time.
SERVICES = {
    "wandb": """
        run = None
        class Run:
            id = "a1"
            def log(self, data, step=None): CALLS.append((step, data["val_loss"]))
            def finish(self, exit_code=None):
                global run
                run = None
                CALLS.append("failed" if exit_code else "end")
        def init(*, config=None, id=None, resume=None):
            global run
            assert run is None and config["ranks"] == 1
            run = Run()
            CALLS.append(("begin", id))
            return run
        user = lambda: init(config={"ranks": 1})
        """,
    "mlflow": """
        class Run:
            info = type("info", (), {"run_id": "a1"})
            data = type("data", (), {"params": {}})
        run = None
        active_run = lambda: run
        def start_run(run_id=None):
            global run
            assert run is None, "already active"
            run = Run
            CALLS.append(("begin", run_id))
            return run
        def log_params(params):
            assert not Run.data.params, "can't be changed"
            Run.data.params = params
        def log_metrics(metrics, step=None): CALLS.append((step, metrics["val_loss"]))
        def end_run(status="FINISHED"):
            global run
            run = None
            CALLS.append("failed" if status == "FAILED" else "end")
        user = start_run
        """,
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_keeps_the_log_by_its_own_library(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()  # such as its own files; no library
    with pytest.raises(ModuleNotFoundError) as found:
        Log(name)
    assert missing(found.value).endswith(f"pip install {name}")
    Path(name, "__init__.py").write_text("CALLS = []\n" + textwrap.dedent(SERVICES[name]))
    monkeypatch.syspath_prepend(tmp_path)
    fails = [False, False, True]

    def other(trainer, row):
        if fails.pop(0):
            raise RuntimeError("of the user's")

    trainer = trainer_of(progress=False, callbacks=[Log(name), other])
    trainer.fit(1)
    trainer.fit(1)  # the same run goes on
    with pytest.raises(RuntimeError):
        trainer.fit(1)
    losses = trainer.history.column("val_loss")
    again = trainer_of(progress=False, callbacks=[Log(name)])
    again.fit(1)
    service = sys.modules.pop(name)
    service.user()  # a run of the user's
    sys.modules[name] = service
    again.fit(1)
    del sys.modules[name]
    begun, one, end, goes_on, two, _end, _goes_on, _three, failed, anew, *last = service.CALLS
    steps = again.steps // 2
    assert begun == anew == ("begin", None) and goes_on == ("begin", "a1")
    assert (one, two) == ((steps, losses[0]), (2 * steps, losses[1])) and end == "end"
    first, second = again.history.column("val_loss")
    assert failed == "failed" and service.run is not None  # the user's
    assert last == [(steps, first), "end", ("begin", None), (2 * steps, second)]


@pytest.mark.parametrize("name", ["log.txt", "log.json", "run.csv.gz"])
def test_other_names_are_refused(name):
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

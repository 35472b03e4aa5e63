"""`tune` on real ranks: what it writes, what goes wrong in trainings, and kills."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from mpi4py import MPI
from typer.testing import CliRunner

from numba_kernels import launch
from numba_kernels.team.team import Team
from tutorial_dl import config
from tutorial_dl.cli.commands import app
from tutorial_dl.training.setup import prepare
from tutorial_dl.tuning import cell as cells
from tutorial_dl.tuning.cell import Cell
from tutorial_dl.tuning.coordinator import Link
from tutorial_dl.tuning.options import config_of
from tutorial_dl.tuning.search import Search
from tutorial_dl.tuning.space import Space
from tutorial_dl.tuning.study import Study

MODEL = Path(__file__).parents[2] / "support" / "faulty_model.py"


def tune(folder, space, *words, wait=True):
    """Run the command in `folder`; its output goes to a file there."""
    (folder / "space.toml").write_text(space)
    line = [sys.executable, "-m", "tutorial_dl", "tune", "--space", "space.toml"]
    line += ["--model", f"{MODEL}:build", "--merit", "val_accuracy", "--epochs", "1", *words]
    output = (folder / "output").open("w")
    process = subprocess.Popen(line, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    if not wait:
        return process
    status = process.wait(600)
    text = (folder / "output").read_text()
    return status, text


RATE = """
[learning_rate]
type = "float"
low = 1e-3
high = 1e-1
log = true
"""
FAULTS = """
[what]
type = "category"
choices = ["fine", "raises", "memory", "one_raises", "one_hangs", "one_is_killed"]
[width]
type = "int"
low = 8
high = 9
"""


def test_what_a_search_writes(tmp_path):
    """Two groups of two folds, a rank each; a user's figure; what train takes."""
    status, text = tune(
        tmp_path, RATE + '[width]\ntype = "int"\nlow = 4\nhigh = 32\nlog = true\n',
        "-n", "5", "--groups", "2", "--folds", "2", "--trials", "6", "--sampler", "bayesian",
        "--merit", f"{MODEL}:merit", "--maximise", "--json", "r.json",
        "--report", "report.html", "--best-to", "best.toml",
    )  # fmt: skip
    assert status == 0, text
    result = json.loads((tmp_path / "r.json").read_text())
    best, trials = result["best"], result["trials"]
    assert (result["ranks"], result["sizes"], result["lost"]) == (5, [1, 1, 1, 1], [])
    assert {trial["ranks"] for trial in trials} == {1}
    assert len(trials) == 6 and 0 < result["utilisation"] <= 1 and result["seconds"] > 0
    for trial in trials:
        assert trial["value"] == pytest.approx(sum(trial["folds"]) / 2)
    assert best["value"] == max(trial["value"] for trial in trials) and len(best["folds"]) == 2
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") >= 5 and "Which parameters matter" in page
    options = config.read(tmp_path / "best.toml")
    assert options["learning_rate"] == best["params"]["learning_rate"]
    assert json.loads(options["model_arguments"]) == {"width": best["params"]["width"]}
    assert tomllib.loads((tmp_path / "best.toml").read_text())["schedule"]["epochs"] == 1
    # The best set, trained by `train`, on one rank as in the search
    line = [sys.executable, "-m", "tutorial_dl", "train", "--config", "best.toml", "--json", "-"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["learning_rate"] == pytest.approx(
        best["params"]["learning_rate"], rel=1e-6
    )


def test_every_fault_is_recorded_and_the_others_go_on(tmp_path):
    """A grid of six ways to fail, twice, on three cells of two ranks each."""
    status, text = tune(
        tmp_path, FAULTS, "-n", "7", "--groups", "3", "--trials", "12", "--sampler", "grid",
        "--deadline", "900", "--json", "r.json",
    )  # fmt: skip
    assert status == 0, text
    result = json.loads((tmp_path / "r.json").read_text())
    assert len(result["trials"]) == 12
    said = {}
    for trial in result["trials"]:
        said.setdefault(trial["params"]["what"], []).append(trial)
    assert all(trial["state"] == "complete" for trial in said["fine"])
    for what, words in (
        ("raises", "RuntimeError: no such model"), ("memory", "out of memory"),
        ("one_hangs", "it took longer than 900 s"), ("one_is_killed", "has ended"),
    ):  # fmt: skip
        for trial in said[what]:
            # A cell of one rank is left where the other one was killed; it may be the even one
            assert trial["state"] == "failed" or what in ("one_hangs", "one_is_killed"), trial
            assert trial["state"] == "complete" or words in trial["why"], trial
    assert Counter(t["state"] for t in said["one_is_killed"])["failed"] >= 1
    for trial in said["fine"]:  # on one rank, without a search
        base = config.RunConfig.of(model=f"{MODEL}:build", epochs=1, quiet=True)
        alone = prepare(config_of(base, trial["params"]), Team(MPI.COMM_SELF)).fit(1)
        assert trial["value"] == pytest.approx(alone.last["val_accuracy"], abs=0.01)
    assert "goes on with 1 of its 2 ranks" in text


class Unheard(Link):
    """A link that takes reports, and brings no message."""

    def send(self, message):
        assert message["what"] == "report"


def test_the_quality_of_a_gan_is_a_figure_of_merit():
    """The distance of generated numbers from the real ones, as in a training without a search."""
    options = {"model": "one-dimensional-gan", "data": "curve", "epochs": 3, "seed": 1}
    base, values = config.RunConfig.of(**options), {"learning_rate": 0.02}
    search = Search(Space.of(tomllib.loads(RATE)), base, merit="distance")
    one = Cell(search, Team(MPI.COMM_SELF), Unheard())
    assert one.check() is None
    ended = one.train({"trial": 0, "fold": 0, "deadline": 600, "values": values})
    alone = prepare(config_of(base, values), Team(MPI.COMM_SELF)).fit(3)
    assert ended["value"] == pytest.approx(alone.last["distance"], rel=1e-6)


def pid_of(folder, rank):
    name = folder / "study.log.lock" if rank == 0 else folder / str(rank)
    with suppress(OSError, ValueError):
        return int(name.read_text())
    return None


def ended_in(file):
    """How many trials have ended by themselves, according to the lines of a study's file."""
    with suppress(OSError):
        return file.read_text(errors="replace").count('"state":1,')
    return 0


def killed_once(folder, victim, after, trials, cells):
    """Start or resume the search, and kill rank `victim` when `after` more trials have ended.

    Returns the exit status, and whether it was killed. Victim None: nothing is killed; "search":
    it is warned, as by a batch system. Each of the `cells` is one rank.
    """
    space = f"""{RATE}
[seconds]
type = "float"
low = 0.0
high = 0.2
[pids]
type = "category"
choices = ["{folder}", "{folder}/"]
"""
    words = ["-n", str(cells + 1), "--groups", str(cells), "--trials", str(trials)]
    words += ["--sampler", "random"]
    words += ["--study", "study.log", "--resume", "--json", "r.json"]
    already, killed = ended_in(folder / "study.log"), False
    for rank in range(1, cells + 1):
        (folder / str(rank)).unlink(missing_ok=True)
    process, end = tune(folder, space, *words, wait=False), time.monotonic() + 300
    try:
        while victim is not None and process.poll() is None and time.monotonic() < end:
            pid = process.pid if victim == "search" else pid_of(folder, victim)
            if pid is not None and ended_in(folder / "study.log") >= already + after:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1 if victim == "search" else signal.SIGKILL)
                    killed = True
                break
            time.sleep(0.01)
        return process.wait(300), killed
    finally:
        if process.poll() is None:
            process.kill()


def about(folder):
    given = config.RunConfig.of(model=f"{MODEL}:build", epochs=1).tables()
    parts = {name: given.get(name) for name in ("data", "optimizer", "schedule", "strategy")}
    return parts | {"merit": "val_accuracy", "folds": 1}


def check_kills(folder, victims, trials, cells=4):
    """Kill each victim in a run of the search, resume it to the end, and compare its trials."""
    before = {}
    for victim, after in victims:
        status, killed = killed_once(folder, victim, after, trials, cells)
        text = (folder / "output").read_text()
        assert killed, text
        if victim == "search":
            assert status == 75 and text.count("ended by a signal; study.log has the trials") == 1
        elif victim == 0:
            assert status == 1 and "the coordinator (rank 0) was ended by signal SIGKILL" in text
        else:
            assert status == 0 and "is lost" in text, text
        study = Study(
            Space.read(folder / "space.toml"), "random", trials, maximise=True,
            file=folder / "study.log", resume=True, about=about(folder),
        )  # fmt: skip
        rows = {row["number"]: row for row in study.rows()}
        study.close()
        assert before.items() <= rows.items(), "a finished trial was lost or changed"
        before, trials = rows, max(trials, len(rows) + 8)
    status, _ = killed_once(folder, None, 0, trials, cells)
    result = json.loads((folder / "r.json").read_text())
    rows = {row["number"]: row for row in result["trials"]}
    assert status == 0 and len(result["trials"]) == len(rows) == trials
    assert before.items() <= rows.items()
    values = [row["value"] for row in rows.values() if row["value"] is not None]
    assert result["best"]["value"] == max(values)


@pytest.mark.thorough
def test_a_killed_rank_or_coordinator_loses_no_trial(tmp_path):
    check_kills(tmp_path, [(0, 3), (2, 2), ("search", 2)], 12, cells=3)


# Bad input, before anything is trained -----------------------------------------------------------


def cell(folds=1, merit="val_loss", **options):
    base = config.RunConfig.of(epochs=1, **options)
    search = Search(Space.of(tomllib.loads(RATE)), base, folds=folds, merit=merit)
    return Cell(search, Team(MPI.COMM_SELF), Link())  # alone, it checks without a word


def test_a_cell_refuses_what_no_set_of_values_can_give(tmp_path):
    (tmp_path / "of.py").write_text(
        "def two(trainer, other): ...\ndef fails(): raise KeyError('no such table')\n"
    )
    assert cell().check() is None and cell(folds=3, merit="seconds").check() is None
    assert cell(merit=f"{MODEL}:merit").check() is None
    for why, wrong in (
        ("did you mean 'val_accuracy'?", cell(merit="val_acuracy")),
        ("folds must be from 1 to", cell(folds=5000)),
        ("no function 'merits'; it has", cell(merit=f"{MODEL}:merits")),
        ("is called with the trainer alone, and it takes (trainer, other)",
         cell(merit=f"{tmp_path}/of.py:two")),
        ("KeyError: 'no such table'", cell(data=f"{tmp_path}/of.py:fails")),
    ):  # fmt: skip
        said = wrong.check()
        assert said and why in said and "\n" not in said
    # A model that can't be built with one set says nothing about others
    assert cell(model=f"{MODEL}:build", model_arguments='{"what": "raises"}').check() is None


def test_several_figures_and_notes_come_with_the_end_of_a_training(monkeypatch, capfd):
    """Notes of two trainings are answers, and are not printed. All else is: lines of build(), of
    another thread and of a program that build() starts meanwhile, and what comes later."""
    prepared, kept, at_once = cells.prepare, [], []
    program = [sys.executable, "-c", "import sys; print('of a program', file=sys.stderr)"]

    def prepare(*arguments):
        print("my line\nnote:", "another learning rate", file=sys.stderr)
        print("a bar", end="", file=sys.stderr, flush=True)
        thread = threading.Thread(target=lambda: print("of a thread", file=sys.stderr))
        thread.start()
        thread.join()
        subprocess.run(program, stderr=sys.stderr, check=True)
        kept.append(sys.stderr)
        at_once.append(capfd.readouterr().err)
        print("half a line", end="", file=sys.stderr)
        return prepared(*arguments)

    monkeypatch.setattr(cells, "prepare", prepare)
    one = cell(merit=f"val_accuracy, {MODEL}:merit", model=f"{MODEL}:build")
    one.link = Unheard()
    assert one.check() is None and one.search.merit == f"val_accuracy,{MODEL}:merit"
    task = {"trial": 0, "fold": 0, "deadline": 600}
    ended = one.train(task | {"values": {"width": 8}})
    accuracy, away = ended["value"]
    assert ended["state"] == "complete" and away == pytest.approx(abs(accuracy - 0.5))
    failed = one.train(task | {"values": {"what": "memory"}})
    assert ended["notes"] == failed["notes"] == ["another learning rate"]
    assert at_once[0] == "my line\na barof a thread\nof a program\n"
    assert capfd.readouterr().err == "half a line" and len(kept) == 3
    print("note: later", file=kept[0])
    assert capfd.readouterr().err == "note: later\n"


def test_an_interrupt_ends_a_training_and_not_what_follows_it(monkeypatch):
    """The coordinator of a notebook stops a fold by a signal, which may come when it has failed."""
    one = cell(merit="val_accuracy", model=f"{MODEL}:build")
    one.link = Unheard()
    one.link.ends_with_interrupt = False
    monkeypatch.setattr(one, "_forget", lambda: os.kill(os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, one.interrupt)
    try:
        task = {"trial": 0, "fold": 0, "deadline": 600}
        ended = one.train(task | {"values": {"what": "memory"}})  # then the signal comes
        assert (ended["state"], ended["why"]) == ("failed", "out of memory")
        ended = one.train(task | {"values": {}})  # it comes while it is trained
        assert (ended["state"], ended["why"]) == ("stopped", "interrupted")
        monkeypatch.undo()
        assert one.train(task | {"values": {}})["state"] == "complete"
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.thorough
def test_a_search_for_several_figures_ends_with_a_front(tmp_path):
    """Wider networks are better, and have more weights."""
    text = "def size(trainer):\n    return trainer.replica.parameters.size\n"
    (tmp_path / "my_file.py").write_text(text)
    space = "[width]\ntype = 'category'\nchoices = [1, 4, 64]\n"
    words = ["-n", "3", "--groups", "2", "--sampler", "grid", "--trials", "3", "--epochs", "3"]
    words += ["--merit", "val_accuracy,my_file:size"]
    words += ["--json", "r.json", "--report", "report.html"]
    status, text = tune(tmp_path, space, *words)
    result = json.loads((tmp_path / "r.json").read_text())
    assert status == 0 and result["best"] is None and result["maximise"] == [True, False], text
    assert [row["params"]["width"] for row in result["front"]] == [64, 4, 1]
    for row in result["front"]:  # (64, width, 10), with biases
        assert row["value"][1] == 75 * row["params"]["width"] + 10
    assert "3 on the Pareto front of val_accuracy and my_file:size" in text
    assert "The Pareto front" in (tmp_path / "report.html").read_text()


@pytest.mark.thorough
def test_a_figure_of_merit_that_does_not_exist_is_refused_in_one_line(tmp_path):
    words = ["-n", "5", "--groups", "2", "--merit", "val_acuracy", "--study", "study.log"]
    status, text = tune(tmp_path, RATE, *words)
    assert status == 2 and text.count("\n") == 1, text
    assert text.startswith("error: merit 'val_acuracy'") and "did you mean 'val_accuracy'?" in text
    assert not list(tmp_path.glob("study.log*"))  # so the right one is no other study


# Before anything starts --------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "space", "said"),
    [
        ([], RATE, "needs a space"),
        (["-n", "4", "--groups", "2"], RATE, "3 or 5 ranks, got 4"),
        (["--suggesters", "2"], RATE, "--suggesters is gone: each group chooses its own sets"),
        (["--sizes", "4,1,1"], RATE, "--sizes is gone: all groups have as many ranks"),
        (["--sampler", "bayes"], RATE, "unknown sampler 'bayes'; did you mean 'bayesian'?"),
        (["--pruner", "medain"], RATE, "unknown pruner 'medain'; did you mean 'median'?"),
        (["--resume"], RATE, "--resume needs --study FILE"),
        (["--retry"], RATE, "it needs --resume"),
        (["--directions", "up"], RATE, "directions must be maximise or minimise, got 'up'"),
        (["--merit", "a,b", "--directions", "maximise"], RATE, "must be as many as figures"),
        (["--maximise", "--directions", "minimise"], RATE, "give directions or maximise, not both"),
        (["--merit", "a, a", "--directions", "maximise, minimise"], RATE, "names that differ"),
        (["--merit", "loss,"], RATE, "merit must be names that differ, with commas"),
        (["--merit", "loss,seconds", "--pruner", "median"], RATE, "by one figure of merit"),
        (["--merit", "loss,seconds", "--best-to", "b.toml"], RATE, "loss,seconds may have several"),
        (["--deadline", "0"], RATE, "deadline must be above 0 and below 1e+09, got 0"),
        ([], RATE.replace("learning_rate", "learning_rat"), "did you mean 'learning_rate'?"),
        (["--json", "no/where.json"], RATE, "there is no folder no"),
        (["--strategy", "downpour", "-n", "2"], RATE, "at least 2 ranks"),
        (["--merit", f"{MODEL}:merits"], RATE, "has no function 'merits'; it has build, merit"),
        (["--merit", "nowhere.py:merit"], RATE, "there is no file"),
        (["--folds", "2000"], RATE, "the training samples of data 'digits', got 2000"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, monkeypatch, words, space, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "run_ranks", lambda *_, **__: pytest.fail("ranks were started"))
    Path("space.toml").write_text(space)
    given = [] if said == "needs a space" else ["--space", "space.toml"]
    done = CliRunner().invoke(app, ["tune", *given, *words])
    if said == "needs a space":
        said = "tune needs --space FILE"
    assert done.exit_code == 2 and said in done.output and done.output.count("\n") == 1


def test_help_names_no_option_of_a_single_training():
    text = CliRunner().invoke(app, ["tune", "--help"], env={"COLUMNS": "200"}).output
    assert "--space" in text and "--batch-size" in text
    assert "--save " not in text and "--checkpoint " not in text


PAGE = Path(__file__).parents[3] / "docs" / "tuning.md"
WIDE = "def load():\n    ...\n\n\ndef build(width=64):\n    ...\n"


def test_the_page_has_commands_that_fit_its_spaces(tmp_path, monkeypatch):
    """The first command with the first space, as they stand; the second one as the text says."""
    monkeypatch.chdir(tmp_path)
    started = []
    ended = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(launch, "run_ranks", lambda n, *_, **__: started.append(n) or ended)
    page = PAGE.read_text()
    first, second = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[:2]
    command = page.split("\npython -m tutorial_dl ")[1].replace("\\\n", "")
    Path("space.toml").write_text(first)
    Path("my_file.py").write_text(WIDE)
    done = CliRunner().invoke(app, shlex.split(command))
    assert (done.exit_code, started) == (0, [5]), done.output
    Path("space.toml").write_text(second)
    mine = command.replace("-n 5", "-n 9").replace("cnn", "my_file:build")
    done = CliRunner().invoke(app, shlex.split(mine))
    assert (done.exit_code, started) == (0, [5, 9]), done.output

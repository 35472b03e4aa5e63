"""The command line as a user sees it: output, exit status, and processes left behind."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import clock
import either_mpi
import numpy as np
import pytest
from commands_on_ranks import json_values, on_these_ranks, run_lines, told

from numba_kernels import environment, launch
from tutorial_dl.cli import train
from tutorial_dl.config import STRATEGIES

USERS_FILE = """
import numpy as np

def load():
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(301, 4)), generator.normal(size=(301, 3))
    a, b = a.astype("float32"), b.astype("float32")
    y = (a[:, 0] + b[:, 0] > 0).astype("int64")
    return ((a[:250], b[:250]), y[:250]), ((a[250:], b[250:]), y[250:])

def build():
    import keras
    a, b = keras.Input((4,)), keras.Input((3,))
    h = keras.layers.Concatenate()([keras.layers.Dense(16, "relu")(a), b])
    model = keras.Model([a, b], keras.layers.Dense(2, "softmax")(h))
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model

def narrow():
    from tutorial_dl.replica import SoftmaxReplica
    return SoftmaxReplica(3, 2)

def raises():
    return 1 / 0

def nan():
    x = np.linspace(0, 1, 100).astype("float32")
    x[60:] = np.nan
    return (x, x), (x[:10], x[:10])

def both():
    x = np.linspace(0, 1, 100).astype("float32")
    return x, x

def huge():
    x = np.linspace(0, 1, 100).astype("float32")
    x[60:] = 1e30
    return (x, x), (x[:10], x[:10])
"""


@pytest.fixture
def users_folder(tmp_path):
    (tmp_path / "my_file.py").write_text(USERS_FILE)
    (tmp_path / "broken.py").write_text("def build(:\n")
    return tmp_path


@pytest.fixture
def command(users_folder):
    """command(*words, start=[...]) -> CompletedProcess"""

    def run(*words, start=(), program=("-m", "tutorial_dl"), timeout=600):
        return subprocess.run(
            [*start, sys.executable, *program, *words], cwd=users_folder, timeout=timeout,
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run


def error_of(done, status):
    """The error's only line."""
    lines = either_mpi.without_remarks(done.stderr).strip().splitlines()
    assert done.returncode == status, done.stderr
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert not done.stdout.strip()
    return lines[0]


def test_help_at_once(command):
    words = (["--help"], ["train", "--help"], ["run", "--help"], ["doctor", "--help"])
    for line in words:
        with clock.seconds("--help"):
            done = command(*line)
        assert done.returncode == 0 and "Usage" in done.stdout
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tutorial_dl", "train", "--help"],
        capture_output=True, text=True,
    ).stderr  # fmt: skip
    for heavy in ("tensorflow", "keras", "numba", "numpy", "mpi4py", "matplotlib"):
        assert f" {heavy}\n" not in loaded, f"--help imports {heavy}"


NO_VALIDATION = "--model curve --data my_file:both --validation 0 --patience 2"
WRONG_ON_RANKS = [
    ("--model my_file:nosuch", 2, "my_file has no function 'nosuch'; it has both"),
    ("--model no_file:build", 2, "no such module"),
    ("--data no/file.py:load", 2, "there is no file"),
    ("--model broken:build", 2, "SyntaxError"),
    ("--model my_file:narrow", 2, "can't be used on data 'digits'"),
    ("--model curve", 2, "model 'curve' maps one number to one number"),
    ("--model my_file:raises", 2, "my_file.py, line 2"),
    ("--save-best m.keras", 2, "save the model as 'm.keras': the name must end in .npz"),
    ("--model curve --data my_file:nan", 2, "train.inputs[60] is nan; remove such"),
    ("--model curve --data my_file:huge", 1, "the loss is nan at step 1 (epoch 1) "),
    (NO_VALIDATION, 2, "go by 'val_loss', which needs validation data; or give --monitor, one of"),
    ("--optimizer adam --momentum 0.5", 2, "with optimizer 'adam', which has none"),
    ("--strategy downpour --synchronous --staleness-aware", 2, "nothing is stale"),
    ("--strategy downpour --lower-momentum --optimizer adam", 2, "but adam has none"),
    ("--strategy downpour --momentum 0.5 --optimizer adam", 2, "momentum"),
    ("--strategy gradient_energy_matching --optimizer adam", 2, "needs plain sgd, got adam"),
    ("--strategy gradient_energy_matching --optimizer nesterov", 2, "sgd with momentum 0.9"),
    ("--strategy hogwild --ema 0.9", 2, "since it validates the weights that it trains"),
    ("--noise-scale --compression fp16", 2, "noise_scale compares gradients"),
    ("--strategy downpour --every 2 --delay-compensation 1", 2, "needs every=1, got 2"),
    ("--strategy gossip --outer-rate 0.2", 2, "peer_momentum must be below outer_rate"),
    ("--strategy diloco_async --quorum 2", 2, "quorum 2 of 1 workers never comes"),
]
WRONG_OF_A_COMMAND = [  # one that fails before training, one within, and one with lost workers
    ("--data my_file:raises", 2, "ZeroDivisionError: division by zero"),
    ("--learning-rate 1e30 --optimizer sgd", 1, "the loss is nan at step 2 (epoch 1) "),
    ("-n 5 --strategy downpour --devices 2 --learning-rate 1e30", 1, " is not finite on rank "),
]


@pytest.mark.thorough(
    but=[
        "--model my_file:narrow",
        "--model my_file:raises",
        "--save-best m.keras",
        NO_VALIDATION,
        "--strategy hogwild --ema 0.9",
    ]
)
@pytest.mark.parametrize(
    ("words", "status", "message"), WRONG_ON_RANKS, ids=[words for words, *_ in WRONG_ON_RANKS]
)
def test_wrong_on_every_rank_is_told_once(on_ranks, users_folder, words, status, message):
    ended, said = told(on_ranks, 2, users_folder, ["--quiet", *words.split()])
    assert ended == status and said.count("\n") == 1
    assert said.startswith("error: ") and message in said


def test_a_result_that_does_not_fit_on_the_disk_is_printed(on_ranks, users_folder):
    words = ["--quiet", "--model", "curve", "--data", "curve", "--epochs", "1"]
    printed = on_ranks(2, on_these_ranks, str(users_folder), [*words, "--json", "/dev/full"])
    assert "validation loss" in printed and printed.count("status 1\n") == 2
    (told,) = (users_folder / "errors").read_text().splitlines()
    assert told == "error: /dev/full: cannot write: No space left on device"


def test_many_ranks_on_few_cores_are_told(monkeypatch):
    monkeypatch.setattr(environment, "usable_cores", lambda: 2)
    for name in filter(launch.privacy.ELSEWHERE.fullmatch, [*os.environ]):
        monkeypatch.delenv(name)
    assert train.crowd(16) is None
    assert train.crowd(17).startswith("note: 17 ranks share 2 cores of this machine, so ")
    assert train.crowd(17).endswith("use at most 16 (8 per core)")
    monkeypatch.setenv("PBS_JOBID", "7")  # its nodes may have many more cores
    assert train.crowd(17) is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "status", "message"), WRONG_OF_A_COMMAND, ids=["set-up", "training", "workers"]
)
def test_a_failing_command_tells_it_once(command, words, status, message):
    assert message in error_of(command("train", "-n", "2", "--quiet", *words.split()), status)


def test_under_mpiexec(command):
    start = [launch.find_mpiexec(), "-n", "2"]
    done = command("train", "--epochs", "1", "--json", "-", "--quiet", start=start)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert json.loads(done.stdout)["ranks"] == 2
    for words, message in (
        (["-n", "2"], "has started the ranks already"),
        (["--model", "nosuch"], "model 'nosuch': expected"),
        (["--nosuch"], "No such option"),
    ):
        assert message in error_of(command("train", *words, start=start), 2)
    assert command("--version", start=start).stdout.count("tutorial-dl") == 1


@pytest.mark.xdist_group("keras")
def test_a_users_own_keras_model_of_two_inputs(on_ranks, users_folder):
    words = ["--model", "my_file:build", "--data", "my_file:load", "--epochs", "20"]
    words += ["--learning-rate", "0.01", "--json", "-"]
    printed = on_ranks(2, on_these_ranks, str(users_folder), words, keras=True)
    result, end = json.JSONDecoder().raw_decode(printed)
    assert result["val_accuracy"] >= 0.9 and printed[end:].split() == ["status", "0"] * 2
    errors = (users_folder / "errors").read_text()
    assert "synchronous on 2 ranks" in errors  # the progress bar
    assert "note:" not in errors  # it was compiled without an optimizer


@pytest.mark.thorough
def test_results_and_every_option(command, on_ranks, tmp_path):
    """--json has its fields, and each option changes the result as it should."""
    base = {"epochs": 2, "batch-size": 32, "optimizer": "adam", "learning-rate": 0.001, "seed": 0}

    def line(*more, **changed):
        options = [w for k, v in (base | changed).items() for w in (f"--{k}", str(v))]
        return ["train", *options, "--json", "-", "--quiet", *more]

    def train(*lines, ranks=1):
        results = json_values(on_ranks(ranks, run_lines, str(tmp_path), lines))
        assert len(results) == len(lines)
        return results

    done = command(*line())
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)
    assert first["strategy"] == "synchronous" and first["ranks"] == 1
    assert first["model"] == "dense" and first["data"] == "digits" and first["epochs"] == 2
    assert len(first["history"]) == 2 and first["samples_per_second"] > 0 < first["seconds"]
    assert first["history"][-1]["val_loss"] == first["val_loss"]
    assert 0.5 < first["val_accuracy"] <= 1
    (tmp_path / "first.json").write_text(json.dumps(first))
    again = json.loads(command("train", "--config", "first.json", "--json", "-").stdout)
    assert again["val_loss"] == first["val_loss"], "not reproducible"
    assert again["config"] == first["config"]
    own = {"every": 4, "synchronous": False, "moving_rate": 0.5, "momentum": 0.25, "upward": "auto"}
    words = ("--every", "4", "--moving-rate", "0.5", "--momentum", "0.25")
    *others, serial, momentum = train(
        line(epochs=3), line(**{"batch-size": 64}), line(optimizer="sgd"), line(seed=1),
        line("--warm-up", "1", **{"learning-rate": 0.002}), line("--model", "softmax"),
        line("--strategy", "serial"), line(optimizer="momentum"),
    )  # fmt: skip
    assert others[4]["learning_rate"] == 0.002  # the requested rate, not that of step 0
    losses = [first["val_loss"]] + [other["val_loss"] for other in others]
    assert len(set(losses)) == len(losses)
    assert serial["val_loss"] == first["val_loss"] and serial["profile"]["update_seconds"] > 0
    assert momentum["momentum"] == 0.9
    two, shared = train(line(), line("--one-copy"), ranks=2)
    assert two["ranks"] == 2 and abs(two["val_loss"] - first["val_loss"]) < 1e-4
    assert shared["one_copy"] and not two["one_copy"] and shared["val_loss"] == two["val_loss"]
    elastic = line("--strategy", "elastic_averaging", *words, optimizer="sgd")
    (elastic,) = train(elastic, ranks=2)
    assert own.items() <= elastic.items() and elastic["optimizer"] == "sgd"
    rules = ("local_steps", "--compression", "int8"), ("gossip",), ("diloco_async", "--quorum", "1")
    seldom = train(*(line("--strategy", *rule, "--inner-steps", "9") for rule in rules), ranks=2)
    assert [one["strategy"] for one in seldom] == [rule[0] for rule in rules]
    assert all(one["val_accuracy"] > 0.5 for one in seldom)


@pytest.mark.thorough
def test_every_strategy_trains_at_its_defaults(on_ranks, tmp_path):
    """Other models: tests/soak."""
    train_at_defaults(on_ranks, tmp_path, "dense", "digits", 10)


def train_at_defaults(on_ranks, folder, model, data, epochs):
    """None ends at a validation loss of more than twice that of one process: means of 3 seeds."""

    def losses(ranks, *strategies):
        line = ["train", "--model", model, "--data", data, "--epochs", str(epochs), "--quiet"]
        line += ["--json", "-", "--strategy"]
        lines = [[*line, strategy, "--seed", seed] for strategy in strategies for seed in "012"]
        found = json_values(on_ranks(ranks, run_lines, str(folder), lines))
        found = np.reshape([one["val_loss"] for one in found], (len(strategies), 3))
        return dict(zip(strategies, found.mean(axis=1), strict=True))

    serial = losses(1, "serial")["serial"]
    for strategy, loss in losses(3, *sorted({*STRATEGIES} - {"serial"})).items():
        assert loss < 2 * serial, (strategy, loss, serial)


@pytest.mark.thorough
def test_interrupt(tmp_path):
    """Ctrl-C ends all ranks and is reported once."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tutorial_dl", "train", "-n", "2", "--epochs", "100000",
         "--checkpoint", str(tmp_path / "run"), "--checkpoint-every", "20"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        os.set_blocking(process.stderr.fileno(), False)
        seen, end = b"", time.monotonic() + 600
        while b"epoch 1 of 100000: " not in seen or not [*tmp_path.glob("run/step_*")]:
            assert process.poll() is None and time.monotonic() < end, seen
            seen += process.stderr.read() or b""
            time.sleep(0.02)
        os.set_blocking(process.stderr.fileno(), True)
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=600)
        assert process.returncode == 130
        assert (
            rest.count(b"interrupted; --resume goes on from") == 1 and b"Traceback" not in rest
        ), rest
    finally:
        process.kill()


ONE_RANK = """
import os, signal, sys, time
from mpi4py import MPI
from tutorial_dl import data
rank = MPI.COMM_WORLD.rank

def ends():
    if rank == 1:
        sys.exit("no data here")
    return data.digits()

def fails():
    if rank == 1:
        raise OSError("disk is full")
    return data.digits()

def late():
    time.sleep(4 * (rank == 0))
    raise OSError("disk is full")

def killed():
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return data.digits()

def uneven():
    whole = data.digits()
    return data.Dataset("uneven", data.shard(whole.train, rank, 2), whole.validation, 10)

def label():
    (x, y), kept = data.digits().train.take(slice(0, 300)), data.digits().validation
    y[200] = -1 if rank == 1 else y[200]
    return data.Dataset("label", data.Data.of(x, y), kept, 10)

def huge():
    whole = data.digits()
    x, y = whole.validation.take(slice(0, 100))
    x = x.copy()
    x[7] = 3e38
    return data.Dataset("huge", whole.train, data.Data.of(x, y), 10)
"""


@pytest.mark.thorough(but="killed-1-has ended, by signal SIGKILL")
@pytest.mark.parametrize(
    ("function", "status", "message"),
    [
        ("ends", 2, "no data here"),
        ("fails", 2, "OSError: disk is full"),
        ("late", 2, "OSError: disk is full"),
        ("killed", 1, "has ended, by signal SIGKILL"),
        ("uneven", 2, "ranks differ in the training samples: 719 on rank 1"),
        ("label", 2, "can't be used on data"),
        ("huge", 1, "the validation loss is nan after epoch 1"),
    ],
)
def test_wrong_on_one_rank(command, tmp_path, function, status, message):
    (tmp_path / "one_rank.py").write_text(ONE_RANK)
    done = command("train", "-n", "2", "--quiet", "--data", f"one_rank:{function}")
    assert message in error_of(done, status)


def main_job(command, folder, most_ranks, epochs=30):
    """`run` prints a table, trains the CNN well, and writes a self-contained report.

    epochs: of the GAN. Returns what was printed, and the GAN's result.
    """
    done = command("run", "-n", str(most_ranks), "--json", "all.json", timeout=600)
    assert done.returncode == 0, done.stderr
    for word in ("strategy", "accuracy", "samples/s", "speed-up", "predicted", "synchronous"):
        assert word in done.stdout
    results = json.loads((folder / "all.json").read_text())
    with_masters = "downpour", "elastic_averaging", "gradient_energy_matching"
    expected = [
        ("dense", "serial", 1), ("dense", "synchronous", 1), ("dense", "synchronous", 2),
        ("dense", "synchronous", 4), *(("dense", name, 3) for name in with_masters),
        ("dense", "hogwild", 2), ("cnn", "serial", 1), ("cnn", "synchronous", 2),
        ("digits-gan", "synchronous", 2),
    ]  # fmt: skip
    expected = [one for one in expected if one[2] <= most_ranks]
    assert [(r["model"], r["strategy"], r["ranks"]) for r in results] == expected
    *compared, gan = results
    assert compared[-1]["val_accuracy"] >= 0.97
    assert all(r["config"]["output"]["rehearse"] for r in compared)
    assert "of 1000 generated ones for the class asked for, and " in done.stdout
    report = Path(folder, "report.html").read_text()
    assert '<meta name="viewport" content="width=device-width' in report
    assert "prefers-color-scheme: dark" in report and "validation loss" in report
    assert report.count("<svg") == 3 and report.count("<tr>") == 1 + len(compared)
    assert report.count("data:image/png") == len(gan["samples"]) >= min(4, epochs + 1)
    assert f"epoch {epochs}<" in report
    for outside in ('src="http', 'href="http', "<script", "<link"):
        assert outside not in report
    return done.stdout, gan


SHORTER = """
from tutorial_dl.__main__ import main
from tutorial_dl.cli import run

run.GAN = run.GAN._replace(epochs=2)
main()
"""


def test_the_main_job(command, tmp_path):
    """With a GAN that learns little. `make soak` trains it, and runs on up to four ranks."""
    main_job(functools.partial(command, program=("-c", SHORTER)), tmp_path, 2, epochs=2)


@pytest.mark.thorough
def test_its_gan_learns_to_draw_digits(command, users_folder):
    """In 18 epochs; the main job's 30 are for the eye."""
    words = ("--model", "digits-gan", "--epochs", "18", "--quiet", "--json", "gan.json")
    done = command("train", "-n", "2", *words)
    assert done.returncode == 0, done.stderr
    result = json.loads((users_folder / "gan.json").read_text())
    assert result["accuracy_asked"] >= 0.85 and result["missing_classes"] == 0

"""Options are declared once, in config.py; these tests are of what is derived from them."""

import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from numba_kernels import launch
from numba_kernels.optimizers.base import RANGES
from tutorial_dl import Trainer, data, models, strategies
from tutorial_dl.cli import train
from tutorial_dl.cli.commands import app
from tutorial_dl.config import (
    COMPONENTS,
    OPTIONS,
    STRATEGY_OPTIONS,
    CheckpointConfig,
    RunConfig,
    markdown,
    read,
    taken_by,
)
from tutorial_dl.options import monitor_of
from tutorial_dl.training import schedules
from tutorial_dl.training.callbacks import EarlyStopping
from tutorial_dl.training.ranks import ranks_of, with_ranks

ROOT = Path(__file__).parents[3]
OTHERS = {
    "compile": "xla", "model_arguments": '{"width": 3}',
    "model": "softmax", "data": "curve", "strategy": "downpour", "epochs": 7, "batch_size": 64,
    "optimizer": "lamb", "learning_rate": 0.0, "seed": 3, "quiet": True, "json": "-",
    "one_copy": True, "save": "m.npz", "save_best": "b.npz", "timeline": "t.png",
    "schedule": "cosine", "warm_up": 1.5, "monitor": "val_accuracy:max",
    "batch_rule": "square-root", "base_batch_size": 16, "accumulate": 2, "clip_norm": 0.25,
    "compression": "top_k", "patience": 4, "target": "val_loss=0", "report_every": 9,
    "checkpoint": "folder", "checkpoint_every": 12, "resume": True, "requeue": True,
    "features": "x", "labels": "y", "validation": "0.3", "cache": "local", "ranks": 2,
    "masters": 2, "workers": 3, "devices": 4, "every": 5, "synchronous": True,
    "staleness_aware": True, "lower_momentum": True, "momentum": 0.0, "moving_rate": 0.5,
    "discard": 3, "delay_compensation": 0.5, "inner_steps": 7, "outer_rate": 0.5,
    "outer_optimizer": "adam", "peer_momentum": 0.25, "outer_momentum": 0.8, "quorum": 2,
    "grace": 0.5,
    "kappa": 2.0, "upward": "6", "sync_batch_norm": True, "class_weight": "0=2", "log": "l.csv",
    "pipeline": 2, "micro_batches": 6, "pipeline_schedule": "zb_h1", "chunks": 2, "cut_at": "a,b",
    "recompute": True, "tensor": 2, "tensor_rules": "a=rows", "shard": 0, "context": 2,
    "sequence_parallel": True,
    "keep_order": True, "rehearse": True,
    "weight_decay": 0.01, "beta_1": 0.8, "beta_2": 0.9, "ema": 0.5, "look_ahead": 3,
    "noise_scale": True,
    "discriminator_learning_rate": 0.5, "discriminator_steps": 3, "gan_loss": "wasserstein",
    "gan_turns": "simultaneous",
    "gradient_penalty": 2.0, "label_smoothing": 0.1, "label_flips": 0.2,
}  # fmt: skip


def refused_by(strategy):
    """The options that only other strategies take; any takes momentum, for its optimizer."""
    rules = {name: taken_by(name) for name in OTHERS if name != "momentum"}
    return {name for name, takers in rules.items() if takers and strategy not in takers}


def others():
    """OTHERS for each strategy, without the options that it refuses."""
    for strategy in STRATEGY_OPTIONS:
        without = refused_by(strategy) | {"one_copy"}  # excludes compression and shard 0
        yield {n: v for n, v in OTHERS.items() if n not in without} | {"strategy": strategy}


@pytest.fixture
def parsed(monkeypatch):
    """parsed("train", ...) -> the RunConfig that the command line makes of these words"""

    def run(*words, under_mpi=True):
        seen = []
        monkeypatch.setattr(launch, "under_mpi", lambda: under_mpi)
        monkeypatch.setattr(train, "check", lambda config: seen.append(config) and None)
        monkeypatch.setattr(train, "run_rank", lambda config: 0)
        monkeypatch.setattr(
            launch, "run_ranks", lambda *_, **__: subprocess.CompletedProcess("", 0)
        )
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 0, done.output
        return seen[0]

    return run


def refused(*words):
    """The message for a wrong command line."""
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "1000"})
    assert done.exit_code == 2
    return done.output


def test_defaults(parsed):
    assert parsed("train") == RunConfig()
    assert RunConfig().changed() == {}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_word_goes_through(parsed, name):
    strategy = (taken_by(name) or ["synchronous"])[0]
    said = RunConfig.of(**{"strategy": strategy, name: OTHERS[name]})
    assert said.values()[name] != RunConfig().values()[name]
    if name == "ranks":  # not passed on, because the ranks have been started
        assert said.changed() == {}
        assert parsed("train", "-n", "2", under_mpi=False) == said
    else:
        pairs = ((OPTIONS[n].flag, value) for n, value in said.changed().items())
        words = [w for flag, v in pairs for w in ([flag] if v is True else [flag, str(v)])]
        assert parsed("train", *words) == said
        assert RunConfig.of(**json.loads(json.dumps(said.changed()))) == said  # how ranks get them


@pytest.mark.parametrize("given", others(), ids=list(STRATEGY_OPTIONS))
def test_a_rule_has_its_own_options_and_refuses_all_others(given):
    held, strategy = RunConfig.of(**given), given["strategy"]
    assert {name: held.values()[name] for name in given} == given
    for name in refused_by(strategy):
        assert not hasattr(held.strategy, name)
        message = f"{name} needs strategy .*, got '{strategy}'"
        with pytest.raises(ValueError, match=message):
            RunConfig.of(**{"strategy": strategy, name: OTHERS[name]})
        with pytest.raises(ValueError, match=message):
            strategies.get(strategy, **{name: OTHERS[name]})


# Files


@pytest.mark.parametrize("options", others(), ids=list(STRATEGY_OPTIONS))
def test_a_file_as_written_is_the_same_run(parsed, tmp_path, options):
    said = RunConfig.of(**options)
    file, result = tmp_path / "run.toml", tmp_path / "result.json"
    file.write_text(said.toml(), encoding="utf-8")
    result.write_text(json.dumps({"loss": 0.5, "config": said.tables()}))
    # Files that a run has written are its own: the next one does not write them again.
    files = ("log", "json", "save", "save_best", "timeline")
    output = replace(said.output, **dict.fromkeys(files))
    again = replace(said, output=output, checkpoint=CheckpointConfig())
    for one, taken in ((file, said), (result, again)):
        assert RunConfig.of(**read(one)) == taken
        assert parsed("train", "--config", str(one), under_mpi=False) == taken
    # Under mpiexec, the number of ranks is that of mpiexec.
    assert parsed("train", "--config", str(file)).layout.ranks is None


def test_a_file_has_the_options_of_its_strategy_only():
    for name, rule in STRATEGY_OPTIONS.items():
        held = RunConfig.of(strategy=name)
        assert held.tables()["strategy"].keys() <= rule.taken() | {"strategy"}
        assert RunConfig.of(**{k: v for t in held.tables().values() for k, v in t.items()}) == held
    assert set(RunConfig.of(strategy="serial").tables()["strategy"]) == {"strategy"}
    assert "one_copy" in RunConfig().tables()["strategy"]


@pytest.mark.thorough
@given(st.text(st.characters(codec="utf-8")), st.floats(0, 1e300), st.integers(0, 2**62))
def test_texts_and_numbers_survive_a_file(text, rate, seed):
    said = RunConfig.of(data=text, learning_rate=rate, seed=seed)
    tables = tomllib.loads(said.toml())
    assert tables == said.tables()
    assert tables["data"]["data"] == text and tables["optimizer"]["learning_rate"] == rate


def test_the_command_line_wins(parsed, tmp_path):
    file = tmp_path / "run.toml"
    text = '[schedule]\nepochs = 9\nwarm_up = 2\n[data]\ndata = ["a.h5", "b.h5"]\n'
    file.write_text(text + "[output]\nquiet = true\n")
    found = parsed("train", "--epochs", "3", "--config", str(file), "--no-quiet")
    right = {"epochs": 3, "warm_up": 2.0, "data": "a.h5,b.h5", "quiet": False}
    assert found == RunConfig.of(**right)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[optimizer]\nlearning_rat = 1", "did you mean learning_rate in [optimizer]?"),
        ("[optimizer]\nepochs = 1", "unknown option 'epochs' in [optimizer]; did you mean epochs in"
         " [schedule]?"),
        ("[optimiser]\nlearning_rate = 1", "unknown table [optimiser]; did you mean [optimizer]?"),
        ("epochs = 1", "option 'epochs' is outside of a table; it belongs in [schedule]"),
        ("data = 'digits'", "'data' must be a table: [data]"),
        ("[zebra]", "unknown table [zebra]; choose one of [data], [optimizer]"),
        ("[schedule]\nepochs = 0", "epochs must be at least 1, got 0"),
        ("[schedule]\nepochs = 2.5", "epochs must be a whole number, got 2.5"),
        ("[schedule]\nepochs = true", "epochs must be a whole number, got True"),
        ("[output]\nquiet = 'yes'", "quiet must be true or false, got 'yes'"),
        ("[optimizer]\nlearning_rate = inf", "learning_rate must be finite, got inf"),
        ("[strategy]\nstrategy = 'easgd'", "unknown strategy 'easgd'; choose one of serial, "),
        ("[schedule\n", "cannot read"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_one_line(tmp_path, text, message):
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ValueError) as error:
        read(file)
    assert message in str(error.value) and str(file) in str(error.value)
    assert "\n" not in str(error.value)
    assert message in refused("train", "--config", str(file))


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "list.json").write_text("[1]")
    for name, message in (
        ("none.toml", "No such file"), (".", "cannot read"),
        ("list.json", "must hold tables of options, got a list"),
    ):  # fmt: skip
        assert message in refused("train", "--config", str(tmp_path / name))


# What else is derived


def test_names_are_those_of_their_rooms():
    assert OPTIONS["schedule"].choices == tuple(schedules.DECAYS)
    assert OPTIONS["batch_rule"].choices == tuple(schedules.BATCH_RULES)
    assert OPTIONS["strategy"].choices == tuple(strategies.NAMES)
    assert f"({', '.join(models.NAMES)})" in OPTIONS["model"].help
    assert set(OPTIONS["data"].help.split("(")[1].split(")")[0].split(", ")) == set(data.NAMES)
    for name, rule in STRATEGY_OPTIONS.items():
        kind = getattr(strategies, strategies.NAMES[name])
        arguments = set(inspect.signature(kind).parameters)
        if "where" in arguments:
            arguments |= {"upward", "layout"}
        assert rule.taken() <= arguments


def test_defaults_are_those_of_a_trainer():
    arguments = inspect.signature(Trainer).parameters
    shared = OPTIONS.keys() & arguments.keys()
    assert {"batch_size", "seed", "accumulate", "clip_norm", "checkpoint_every"} <= shared
    for name in shared - {"model"}:
        assert OPTIONS[name].default == arguments[name].default, name


def test_defaults_and_ranges_are_those_of_the_rules():
    for name, rule in STRATEGY_OPTIONS.items():
        kind = getattr(strategies, strategies.NAMES[name])
        arguments = {n: a.default for n, a in inspect.signature(kind).parameters.items()}
        for one in rule.taken() & arguments.keys() & OPTIONS.keys() - {"momentum"}:
            assert OPTIONS[one].default == arguments[one], f"{name}: {one}"
        if "momentum" in rule.takes:
            words = f"{name.removeprefix('gradient_').replace('_', ' ')} (default: "
            assert f"{words}{arguments['momentum']:g})" in OPTIONS["momentum"].help
    for name in ("momentum", "clip_norm", "learning_rate"):  # those of optimizers
        low, high = RANGES[name]
        for value, fits in ((low, True), (-1e-9, False), (high, False), (0.5, True)):
            with nullcontext() if fits else pytest.raises(ValueError, match=name):
                OPTIONS[name].checked(value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"ranks": 3, "tensor": 2}, "-n 3 can't be divided into tensor groups of 2"),
        ({"ranks": 6, "tensor": 2, "pipeline": 2}, "2 stages of tensor groups of 2"),
        ({"monitor": "val_loss"}, "--monitor has no effect without --patience or --save-best"),
        (
            {"optimizer": "schedule_free_sgd", "schedule": "cosine", "warm_up": 1.0},
            "averages in place of a schedule, and knows no other rate: leave --schedule and --warm",
        ),
        ({"batch_rule": "noise", "warm_up": 1.0}, "grows the batch at a constant learning rate"),
        ({"monitor": "val_x", "patience": 1}, "say what is better, val_x:max or val_x:min"),
        ({"monitor": "loss_auc_x", "patience": 1}, "loss_auc_x:max or loss_auc_x:min"),
        (
            {"ranks": 4, "context": 2, "tensor": 3},
            "context groups of 2 x 3 ranks: use a multiple of 6",
        ),
        ({"tensor_rules": "a=rows"}, "--tensor-rules has no effect without --tensor"),
        ({"sequence_parallel": True}, "--sequence-parallel has no effect without --tensor"),
        (
            {"ranks": 4, "tensor": 2, "context": 2, "sequence_parallel": True},
            "--sequence-parallel does not fit --context",
        ),
        ({"tensor": 2, "tensor_rules": "rows"}, "tensor_rules must be LAYER=KIND,..., for example"),
        ({"tensor": 2, "shard": 0}, "--shard does not fit --tensor"),
        ({"tensor": 2, "strategy": "downpour"}, "--tensor with strategy 'downpour': use 'synchron"),
        ({"ranks": 3, "context": 2}, "-n 3 can't be divided into context groups of 2 ranks: use a"),
        ({"ranks": 6, "context": 2, "tensor": 2}, "context groups of 2 x 2 ranks: use a multiple"),
        ({"ranks": 6, "context": 2, "pipeline": 2}, "2 stages of context groups of 2"),
        (
            {"ranks": 12, "context": 2, "pipeline": 2, "tensor": 2},
            "2 stages of context groups of 2 x 2",
        ),
        ({"context": 2, "pipeline": 2, "compression": "fp16"}, "--compression does not fit --pipe"),
        ({"context": 2, "shard": 3}, "--shard 3 does not fit --context: use --shard 1"),
        ({"context": 2, "compile": "xla"}, "--compile xla does not fit --context"),
        ({"context": 2, "compression": "adasum"}, "--compression adasum does not fit --context"),
        ({"context": 2, "strategy": "downpour"}, "--context with strategy 'downpour': use 'synch"),
        ({"shard": 4}, "shard must be 0 to 3, the stage of ZeRO, got 4"),
        ({"shard": 3, "one_copy": True}, "one_copy does not fit shard 3: leave one of them out"),
        ({"shard": 2, "compression": "bf16"}, "compression does not fit shard 2, which reduces la"),
        ({"shard": 3, "sync_batch_norm": True}, "--sync-batch-norm does not fit --shard 3: use"),
        ({"shard": 2, "compile": "xla"}, "--compile xla does not fit --shard 2: its ranks commun"),
        ({"shard": 2, "pipeline": 2}, "--shard does not fit --pipeline"),
        ({"shard": 2, "strategy": "downpour"}, "shard needs strategy 'synchronous', got 'downp"),
    ],
)
def test_options_that_do_not_fit(options, line):
    with pytest.raises(ValueError, match=re.escape(line)):
        RunConfig.of(**options).check()


@pytest.mark.parametrize(
    ("name", "rising"),
    [
        ("val_accuracy", True), ("acc", True), ("val_auc_1", True), ("val_BinaryIoU", True),
        ("f1_score", True), ("dice_score", True), ("loss", False), ("val_Loss", False),
        ("val_iou_loss", False), ("val_accept_loss", False), ("recall_error", False),
        ("loss_auc_x", None), ("accepted", None),
    ],
)  # fmt: skip
def test_which_metrics_rise(name, rising):
    """By the last word of the name; without --monitor alike."""
    assert EarlyStopping(name).sign == (1 if rising else -1)
    if rising is not None:
        assert monitor_of(name) == (name, "max" if rising else "min")


def test_options_that_fit():
    assert ranks_of(RunConfig.of(tensor=2, pipeline=3)) == 6
    assert ranks_of(RunConfig.of(context=3, tensor=2)) == 6
    assert ranks_of(RunConfig.of(pipeline=2, context=3, tensor=2)) == 12
    RunConfig.of(context=2, tensor=2, accumulate=3).check()
    RunConfig.of(shard=3, clip_norm=1.0, accumulate=2, ranks=4, checkpoint="run").check()


def test_help_has_panels_and_shows_no_option_twice(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = CliRunner().invoke(app, ["train", "--help"]).output
    for option in OPTIONS.values():
        assert text.count(f"─ {option.panel} ─") == 1
        no_default = option.default is None or option.kind is bool
        assert no_default or re.search(rf"\[default: \(?{option.default}\)?\]", text), option.flag
        assert option.help.endswith(".") and (option.help[0].isupper() or option.help[0].isdigit())
        assert len(re.findall(f"^│ {option.flag} ", text, re.MULTILINE)) == 1, option.flag


@pytest.mark.parametrize("words", [[], ["train"], ["doctor"], ["cluster", "start"]])
def test_flags_have_no_type_in_help(words):
    text = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "160"}).output
    assert "--help" in text and "<bool>" not in text.lower()


def test_the_docs_have_the_table_of_options():
    text = (ROOT / "docs" / "training.md").read_text()
    assert markdown() in text, "update it with: python -m tutorial_dl.config"


COMPLETE = """
import sys, os
os.environ |= {"_TUTORIAL_DL_COMPLETE": "complete_bash", "COMP_WORDS": sys.argv[1],
               "COMP_CWORD": sys.argv[2]}
sys.argv = ["tutorial-dl"]
from tutorial_dl.__main__ import main
try:
    main()
finally:
    for heavy in ("tensorflow", "keras", "numba", "numpy", "mpi4py"):
        assert heavy not in sys.modules, heavy
"""


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("tutorial-dl train --strategy ", strategies.NAMES),
        (
            "tutorial-dl train --optimizer ada",
            ["adagrad", "adadelta", "adam", "adamw", "adafactor"],
        ),
        ("tutorial-dl train --check", ["--checkpoint", "--checkpoint-every"]),
        ("tutorial-dl tr", ["train"]),
    ],
)
def test_completion(words, names):
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE, words, str(len(words.split(" ")) - 1)],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.split() == list(names), done.stderr
    assert not done.stderr


def test_every_component_has_its_table():
    for options in others():
        assert list(COMPONENTS) == list(RunConfig.of(**options).tables())
    assert OPTIONS.keys() == OTHERS.keys()


@pytest.mark.parametrize(
    ("options", "ranks", "kept"),
    [
        ({}, 1, None),
        ({}, 3, 3),  # under mpiexec
        ({"ranks": 2}, 2, 2),
        ({"strategy": "downpour", "workers": 2}, 3, None),  # so that --workers 3 can be given
        ({"strategy": "downpour"}, 4, 4),
        ({"strategy": "downpour", "devices": 2}, 5, 5),
        ({"masters": 0, "workers": 2}, 2, None),
        ({"strategy": "local_steps", "workers": 2, "devices": 3}, 6, None),
        ({"strategy": "gossip", "devices": 2}, 6, 6),
    ],
)
def test_ranks_are_kept_where_they_do_not_follow(options, ranks, kept):
    found = with_ranks(RunConfig.of(**options), ranks)
    assert found == RunConfig.of(**options | {"ranks": kept})
    assert (ranks_of(found) or 1) == ranks

"""The options of `train`: the ranks get the options that the user gave."""

from dataclasses import MISSING, fields

import pytest
from typer.testing import CliRunner

from numba_kernels import launch
from tutorial_dl.cli import train
from tutorial_dl.cli.commands import app
from tutorial_dl.training.options import Options

FIRST = Options("dense", "digits", "synchronous", 5, 32, None, None, 0, False, None)
OTHERS = {
    "model": "softmax", "data": "curve", "strategy": "serial", "epochs": 7, "batch_size": 64,
    "optimizer": "lamb", "learning_rate": 0.0, "seed": 3, "quiet": True, "json": "-",
    "one_copy": True, "timeline": "t.png", "schedule": "cosine", "warm_up": 1.5,
    "batch_rule": "square-root", "base_batch_size": 16, "accumulate": 2, "clip_norm": 0.25,
    "compression": "top_k", "patience": 4, "target": "val_loss=0", "report_every": 9,
    "checkpoint": "folder", "checkpoint_every": 12, "resume": True, "features": "x",
    "labels": "y", "validation": "0.3", "cache": "local",
    "masters": 2, "workers": 3, "devices": 4, "every": 5, "synchronous": True,
    "staleness_aware": True, "lower_momentum": True, "momentum": 0.0, "moving_rate": 0.5,
    "kappa": 2.0, "upward": "6",
}  # fmt: skip


def as_parsed(words: list[str], monkeypatch) -> Options:
    """The Options that the command line makes of `words`."""
    seen = []
    monkeypatch.setattr(launch, "under_mpi", lambda: True)
    monkeypatch.setattr(Options, "check", lambda self, ranks: None)
    monkeypatch.setattr(train, "run_rank", lambda options: seen.append(options) or 0)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return seen[0]


def test_defaults(monkeypatch):
    assert as_parsed(["train"], monkeypatch) == FIRST


@pytest.mark.parametrize("name", [field.name for field in fields(Options)])
def test_each_word_goes_through(monkeypatch, name):
    defaults = {f.name: f.default for f in fields(Options) if f.default is not MISSING}
    said = Options(**{**vars(FIRST), **defaults, name: OTHERS[name]})
    assert getattr(said, name) != getattr(FIRST, name)
    assert as_parsed(said.words(), monkeypatch) == said

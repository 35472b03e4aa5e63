"""What `train` prints and writes in the end, and the rehearsal before it."""

import json
from pathlib import Path

import numpy as np
import pytest
from commands_here import run_here

from numba_kernels.jit.cache import KernelCache
from tutorial_dl import Team
from tutorial_dl.cli import applying, train_result
from tutorial_dl.cli.outcome import outcome
from tutorial_dl.cli.train import trainer_of
from tutorial_dl.config import RunConfig
from tutorial_dl.training.progress import TERMINAL

RESULT = {
    "model": "dense", "strategy": "serial", "ranks": 1, "loss": 0.25, "val_loss": 0.5,
    "val_accuracy": 0.75, "samples_per_second": 228249.4, "seconds": 4.5, "history": [{}, {}],
}  # fmt: skip


def test_the_result_is_one_line_with_the_model_and_what_its_numbers_are():
    assert train_result.in_words(RESULT) == (
        "dense, serial on 1 rank: loss 0.2500, validation loss 0.5000, validation accuracy 0.7500; "
        "trained for 4.50 s, 228,249 samples/s after the first epoch"
    )
    short = RESULT | {"ranks": 2, "val_loss": None, "val_accuracy": None, "history": [{}]}
    assert train_result.in_words(short) == (
        "dense, serial on 2 ranks: loss 0.2500; trained for 4.50 s, 228,249 samples/s"
    )


def test_in_a_terminal_the_result_follows_the_bar_on_its_way(capsys, monkeypatch):
    train_result.write(RESULT, None)
    assert capsys.readouterr().out.startswith("dense, serial")
    monkeypatch.setenv(TERMINAL, "both")
    train_result.write(RESULT, None)
    seen = capsys.readouterr()
    assert seen.err.startswith("dense, serial") and not seen.out
    monkeypatch.setenv(TERMINAL, "1")  # `train > result.txt`
    train_result.write(RESULT, None)
    assert capsys.readouterr().out.startswith("dense, serial")


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.3, 1.0, 1e-7, 0.05])
def test_float32_numbers_are_written_as_they_were_given(rate):
    assert train_result.shortest(float(np.float32(rate))) == rate
    assert train_result.shortest(rate) == rate
    assert train_result.shortest(1 / 3) == 1 / 3  # no float32


def test_what_predict_says():
    assert (
        applying.in_words({"": np.zeros((360, 10))}) == "outputs for 360 samples, shape (360, 10)"
    )
    two = {"a": np.zeros((1, 2)), "b": np.zeros((1, 3))}
    assert applying.in_words(two) == "outputs for 1 sample, shapes a (1, 2), b (1, 3)"


# Results beside each other ---------------------------------------------------------------------


def result(losses, ranks=1, **more):
    rows = [{"epoch": n, "loss": loss, "val_loss": loss} for n, loss in enumerate(losses, 1)]
    config = {"data": {"model": "dense"}, "layout": {}, "output": {"json": "a"}}
    return RESULT | {"config": config, "ranks": ranks, "history": rows, "val_accuracy": None} | more


def test_compare_shows_what_differs_and_draws_the_curves(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, ranks, losses in (("one[lr]", 1, [3.0, 0.25]), ("four", 4, [2.0, 0.125])):
        told = result(losses, ranks, loss=losses[-1])
        told["config"]["output"]["json"] = name  # where it went is no difference
        Path(f"{name}.json").write_text(json.dumps(told))
    done = run_here(capfd, "compare", "one[lr].json", "four.json", "--figure", "both.svg")
    head, _line, *rows, last = [row.split() for row in done.stdout.splitlines() if row.strip()]
    assert head == ["result", "ranks", "loss", "val", "loss", "samples/second", "seconds"]
    assert rows[0] == ["one[lr]", "1", "0.25", "0.5", "228,249", "4.5"]
    assert rows[1][:3] == ["four", "4", "0.125"] and last == ["figure:", "both.svg"]
    assert "<svg" in Path("both.svg").read_text()


@pytest.mark.parametrize(
    "words, message",
    [
        ("none.json", "cannot read none.json: No such file or directory"),
        ("broken.json", "broken.json is no result of `train --json FILE`"),
        ("other.json", "other.json is no result of `train --json FILE`"),
        ("one.json one.json", "compare got one.json twice"),
        ("one.json --figure a.txt", "--figure must be a file name that ends in .png, .svg, .pdf"),
    ],
)
def test_compare_refuses(capfd, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    for name, text in (("broken", "x"), ("other", "[]"), ("one", json.dumps(result([1.0])))):
        Path(f"{name}.json").write_text(text)
    done = run_here(capfd, "compare", *words.split())
    assert done.returncode == 2 and done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1


# Sentences about the runs of `run` ------------------------------------------------------------


def row(strategy, ranks, speed_up, loss=0.05, accuracy=0.98, model="dense"):
    return {
        "model": model, "strategy": strategy, "ranks": ranks, "speed_up": speed_up,
        "val_loss": loss, "val_accuracy": accuracy,
    }  # fmt: skip


def test_sentences_are_computed_from_the_rows():
    rows = [
        row("serial", 1, 1.0), row("synchronous", 1, 1.1), row("synchronous", 2, 1.62, 0.0501),
        row("synchronous", 4, 1.2), row("downpour", 3, 1.9, 0.06, 0.97),
        row("elastic_averaging", 3, 1.9, 0.04, 0.99),
        row("serial", 1, 1.0, 0.1, model="cnn"), row("synchronous", 2, 0.72, 0.1, model="cnn"),
    ]  # fmt: skip
    assert outcome(rows, 2, 0.1) == [
        "Model dense: 2 ranks trained 1.6 times as fast as one process.",
        "Model cnn: one process was faster than several ranks (2 ranks: 0.72 times).",
        "All synchronous runs ended with the loss of one process, to within 0.2%.",
        "Of the asynchronous strategies, elastic averaging ended with the lowest validation loss, "
        "0.0400 (one process: 0.0500); their accuracies are 0.970 to 0.990 (one process: 0.980).",
    ]
    rows[2] |= {"speed_up": 1.01, "val_loss": 0.06}
    rows[3]["speed_up"] = 0.9
    said = outcome(rows[:4], 2, 5.0)
    assert said == [
        "Model dense: 2 ranks were about as fast as one process.",
        "Losses of synchronous runs differ from those of one process by up to 20%.",
        "Other programs kept up to 2.0 of 2 cores busy meanwhile, so times and speed-ups are not "
        "those of a quiet machine.",
    ]
    assert outcome(rows[:1], 2, 0.0) == []


# The rehearsal --------------------------------------------------------------------------------

RULES = (
    "synchronous", "downpour", "elastic_averaging", "gradient_energy_matching", "hogwild",
    "local_steps", "gossip", "diloco_async",
)  # fmt: skip


def rehearsed():
    """Kernels that are compiled or loaded before training counts, and after that."""
    made, of_cache = [], KernelCache.load_overload
    team, found = Team(), {}

    def counted(self, sig, context):
        made.append(sig)
        return of_cache(self, sig, context)

    KernelCache.load_overload = counted
    try:
        for rule in RULES:
            config = RunConfig.of(
                strategy=rule, epochs=2, batch_size=256, quiet=True, rehearse=True, patience=1,
                optimizer="sgd", learning_rate=0.1,
            )  # fmt: skip
            made.clear()
            trainer = trainer_of(config, team)
            before = len(made)
            trainer.fit_to(2)
            found[rule] = [before, len(made) - before, len(trainer.history.epochs)]
    finally:
        KernelCache.load_overload = of_cache
    every = team.allgather(np.array([found[rule] for rule in RULES]).ravel())
    if team.rank == 0:
        print(json.dumps(np.reshape(every, (team.size, len(RULES), 3)).tolist()))


@pytest.mark.thorough
def test_all_is_compiled_before_training_counts(on_ranks):
    counts = np.array(json.loads(on_ranks(3, rehearsed, fresh=True)))  # (ranks, rules, 3)
    assert (counts[:, 0, 0] > 0).all()  # the first rule's kernels at least
    assert not counts[..., 1].any(), dict(zip(RULES, counts[..., 1].T.tolist(), strict=True))
    assert (counts[..., 2] == 2).all()  # the rehearsal does not count

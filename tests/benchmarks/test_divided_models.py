"""Benches of models that ranks divide: what is measured, on small networks. Their speed is not."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as commands
from benchmarks import pipeline_throughput as throughput
from benchmarks import pipelines, sharding, tensor_throughput, torch_peers
from numba_kernels import Team
from numba_kernels.bench.rows import merge
from tutorial_dl.model_parallel.schedules import Action, gpipe
from tutorial_dl.model_parallel.simulating import Span, Timetable
from tutorial_dl.replica import LayeredReplica
from tutorial_dl.replica.layers import Dense


def small_rows(out, bench, sizes):
    """Rank 0 writes the rows of a bench, with these sizes in its modules, {"module.NAME": size}."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            module, _, name = name.partition(".")
            patch.setattr(import_module(f"benchmarks.{module}"), name, size)
        rows = import_module(f"benchmarks.{bench}").rows(0.01, False)
    if Team().rank == 0:
        Path(out).write_text(json.dumps(rows))


@pytest.fixture
def rows_of(on_ranks, tmp_path):
    def run(bench, sizes, **options):
        on_ranks(2, small_rows, str(tmp_path / "rows.json"), bench, sizes, **options)
        return json.loads((tmp_path / "rows.json").read_text())

    return run


def test_a_step_and_its_work(rows_of):
    small = {"NARROW": 16, "WIDE": 24, "MICRO_BATCHES": (2, 4)}
    rows = rows_of("pipelines", {f"pipelines.{name}": size for name, size in small.items()})
    assert [one["algorithm"] for one in rows] == [
        f"{name}, m = {m}" for m in (2, 4) for name in ("gpipe", "1f1b", "zb_h1")
    ]
    # (S - 1) / (m + S - 1); and of zb_h1 (S - 1) / (3 m + S - 1)
    right = [1 / 3, 1 / 3, 1 / 7, 1 / 5, 1 / 5, 1 / 13]
    assert [one["predicted_bubble"] for one in rows] == pytest.approx(right)
    for one in rows:
        assert len(one["ours_us"]) == len(one["peer_us"]) >= pipelines.ROUNDS
        assert all(
            0 < work < step for work, step in zip(one["peer_us"], one["ours_us"], strict=True)
        )
        assert one["parameters"] == 2 * 12 * (16 * 24 + 24 + 24 * 16 + 16)
        assert one["moved_bytes"] == 2 * int(one["algorithm"][-1]) * 128 * 16 * 4
        # The bubble of even actions, which is the predicted one where F = B = W, and what is lost
        for step, work, *lost in zip(
            one["ours_us"], one["peer_us"], *one["lost"].values(), strict=True
        ):
            assert lost[2] > 0 and 0 < 1 - work / step - sum(lost) < 1 / 2
    for one, merged in zip(rows, merge([rows]), strict=True):
        # A step that loses nothing but the predicted bubble reaches the whole limit, 1.
        work = merged["peer_us"] / (1 - one["predicted_bubble"])
        assert merged["fraction_of_limit"] == pytest.approx(work / merged["ours_us"])


@pytest.mark.xdist_group("keras")
def test_throughput(rows_of, tmp_path, monkeypatch, capsys):
    sizes = {"pipelines.NARROW": 8, "pipelines.WIDE": 12, "pipeline_throughput.SAMPLES": 3}
    rows = rows_of("pipeline_throughput", sizes, keras=True)
    names = [f"{throughput.WHAT}, {name}" for name in ("numpy", "Keras") for _ in range(4)]
    assert [one["what"] for one in rows] == names
    assert [one["peer"] for one in rows] == [throughput.WHOLE, throughput.MICRO] * 4
    for one in rows:
        assert one["predicted_bubble"] == pytest.approx(1 / 17) and min(one["ours_us"]) > 0
    # One rank with a micro-batch of all samples computes the same loss and gradient
    layers = []
    for block in range(6):
        layers += [Dense(f"{block}", 8, 12), Dense(f"{block} back", 12, 8)]
    alone = LayeredReplica(layers, "mse")
    x = np.random.default_rng(16).standard_normal((48, 8), "f4")
    loss, _ = alone.compute_gradient((x, x))
    stage = np.linalg.norm(alone.gradient[: alone.gradient.size // 2])
    for one in rows[:4]:
        assert one["loss"] == pytest.approx(loss, rel=1e-5)
        assert one["gradient"] == pytest.approx(stage, rel=1e-4)

    # 2 (1 - 1/17) = 32/17 times as fast as one rank is the ideal
    ideal = [one | {"ours_us": [17.0], "peer_us": [32.0], "limit_us": 17.0} for one in rows]
    theirs = {"seconds": [34e-6], "loss": loss, "gradient": float(stage)}
    parts = {commands.PIPELINES: [], commands.THROUGHPUT: ideal}
    monkeypatch.setattr(commands, "one_run", lambda part, *_, **__: parts[part])
    monkeypatch.setattr(torch_peers, "run", lambda *_: {"1f1b": theirs})
    monkeypatch.setenv(torch_peers.TORCH, sys.executable)
    commands.pipelines(2, 1.0, str(tmp_path / "all.json"))
    result = json.loads((tmp_path / "all.json").read_text())
    assert [one["fraction_of_limit"] for one in result["rows"][:8]] == [1.0] * 8
    (against,) = result["rows"][8:]
    assert (against["peer"], against["ratio"]) == (torch_peers.PIPELINE, pytest.approx(2))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split()[-2:] == ["gloo", "2.00"] and lines[-2].split()[-2:] == ["1.88", "1.00"]

    with pytest.raises(ValueError, match=r"1f1b: torch has loss 1\.0, not"):
        throughput.against(rows, {"1f1b": theirs | {"loss": 1.0}}, "torch")
    with pytest.raises(ValueError, match="-n must be at least 2 for pipelines, got 1"):
        commands.pipelines(1, 1.0, None)


def test_the_bubble_is_that_of_quickest_steps():
    key = {"what": "pipeline", "parameters": 1, "algorithm": "gpipe, m = 2", "limit_us": 90.0}
    key |= {"lost": {"ranks": [0.1, 0.2], "actions": [0.01, 0.02], "rest": [0.3, 0.3]}}
    starts = [
        [key | {"ours_us": [110.0, 100.0], "peer_us": [80.0, 70.0]}],
        [key | {"ours_us": [100.0, 200.0], "peer_us": [60.0, 199.0]}],
        [key | {"ours_us": [120.0, 200.0], "peer_us": [96.0, 10.0]}],
    ]
    (one,) = pipelines.merged(starts)
    assert one["bubble"] == pytest.approx(0.3)  # of 0.3, 0.4 and 0.2
    assert one["lost"] == pytest.approx({"ranks": 0.15, "actions": 0.015, "rest": 0.3})


def test_bubbles_in_words():
    rows = [
        {"algorithm": "gpipe, m = 2", "bubble": 0.35, "predicted_bubble": 1 / 3, "ratio": 0.64,
         "lost": {"ranks": 0.01, "actions": 0.02, "rest": 0.003}},
        {"algorithm": "adam", "ratio": 2.0},
    ]  # fmt: skip
    lines = pipelines.text(rows).splitlines()
    measured = ["0.350", "0.333", "1.05", "0.360", "0.010", "0.020", "0.003"]
    assert lines[1].split() == ["gpipe,", "m", "=", "2", *measured]
    assert len(lines) == 2 and pipelines.text(rows[1:]) == ""


def test_a_measured_step_is_replayed_without_messages():
    """Two stages, two micro-batches. Rank 0 is slow in F1, and rank 1 in F0 and in each B."""
    seconds = ["F0 1 F1 7 B0 2 W0 1 B1 2 W1 1", "F0 5 F1 3 B0 3 W0 1 B1 3 W1 1"]
    spans = [Span(1, Action.parse("recv F0"), 0.0, 9.0)]
    for rank, words in enumerate(seconds):
        now, pairs = 10.0 * rank, words.split()
        for action, taken in zip(pairs[::2], map(float, pairs[1::2]), strict=True):
            spans.append(Span(rank, Action.parse(action), now, now + taken))
            now += taken + 0.5
    table = Timetable(gpipe(2, 2), tuple(spans))
    # F0 and F1 of rank 0, then all that is left on rank 1, then B1 and W1 of rank 0
    assert pipelines.replay(table).seconds == (1 + 7) + (3 + 4 + 4) + 3
    # With means, F0 of rank 0 and all of rank 1
    assert pipelines.replay(table, "ranks").seconds == 4 + (4 + 4 + 4 + 4) + 3
    assert pipelines.replay(table, "all").seconds == 4 + (4 + 4 + 3.5 + 3.5) + 3.5
    assert pipelines.replay(table).busy(1) == table.busy(1) == 16


@pytest.mark.xdist_group("keras")
def test_steps_of_a_tensor_group(rows_of, tmp_path, monkeypatch, capsys):
    small = {"WIDTH": 16, "SAMPLES": 6, "CLASSES": 3}
    sizes = {f"tensor_throughput.{name}": size for name, size in small.items()}
    rows = rows_of("tensor_throughput", sizes, keras=True)
    assert [one["what"] for one in rows] == [
        "tensor parallel, training step", "tensor parallel, gradient"
    ]  # fmt: skip
    for one in rows:
        assert len(one["ours_us"]) == len(one["peer_us"]) >= tensor_throughput.ROUNDS
        assert min(one["ours_us"] + one["peer_us"]) > 0
        assert one["parameters"] == 4 * (16 * 16 + 16) + 16 * 3 + 3
        # Forward one sum for each of the two pairs; backward, none for the first pair's inputs
        assert one["moved_bytes"] == 3 * 6 * 16 * 4 * 2
    parts = rows[0]["parts"]
    assert {"gradient", "sum forward", "sum backward"} <= set(parts) and min(parts.values()) >= 0
    for merged in merge([rows]):
        assert merged["fraction_of_limit"] == pytest.approx(merged["ratio"] / 2)

    monkeypatch.setattr(commands, "one_run", lambda *_, **__: rows)
    commands.tensor(2, 1.0, str(tmp_path / "all.json"))
    result = json.loads((tmp_path / "all.json").read_text())
    assert len(result["rows"]) == 2 and result["starts"][commands.TENSOR] == commands.STARTS
    assert "of the ideal" in capsys.readouterr().out
    with pytest.raises(ValueError, match="-n must be at least 2 for tensor, got 1"):
        commands.tensor(1, 1.0, None)


def small_stages(out):
    team, found = Team(), []
    for stage in (0, 2, 3):
        if stage:
            found.append(sharding.trained(team, stage, 64, 3))
        else:
            found.append(sharding.trained(team.split(team.rank), stage, 64, 3))
    if team.rank == 0:
        with open(out, "w") as file:
            json.dump(found, file)


def test_the_most_memory_of_a_process():
    with sharding.Most() as most:
        before = sharding.private()
        array = np.ones(2**22)  # 32 MiB
    assert most.bytes >= before + array.nbytes - 2**22
    del array


def test_what_is_held_and_used(on_ranks, tmp_path, monkeypatch, capsys):
    on_ranks(2, small_stages, str(tmp_path / "rows.json"))
    rows = json.loads((tmp_path / "rows.json").read_text())
    n = 3 * (64 * 64 + 64)
    for one in rows:
        assert one["parameters"] == n and one["losses"] == pytest.approx(rows[0]["losses"])
        # A rank's slice of each layer is rounded to a cache line.
        near = {kind: pytest.approx(size, abs=3 * 64) for kind, size in one["expected"].items()}
        assert one["held"] == near
        assert one["bytes"].keys() == {"before", "making", "most"}
    assert rows[0]["held"]["state"] == 2 * 4 * n
    asked = {(0, 1): rows[0], (2, 4): rows[1], (3, 4): rows[2]}
    monkeypatch.setattr(sharding, "one_run", lambda part, n, stage, full: [asked[stage, n]])
    commands.sharding(4, str(tmp_path / "all.json"))
    assert json.loads((tmp_path / "all.json").read_text())["rows"] == rows + rows
    told = capsys.readouterr().out
    assert "stage 3, 2 ranks, 12,480 parameters" in told and "layers in use" in told

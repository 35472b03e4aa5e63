"""`python -m tutorial_dl bench`: all measured programs do the same work. Speed is not tested."""

import json
import sys

import numpy as np
import pytest

from tutorial_dl import bench
from tutorial_dl.bench import NETWORKS

PARAMETERS = {"mlp": 669_706, "cnn": 1_199_882, "lstm": 3_343}


def each_rank(names):
    """Our training on two halves of a batch gives the weights of Keras's on the whole batch."""
    from dataclasses import replace

    from numba_kernels import Team
    from numba_kernels.optimizers import Adam
    from tutorial_dl import replica, strategies
    from tutorial_dl.bench import networks

    team = Team()
    for name in names:
        small = replace(NETWORKS[name], samples=8)
        mine = networks.build(small)
        assert mine.count_params() == PARAMETERS[name]
        built = [networks.build(small) for _ in range(2)] if team.rank == 0 else []
        steps = networks.plain_steps(small, *built).values() if built else []
        ours = strategies.Synchronous(team)
        ours.attach(replica.of(mine), Adam())
        assert ours._options  # half of the gradient stays in TensorFlow's memory
        before = ours.replica.parameters.copy()
        for x, y in small.batches(3, seed=5):
            half = slice(4 * team.rank, 4 * team.rank + 4)
            loss, samples = ours.step((x[half], y[half]))
            losses = [float(step((x, y))) for step in steps]
            np.testing.assert_allclose(losses, [loss] * len(losses), rtol=1e-4)
            assert samples == 8
        assert np.abs(ours.replica.parameters - before).max() > 2e-3  # three steps of 0.001
        for model in built:
            for a, b in zip(mine.get_weights(), model.get_weights(), strict=True):
                # Where a gradient is nearly zero, Adam's first steps depend on its sign only.
                off = np.abs(a - b) > 1e-5
                assert off.mean() < 1e-2, (name, off.mean())
        x, y = next(small.batches(1, seed=6))
        loss, _ = ours.replica.compute_gradient((x, y))
        for by_xla in (False, True) if name == "mlp" else (False,):
            alone = networks.graph(mine, small, list, by_xla)
            np.testing.assert_allclose(alone((x, y)), loss, rtol=1e-5)


def rows_of_the_smallest(out):
    from dataclasses import replace

    from numba_kernels import Team
    from numba_kernels.bench.rows import merge
    from tutorial_dl.bench import networks

    networks.NETWORKS = {"mlp": replace(NETWORKS["mlp"], samples=4)}
    rows = networks.rows(0.5, False)
    networks.NETWORKS = NETWORKS
    if Team().rank == 0:
        with open(out, "w") as file:
            json.dump([rows, merge([rows])], file)


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")
def test_all_programs_do_the_same(on_ranks):
    """`make soak` compares the LSTM network, too, whose graphs take long to build."""
    on_ranks(2, each_rank, ["mlp", "cnn"], keras=True)


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")
def test_what_is_measured(on_ranks, tmp_path, monkeypatch, capsys):
    on_ranks(2, rows_of_the_smallest, str(tmp_path / "rows.json"), keras=True)
    rows, merged = json.loads((tmp_path / "rows.json").read_text())
    assert [one["peer"] for one in merged] == [
        "the gradient alone", "Keras train_on_batch, 1 process", "Keras compiled step, 1 process",
    ]  # fmt: skip
    for one in merged:
        assert one["what"] == "training step, mlp" and one["parameters"] == PARAMETERS["mlp"]
        assert one["ours_us"] > 0 and one["ratio"] == pytest.approx(one["peer_us"] / one["ours_us"])
    assert [one["peer_samples"] for one in merged] == [8, 4, 4]
    # Test the remaining code with a stand-in for torch that takes 7 ms per step.
    one_run = {bench.PART: rows, bench.PIPELINES: []}
    monkeypatch.setattr(bench, "one_run", lambda part, *_, **__: one_run[part])
    monkeypatch.setattr(bench, "torch_steps", lambda *_: {"mlp": [0.007] * 3})
    monkeypatch.setenv(bench.TORCH, sys.executable)
    bench.main(2, 1.0, str(tmp_path / "all.json"))
    result = json.loads((tmp_path / "all.json").read_text())
    assert result["rows"][:3] == [one | {"starts": 3} for one in merged]
    assert result["rows"][3]["peer"] == bench.DDP
    assert result["rows"][3]["peer_us"] == pytest.approx(7000)
    said = capsys.readouterr()
    assert said.out.count("training step, mlp") == 4 and said.err == ""
    # If it fails in the second start, the other rows are kept.
    times = iter([{"mlp": [0.007] * 3}])

    def fails_later(*_):
        for each in times:
            return each
        raise ValueError("DDP was aborted")

    monkeypatch.setattr(bench, "torch_steps", fails_later)
    bench.main(2, 1.0, str(tmp_path / "kept.json"))
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["rows"] == result["rows"][:3]
    assert "note: without rows of torch DDP over gloo: DDP was aborted" in capsys.readouterr().err


def test_torch_is_found_where_it_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(bench.TORCH, str(tmp_path))
    with pytest.raises(ValueError, match="must be the path of a Python that has torch, got"):
        bench.main(2, 1.0, None)
    monkeypatch.delenv(bench.TORCH)
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    assert bench.torch_python() is None
    monkeypatch.setattr(bench, "one_run", lambda *_, **__: [])
    bench.main(2, 1.0, "-")
    said = capsys.readouterr()
    assert json.loads(said.out)["rows"] == [] and "no torch found" in said.err


def test_a_torch_that_fails_is_an_error_in_words(tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho no torch module >&2\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(ValueError, match=r"torch_ddp\.py failed: no torch module"):
        bench.torch_steps(str(fake), 2, 1.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_refused(seconds):
    with pytest.raises(ValueError, match="--seconds"):
        bench.main(2, seconds, None)

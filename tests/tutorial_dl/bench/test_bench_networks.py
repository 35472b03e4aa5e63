"""`python -m tutorial_dl bench`: all measured programs do the same work. Speed is not tested."""

import json

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
    monkeypatch.setattr(bench, "one_run", lambda *_, **__: rows)
    bench.main(2, 1.0, str(tmp_path / "all.json"), ["networks"])
    result = json.loads((tmp_path / "all.json").read_text())
    assert result["rows"] == [one | {"starts": 3} for one in merged]
    assert capsys.readouterr().out.count("training step, mlp") == 3


@pytest.mark.parametrize(
    ("seconds", "words", "said"),
    [
        (0.0, "", "--seconds must be more than 0 and less than 3600, got 0.0"),
        (float("nan"), "", "--seconds"),
        (
            1.0,
            "digits-gan --seeds 1",
            "in a copy of the repository: python -m benchmarks digits-gan",
        ),
        (1.0, "--seeds 1", "bench measures networks or time-to-accuracy, and takes no --seeds"),
    ],
)
def test_refused(seconds, words, said):
    with pytest.raises(ValueError, match=said):
        bench.main(2, seconds, None, words.split())

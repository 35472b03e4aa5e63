"""Benches of GANs: what they measure, on small sizes; how runs are summed up."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import gan_quality, gan_strategies
from benchmarks.__main__ import digits
from numba_kernels.team.team import Team
from tutorial_dl.course.two_peaks import reached


def test_the_simulation_as_its_own_generator_is_at_the_floor(monkeypatch):
    monkeypatch.setattr(gan_quality, "EACH", 100)

    class Simulation:
        def sample(self, energies, n, seed):
            return gan_quality.showers_at(energies, 900_000 + 10_000 * seed)

    found = gan_quality.of_showers(Simulation(), 0, n=150)
    assert found["separation"] == pytest.approx(found["separation_floor"], rel=0.2)
    assert found["separation_ceiling"] > 0.6 and found["profile"] < 0.1
    assert max(found["frechet"], found["frechet_floor"]) < found["frechet_ceiling"]
    np.testing.assert_allclose(found["response"], 1, atol=0.02)
    np.testing.assert_allclose(found["resolution"], 1, atol=0.25)
    assert 0.3 < found["auc"] < 0.7 < found["auc_ceiling"]
    row = found | {"what": "shower-gan", "seed": 0, "epochs": 2, "seconds": 1.5}
    rows = [row | {"whole_seconds": 90.0}]
    result = {
        "machine": "m",
        "load": 0,
        "rows": rows,
        "asked": gan_quality.beside("shower-gan", rows),
    }
    words = gan_quality.table_of(result).splitlines()
    assert words[4].startswith("| 0 | 2 | 1.5 | 90 | ")
    assert words[-1] == "| minutes from start to end | at most 12 | 1.5 | 1.5 | 1 of 1 |"


def test_seed_by_seed(tmp_path, monkeypatch, capsys):
    """Rows are written after each seed; those of other seeds stay, and all are judged together."""
    file, shares = tmp_path / "digits.json", {0: 0.9, 3: 0.8, 4: 1.0}

    def of_one_seed(model, ranks, seed, epochs):
        if seed == 5:
            raise ValueError("digits-gan, seed 5: ended with status 1")
        return {
            "seed": seed, "epochs": epochs, "seconds": 2.0, "accuracy_asked": shares[seed],
            "missing_classes": 0, "of_real": 0.98, "frechet": 0.5, "frechet_floor": -0.1,
        }  # fmt: skip

    monkeypatch.setattr(gan_quality, "of_one_seed", of_one_seed)
    digits(seeds=2, first_seed=3, json=str(file))
    digits(seeds=1, json=str(file))
    words = capsys.readouterr().out.splitlines()
    result = json.loads(file.read_text())
    assert [row["seed"] for row in result["rows"]] == [0, 3, 4]
    assert {row["epochs"] for row in result["rows"]} == {60}
    asked = result["asked"][0]
    assert (asked["asked"], asked["worst"], asked["met"], asked["seeds"]) == (
        "at least 0.85",
        0.8,
        2,
        3,
    )
    assert asked["mean"] == pytest.approx(0.9)
    (line,) = [line for line in words if "for the class asked for" in line and "of 3" in line]
    assert line.endswith("| at least 0.85 | 0.8 | 0.9 | 2 of 3 |")
    with pytest.raises(ValueError, match="seed 5: ended"):
        digits(seeds=2, first_seed=4, json=str(file))
    assert len(json.loads(file.read_text())["rows"]) == 3  # of the seeds before it
    digits(seeds=1, epochs=1, json=str(file))  # other runs: not kept
    assert [row["epochs"] for row in json.loads(file.read_text())["rows"]] == [1]
    file.write_text("[]")
    with pytest.raises(ValueError, match=r"digits.json is there, and is no result of digits"):
        digits(seeds=1, json=str(file))


def test_the_best_epoch_is_kept():
    average, stops = SimpleNamespace(weights=np.zeros(1)), []
    best, trainer = gan_quality.Best(average, None), SimpleNamespace(stop=stops.append)
    good = {"separation": 0.045, "profile_error": 0.08, "resolution_error": 0.2}
    for epoch, worse in enumerate(
        ({"separation": 0.09}, {"resolution_error": 0.3}, {"profile_error": 0.16}, {}), start=1
    ):
        average.weights = np.array([epoch])
        best(trainer, good | worse)
        assert best.weights == [1, 2, 2, 4][epoch - 1] and len(stops) == (epoch == 4)


def test_ratios_are_judged_by_the_farthest():
    by_words = {one.words: one for one in gan_quality.ASKED["shower-gan"]}
    response = by_words["response at 50, 200, 400 GeV: error"]
    assert response.worst([1.01, 0.94, 1.02]) == pytest.approx(0.06)
    assert not response.met(0.06) and response.met(0.05)
    separation = by_words["mean separation power"]
    assert not separation.met(0.05) and separation.met(0.0499)


def test_when_a_run_has_reached_the_goal():
    assert reached([1.0] * 9, 0.2) is None
    # One good epoch is luck: of five, three must be good
    assert reached([1, 0.1, 1, 1, 1, 1, 1], 0.2) is None
    assert reached([1, 1, 1, 0.1, 0.1, 0.3, 0.1, 1], 0.2) == 7
    runs = [{"distances": d, "seconds": 2.0, "ranks": 3} for d in ([0.1] * 30, [0.4] * 30)]
    row = gan_strategies.summary("a", runs)
    assert (row["reached"], row["epochs"], row["seeds"]) == (1, 5, 2)
    assert row["distance"] == pytest.approx(0.25) and row["distance_spread"] == pytest.approx(0.15)
    nobody = gan_strategies.summary("b", runs[1:])
    words = gan_strategies.table_of({"machine": "m", "load": 0, "rows": [row, nobody]})
    assert "| a | 3 | 1 of 2 | 5 ± 0 | 0.250 ± 0.150 | 2.0 |" in words
    assert "| b | 3 | 0 of 1 |  | 0.400 ± 0.000 | 2.0 |" in words


def every_strategy(file):
    team = Team()
    runs = {n: gan_strategies.one_run(team, n, 1, 2) for n in gan_strategies.RUNS if n != "serial"}
    if team.rank == 0:
        with open(file, "w") as out:
            json.dump(runs, out)


def test_runs_of_every_strategy(on_ranks, tmp_path):
    file = tmp_path / "runs.json"
    on_ranks(3, every_strategy, str(file))
    runs = json.loads(file.read_text())
    gan_strategies.runs("serial", str(file), seeds=1, epochs=2)
    runs |= {"serial": json.loads(file.read_text())[0]}
    assert runs.keys() == gan_strategies.RUNS.keys()
    for name, run in runs.items():
        assert len(run["distances"]) == 2 and run["seconds"] > 0, name
        assert np.isfinite(run["distances"]).all(), name


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")
def test_a_run_of_the_digits(tmp_path):
    file = tmp_path / "row.json"
    gan_quality.one_run("digits-gan", 0, str(file), epochs=1)
    row = json.loads(file.read_text()) | {"what": "digits-gan", "whole_seconds": 1.0}
    assert row["epochs"] == 1 and row["of_real"] > 0.95 and 0 <= row["accuracy_asked"] <= 1
    assert row.keys() >= set(gan_quality.COLUMNS["digits-gan"])

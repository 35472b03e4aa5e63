"""`python -m benchmarks sharding`: what is measured, on a small network."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import __main__ as commands
from benchmarks import sharding


def small_rows(out):
    from benchmarks import sharding
    from numba_kernels import Team

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
    on_ranks(2, small_rows, str(tmp_path / "rows.json"))
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

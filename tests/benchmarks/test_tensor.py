"""`python -m benchmarks tensor`: what is measured, on a small network. Its speed is not."""

from __future__ import annotations

import json

import pytest

from benchmarks import __main__ as commands
from benchmarks import tensor_throughput as throughput
from numba_kernels.bench.rows import merge

SMALL = {"WIDTH": 16, "SAMPLES": 6, "CLASSES": 3}


def small_rows(out, sizes):
    from benchmarks import tensor_throughput
    from numba_kernels import Team

    before = {name: getattr(tensor_throughput, name) for name in sizes}
    vars(tensor_throughput).update(sizes)
    try:
        rows = tensor_throughput.rows(0.01, False)
    finally:
        vars(tensor_throughput).update(before)
    if Team().rank == 0:
        with open(out, "w") as file:
            json.dump(rows, file)


@pytest.mark.xdist_group("keras")
def test_steps_of_a_tensor_group(on_ranks, tmp_path, monkeypatch, capsys):
    on_ranks(2, small_rows, str(tmp_path / "rows.json"), SMALL, keras=True)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [one["what"] for one in rows] == [
        "tensor parallel, training step", "tensor parallel, gradient"
    ]  # fmt: skip
    for one in rows:
        assert len(one["ours_us"]) == len(one["peer_us"]) >= throughput.ROUNDS
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

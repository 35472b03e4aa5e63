"""PyTorch as a peer: where it is found, and what happens if it fails."""

import json
import sys

import pytest

from benchmarks import __main__ as commands
from benchmarks import torch_peers

OURS = [
    {"what": "training step, mlp", "network": "mlp", "ranks": 2, "parameters": 10, "samples": 8,
     "algorithm": "adam", "peer": peer, "peer_samples": 8, "ours_us": [100.0], "peer_us": [50.0],
     "moved_bytes": 1, "limit_us": 10.0}
    for peer in ("the gradient alone", "Keras")
]  # fmt: skip


@pytest.fixture
def our_rows(monkeypatch):
    monkeypatch.setattr(commands, "one_run", lambda *_, **__: OURS)


def test_ddp_in_place_of_each_network_s_first_peer(our_rows, tmp_path, monkeypatch, capsys):
    """A stand-in for torch takes 7 ms per step; then it fails in the second start."""
    monkeypatch.setenv(torch_peers.TORCH, sys.executable)
    monkeypatch.setattr(torch_peers, "run", lambda *_: {"mlp": [0.007] * 3})
    commands.ddp(2, 1.0, str(tmp_path / "all.json"))
    rows = json.loads((tmp_path / "all.json").read_text())["rows"]
    assert [one["peer"] for one in rows] == ["the gradient alone", "Keras", torch_peers.DDP]
    assert rows[2]["peer_us"] == pytest.approx(7000) and rows[2]["starts"] == 3
    assert capsys.readouterr().err == ""

    times = iter([{"mlp": [0.007] * 3}])

    def fails_later(*_):
        for each in times:
            return each
        raise ValueError("DDP was aborted")

    monkeypatch.setattr(torch_peers, "run", fails_later)
    commands.ddp(2, 1.0, str(tmp_path / "kept.json"))
    assert json.loads((tmp_path / "kept.json").read_text())["rows"] == rows[:2]
    assert "note: without rows of torch DDP over gloo: DDP was aborted" in capsys.readouterr().err


def test_torch_is_found_where_it_is_named(our_rows, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(torch_peers.TORCH, str(tmp_path))
    with pytest.raises(ValueError, match="must be the path of a Python that has torch, got"):
        commands.ddp(2, 1.0)
    monkeypatch.delenv(torch_peers.TORCH)
    monkeypatch.setattr(torch_peers, "find_spec", lambda name: None)
    commands.ddp(2, 1.0, "-")
    said = capsys.readouterr()
    assert len(json.loads(said.out)["rows"]) == 2 and "no torch found" in said.err


def test_a_torch_that_fails_is_an_error_in_words(tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho no torch module >&2\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(ValueError, match=r"torch_ddp\.py failed: no torch module"):
        torch_peers.run(str(fake), "torch_ddp.py", 2, 1.0)

"""The command `layout`: text, JSON and figures; wrong words are one line."""

from __future__ import annotations

import json
import subprocess
import sys

from typer.testing import CliRunner

from tutorial_dl import Layout
from tutorial_dl.cli import commands
from tutorial_dl.layout.figure import draw_axes


def command(*words):
    return CliRunner().invoke(commands.app, ["layout", *words])


def test_the_command_as_text_and_json(tmp_path):
    words = ("--masters", "2", "--workers", "3", "--devices", "2")
    done = command(*words)
    assert done.exit_code == 0
    assert done.stdout == str(Layout(masters=2, workers=3, devices=2)) + "\n"
    told = json.loads(command(*words, "--json", "-").stdout)
    assert list(told) == ["ranks", "nodes_in_talk", "roles"] and len(told["roles"]) == 15
    assert (told["ranks"], told["nodes_in_talk"]) == (15, 13)
    keys = {"rank", "role", "group", "fold", "master", "worker", "device"}
    assert all(set(role) == keys for role in told["roles"])
    assert told["roles"][3] == {
        "rank": 3, "role": "worker", "group": 0, "fold": 0, "master": 1, "worker": 0, "device": 1
    }  # fmt: skip
    assert told["roles"][0]["master"] is None and told["roles"][8]["role"] == "sub_master"
    file, picture = tmp_path / "layout.json", tmp_path / "layout.svg"
    assert command(*words, "--json", str(file), "--figure", str(picture)).exit_code == 0
    assert json.loads(file.read_text()) == told and "<svg" in picture.read_text()


def test_every_option_of_the_command_counts():
    def ranks(*words):
        return json.loads(command(*words, "--json", "-").stdout)["ranks"]

    assert ranks() == 2 and ranks("--masters", "2") == 5 and ranks("--workers", "3") == 4
    assert ranks("--devices", "2") == 3 and ranks("--groups", "2") == ranks("--folds", "2") == 5
    assert ranks("-n", "7") == 7 and ranks("--ranks", "9", "--groups", "2") == 9
    nodes = command("--workers", "2", "--devices", "2", "--node-size", "3").stdout
    assert "worker 0    ranks 1 2   node 0" in nodes and "worker 1    ranks 3 4   node 1" in nodes


def test_nothing_heavy_is_imported():
    for words, status in (["--workers", "4"], 0), (["--ranks", "1"], 2):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "tutorial_dl", "layout", *words],
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == status
        for heavy in ("tensorflow", "keras", "numba", "numpy", "mpi4py", "matplotlib"):
            assert f" {heavy}\n" not in done.stderr, f"{words} imports {heavy}"


def test_pipelines_are_shown_by_copy():
    done = command("-n", "4", "--pipeline", "2", "--node-size", "2")
    assert done.stdout.splitlines() == [
        "data 2 x pipeline 2: 4 ranks",
        "copy 0    stage 0: rank 0 (node 0)    stage 1: rank 1 (node 0)",
        "copy 1    stage 0: rank 2 (node 1)    stage 1: rank 3 (node 1)",
    ]
    told = json.loads(command("-n", "6", "--pipeline", "3", "--json", "-").stdout)
    assert told["axes"] == {"data": 2, "pipeline": 3} and told["ranks"] == 6
    assert told["roles"][4] == {"rank": 4, "data": 1, "pipeline": 1}


def test_all_axes_are_shown_and_drawn(tmp_path):
    """Tensor groups are innermost: neighbours, on one node where it has room for them."""
    words = ("-n", "16", "--pipeline", "2", "--context", "2", "--tensor", "2")
    assert command(*words).stdout.splitlines() == [
        "data 2 x pipeline 2 x context 2 x tensor 2: 16 ranks",
        "copy 0    stage 0, part 0: ranks 0 1    stage 0, part 1: ranks 2 3    "
        "stage 1, part 0: ranks 4 5    stage 1, part 1: ranks 6 7",
        "copy 1    stage 0, part 0: ranks 8 9    stage 0, part 1: ranks 10 11    "
        "stage 1, part 0: ranks 12 13    stage 1, part 1: ranks 14 15",
    ]
    told = json.loads(command(*words, "--node-size", "4", "--json", "-").stdout)
    assert told["axes"] == {"data": 2, "pipeline": 2, "context": 2, "tensor": 2}
    assert told["roles"][13] == {
        "rank": 13, "data": 1, "pipeline": 1, "context": 0, "tensor": 1, "node": 3
    }  # fmt: skip
    assert command("-n", "4", "--tensor", "2").stdout.splitlines()[1:] == [
        "copy 0    ranks 0 1",
        "copy 1    ranks 2 3",
    ]
    split = command("--tensor", "4", "--node-size", "3").stdout.splitlines()
    assert split[1] == "copy 0    ranks 0 1 2 3 (nodes 0 1)"
    assert split[2].startswith("note: the tensor group of ranks 0 1 2 3 lies on several nodes")
    drawn = command(*words, "--node-size", "4", "--figure", str(tmp_path / "axes.svg"))
    assert drawn.exit_code == 0 and "<svg" in (tmp_path / "axes.svg").read_text()


def test_the_figure_has_every_rank_or_says_what_it_leaves_out():
    def texts(axes, node_size=None):
        return [one.get_text() for one in draw_axes(axes, node_size).axes[0].texts]

    axes = {"data": 2, "pipeline": 2, "context": 2, "tensor": 2}
    assert [one for one in texts(axes, 4) if one.isdigit()] == [str(rank) for rank in range(16)]
    assert any("dashed: on several nodes" in one for one in texts(axes, 3))
    assert not any("several nodes" in one for one in texts(axes, 4))
    many = texts({"data": 9, "tensor": 16})
    assert {"copy 0", "copy 8", "0", "143", "..."} <= set(many) and "copy 5" not in many

"""Outputs in notebooks: stored, left out of copies, and read for what a learner has solved."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import pytest
from commands_here import run_command
from modules import load_file
from notebook_cells import Notebook

from tutorial_dl.cli.notebooks import notebook_files
from tutorial_dl.course import progress

ROOT = Path(__file__).parents[2]
record = load_file(ROOT / "notebooks/record.py")


def picture(colours: int = 3) -> str:
    """A PNG of many colours, as base64."""
    import numpy as np
    from PIL import Image

    made = io.BytesIO()
    shades = np.random.default_rng(0).integers(0, 255, (90, 120, colours), dtype=np.uint8)
    Image.fromarray(shades).save(made, "png")
    return base64.b64encode(made.getvalue()).decode()


def cell(name: str, source: str, *outputs: dict) -> dict:
    made = {"cell_type": "code", "id": name, "metadata": {}, "source": [source]}
    return made | {"execution_count": None, "outputs": list(outputs)}


def text(said: str) -> dict:
    return {"output_type": "stream", "name": "stdout", "text": said}


def shown(**data: str) -> dict:
    data = {name.replace("_", "/"): part for name, part in data.items()}
    return {"output_type": "display_data", "data": data, "metadata": {"size": 3}}


def written(folder: Path, *cells: dict, name: str = "01_a") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.ipynb"
    path.write_text(
        json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    return path


def test_a_run_is_stored_without_what_belongs_to_it_alone(tmp_path, monkeypatch):
    import nbformat
    from PIL import Image

    course, run = tmp_path / "course" / "notebooks", tmp_path / "run"
    course.parent.mkdir()
    source = written(course, cell("say", "print(1)"), cell("draw", "f()"), cell("wait", "w()"))
    big = picture()
    said = text(f"10%\r50%\rdone in {course.parent}/data\n")
    more = {"execution_count": 7, "output_type": "execute_result"}
    results = [
        cell("say", "print(1)", said, text(" \n")),
        cell("draw", "f()", shown(image_png=big, text_plain="Figure", application_x="pickle")),
        cell("wait", "w()", shown(application_x="a slide's"), shown(text_plain="5") | more),
    ]
    results[0]["metadata"] = {"execution": {"iopub.status.idle": "2026-11-28T01:00:00Z"}}
    written(run, *results)
    monkeypatch.setattr(record, "FOLDER", course)
    record.main(str(run))
    made = json.loads(source.read_text())
    say, draw, wait = (one["outputs"] for one in made["cells"])
    assert [one["text"] for one in say] == ["done in ./data\n"]
    assert "execution" not in made["cells"][0]["metadata"]
    (found,) = draw
    assert list(found["data"]) == ["image/png"] and found["metadata"] == {}
    assert len(found["data"]["image/png"]) < len(big) / 2
    assert Image.open(io.BytesIO(base64.b64decode(found["data"]["image/png"]))).size == (120, 90)
    assert [one["data"] for one in wait] == [{"text/plain": "5"}]
    assert wait[0]["execution_count"] is None
    nbformat.validate(nbformat.from_dict(made))
    assert made["metadata"][record.OF] == record.code_of(made)
    assert record.shape(made) == record.shape({"cells": results}) == {"draw": ["picture"]}

    record.main("--strip")
    assert not any(one["outputs"] for one in json.loads(source.read_text())["cells"])
    assert json.loads(source.read_text())["metadata"] == {}
    written(course, cell("say", "print(2)"))
    with pytest.raises(SystemExit, match=r"01_a\.ipynb: other cells were run"):
        record.main(str(run))


def test_what_is_stored_is_small_current_and_says_nothing_of_a_machine():
    size = 0
    for path in notebook_files():
        content = path.read_text("utf-8")
        size += len(content.encode())
        notebook = json.loads(content)
        shows = any(one.get("outputs") for one in notebook["cells"])
        assert shows == (record.OF in notebook["metadata"]), path.name
        if shows:
            assert notebook["metadata"][record.OF] == record.code_of(notebook), (
                f"{path.name} has changed: run it and store its outputs (notebooks/record.py)"
            )
            outputs = json.dumps([one.get("outputs") for one in notebook["cells"]])
            assert not any(where in outputs for where in ("/home/", "/root/", "/work/")), path.name
    assert size < record.LIMIT


def test_a_copy_shows_nothing_before_it_is_run(tmp_path):
    bare, full = written(tmp_path, cell("a", "1")), cell("a", "1", text("1"))
    kept = bare.read_text()
    assert progress.without_outputs(bare) == kept  # to the last byte
    assert json.loads(progress.without_outputs(written(tmp_path, full)))["cells"] == [
        cell("a", "1")
    ]


RIGHT, WRONG = text("correct: it is 5\n"), text("not yet: too low\n")


def exercise(name: str, *outputs: dict) -> dict:
    return cell(name.partition(".")[2], f'answer = 1\n\ncheck("{name}", answer);', *outputs)


def test_progress_is_what_checks_have_said(tmp_path):
    """It is read from notebooks as JupyterLab saves them."""
    anna, ben = tmp_path / "anna", tmp_path / "ben"
    written(anna, exercise("06.average", WRONG), exercise("06.ranks", RIGHT), name="06_b")
    written(anna, exercise("01.degree", RIGHT), cell("x", "print(2)", RIGHT), name="01_a")
    written(ben, exercise("01.degree"), name="01_a")
    written(ben, exercise("99.own", RIGHT), name="99_own")
    asked = sum(len(progress.CHECK.findall(c)) for f in notebook_files()
                for c in Notebook(f.name[:2]).cells("code"))  # fmt: skip
    one = run_command("notebooks", "progress", str(anna))
    assert one.stdout == f"01  degree ok\n06  average, ranks ok\n2 of {asked}\n"
    of_class = run_command("notebooks", "progress", str(anna), str(ben))
    assert of_class.stdout.splitlines() == [
        f"learner  01  06  of {asked}", "anna      1   1  2", "ben       .   .  0",
    ]  # fmt: skip
    (ben / "01_a.ipynb").write_text("half a")
    broken = run_command("notebooks", "progress", str(ben))
    assert broken.returncode == 2
    assert "01_a.ipynb is no notebook; save it again in JupyterLab" in broken.stderr
    assert "there is no folder" in run_command("notebooks", "progress", str(ben / "x")).stderr

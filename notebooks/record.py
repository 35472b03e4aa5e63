"""Stores outputs in the notebooks, so that they can be read without being run.

    python notebooks/record.py FOLDER        those of a run (python -m tutorial_dl notebooks run
                                             --out FOLDER), best on a quiet machine
    python notebooks/record.py --strip       none

Pictures get a palette, which makes them smaller. What belongs to the run alone is left out:
execution counts, times of cells, figures for slides, the path of this folder. `notebooks copy`
leaves outputs out, because a learner should guess before looking.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
COLOURS = 64  # of a picture
LIMIT = 8_000_000  # bytes of all notebooks
FORMS = ("image/png", "text/html", "text/plain")  # the first that an output has is kept
OF = "outputs of"  # in the metadata: a checksum of the code that made the outputs


def code_of(notebook: dict) -> str:
    """A checksum of the code cells: outputs belong to it."""
    code = [[c["id"], "".join(c["source"])] for c in notebook["cells"] if c["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def smaller(png: str) -> str:
    """The picture with a palette, if that is smaller; both as base64."""
    from PIL import Image

    made = io.BytesIO()
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    picture.quantize(COLOURS).save(made, "png", optimize=True)
    found = base64.b64encode(made.getvalue()).decode()
    return found if len(found) < len(png) else png


def kept(output: dict) -> dict | None:
    """What is stored of an output; None if that is nothing."""
    if "execution_count" in output:
        output = output | {"execution_count": None}
    if output["output_type"] == "stream":  # what was written over, such as progress, is left out
        output["text"] = re.sub(r"[^\n]*\r(?!\n)", "", "".join(output["text"]))
        return output if output["text"].strip() else None
    if "data" not in output:
        return output  # an error that a cell shows on purpose
    form = next((form for form in FORMS if form in output["data"]), None)
    if form is None:
        return None
    text = "".join(output["data"][form])
    data = {form: smaller(text) if form == "image/png" else text}
    return output | {"data": data, "metadata": {}}


def stored(notebook: dict, run: dict | None) -> dict:
    """The notebook with the outputs of a run of its cells, or without any."""
    if run and code_of(notebook) != code_of(run):
        raise ValueError("other cells were run than those of the notebook; run it again")
    outputs = {cell["id"]: cell.get("outputs", []) for cell in (run or {"cells": []})["cells"]}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            found = [kept(output) for output in outputs.get(cell["id"], ())]
            cell["outputs"] = [output for output in found if output]
    notebook["metadata"].pop(OF, None)
    if run:
        notebook["metadata"][OF] = code_of(notebook)
    return notebook


def shape(notebook: dict) -> dict[str, list[str]]:
    """Cell -> "picture" or "film", for each that it shows: what two runs have in common."""
    forms = {}
    for cell in notebook["cells"]:
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            film = "data:image/gif" in "".join(data.get("text/html", ""))
            if film or "image/png" in data:
                forms.setdefault(cell["id"], []).append("film" if film else "picture")
    return forms


def main(folder: str) -> None:
    for path in sorted(FOLDER.glob("[0-9][0-9]_*.ipynb")):
        notebook, run = json.loads(path.read_text(encoding="utf-8")), None
        if folder != "--strip":
            text = (Path(folder) / path.name).read_text(encoding="utf-8")
            run = json.loads(text.replace(str(FOLDER.resolve().parent), "."))
        try:
            made = stored(notebook, run)
        except ValueError as error:
            raise SystemExit(f"error: {path.name}: {error}") from None
        text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {len(text.encode()) / 1e6:.2f} MB")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])

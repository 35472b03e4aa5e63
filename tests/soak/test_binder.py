"""Binder: an image is built by the files in binder/, and notebooks run in a session's 2 GB."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from binder_session import MEMORY, Image
from readme_cells import pasted

KERAS = "README: Keras on 2 ranks"
# The cell after which a model is trained.
TRAINED = {
    "06_synchronous_training.ipynb": "%px train(4)",  # numpy on four ranks
    "34_friends_of_batch_norm.ipynb": None,  # Keras on four ranks
    KERAS: "history = trainer.fit(epochs=10)",
}


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Image:
    made = Image(tmp_path_factory.mktemp("binder"))
    made.home.mkdir()
    made.copy()
    made.install()
    made.build()
    return made


@pytest.fixture(scope="module")
def session(image):
    with image.session() as (lab, limited):
        yield image, lab, limited


def cells(home: Path, name: str) -> tuple[str, list[str]]:
    """The path of a notebook in `home`, and its code cells; README's is written first."""
    if name == KERAS:
        import nbformat

        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in pasted()])
        path = "notebooks/my_model.ipynb"
        nbformat.write(book, home / path)
    else:
        path = f"notebooks/{name}"
    content = json.loads((home / path).read_text())
    code = ["".join(c["source"]) for c in content["cells"] if c["cell_type"] == "code"]
    return path, code


def test_what_is_installed_goes_together(image):
    image.run("pip", "check")
    image.run("jupyter", "notebook", "--version")
    image.run("jupyterhub-singleuser", "--version")


@pytest.mark.parametrize("name", TRAINED)
def test_notebook(session, record, name):
    image, lab, limited = session
    limited.peak = 0
    path, code = cells(image.home, name)
    last = TRAINED[name] and [TRAINED[name] in cell for cell in code].index(True)
    notebook, took = lab.open(path), None
    began = time.monotonic()
    for number, cell in enumerate(code):
        notebook.run(cell)
        if number == last:
            took = time.monotonic() - began
    notebook.close()
    deadline = time.monotonic() + 60
    while len(limited.pids()) > 1:  # the server alone is left
        assert time.monotonic() < deadline, limited.pids()
        time.sleep(0.1)
    small = not limited.out_of_memory()
    peak = f"{limited.peak / 1e9:.2f} GB ({limited.way})"
    record(f"memory of {name}", f"<= {MEMORY / 1e9:g} GB", peak, small and limited.peak <= MEMORY)
    if took is not None:
        record(f"first cell to trained model, {name}", "< 90 s", f"{took:.0f} s", took < 90)

"""JupyterLab in a real browser: a notebook as a whole, the stop button, live views, no requests.

It needs Chromium (Debian: apt install chromium), and fails without it. Pictures of what was to be
seen are in the folder that the environment variable TUTORIAL_DL_PICTURES names, if it is set.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import lab
import nbformat
import pytest
from browser import Page

ROOT = Path(__file__).parents[2]
NOTEBOOK = "04_ranks_and_messages.ipynb"
# What the browser tells of the cells of the notebook that is open. JupyterLab keeps the elements of
# cells that are not to be seen out of the page, so the outputs are those of its model.
OPEN = "[...jupyterapp.shell.widgets('main')].find(w => w.content && w.content.widgets)"
STATE = f"""
(() => {{
  const cells = {OPEN}.content.widgets.map(w => w.model);
  return cells.filter(c => c.type == 'code').map(c => ({{
    count: c.executionCount, state: c.executionState, outputs: c.outputs.toJSON(),
  }}));
}})()
"""
READY = (
    f"{OPEN}.sessionContext.session.kernel.status == 'idle' && {OPEN}.content.widgets.length > 1"
)
STOP = '[data-jp-item-name="interrupt"] jp-button, [data-jp-item-name="interrupt"] button'

TEAM = """\
%%px
import time
from tutorial_dl import Team, Trainer, data, models, strategies
team = Team()"""
HANGS = "%%px\nteam.barrier() if team.rank else time.sleep(1000)"
AFTER = "%%px\nprint(f'rank {team.rank} of {team.size} goes on')"
TRAINS = """\
%%px
digits = data.digits()
def trainer():
    return Trainer(models.dense(digits), digits, strategies.Synchronous(team), batch_size=64)
trainer().fit(1_000_000)"""
SHORT = "%%px\nhistory = trainer().fit(5)"
START, TABLE = "from tutorial_dl import cluster\nc = cluster.start(n=4)", "c"
PLOT = 'c[0]["history"].plot()'
CELLS = [START, TEAM, TABLE, HANGS, AFTER, TRAINS, SHORT, PLOT, "c.stop()"]


@pytest.fixture
def server(tmp_path):
    """A server as `make lab` starts it, in a folder with two notebooks."""
    home, folder = tmp_path / "home", tmp_path / "notebooks"
    home.mkdir(), folder.mkdir()
    shutil.copy(ROOT / "notebooks" / NOTEBOOK, folder)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CELLS])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(book, folder / "stops.ipynb")
    makefile = (ROOT / "Makefile").read_text()
    (options,) = [line for line in makefile.splitlines() if line.startswith("LAB_OPTIONS :=")]
    words = [*lab.COMMAND, *options.split(":=")[1].split(), "--LabApp.expose_app_in_browser=True"]
    words[0] = str(Path(sys.executable).with_name("jupyter"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "IPYTHON"))}
    with open(tmp_path / "log", "w+") as log:
        process = subprocess.Popen(
            words, cwd=folder, env=environment | {"HOME": str(home)}, stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield lab.started(process, home)
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture
def page(server, tmp_path):
    with Page() as page:
        yield page


def opened(page: Page, server: lab.Lab, notebook: str) -> None:
    """Open a notebook, whose kernel is ready then."""
    page.open(f"{server.url}/lab/tree/{notebook}?token={server.token}&reset")
    page.until(READY)


def command(page: Page, name: str) -> None:
    """A command of JupyterLab's menus for the notebook; its end is not waited for."""
    page.evaluate(f"jupyterapp.shell.activateById({OPEN}.id)")
    page.evaluate(f"void jupyterapp.commands.execute('{name}')")


def run(page: Page, number: int) -> None:
    """Run a cell as with Shift-Enter, without waiting for its end."""
    page.evaluate(f"{OPEN}.content.activeCellIndex = {number}")
    command(page, "notebook:run-cell")


def shown(outputs: list[dict]) -> str:
    """All text of a cell's outputs."""
    return json.dumps(outputs)


def done(page: Page, number: int, seconds: float = 300) -> list[dict]:
    """The outputs of a cell, when it has ended."""
    ended = f"(c => c.count && c.state != 'running' && c)({STATE.strip()}[{number}])"
    return page.until(ended, seconds)["outputs"]


def pictured(page: Page, name: str) -> None:
    if folder := os.environ.get("TUTORIAL_DL_PICTURES"):
        page.picture(Path(folder) / f"{name}.png")


def test_a_whole_notebook(page, server, record):
    opened(page, server, NOTEBOOK)
    pictured(page, "opened")
    command(page, "notebook:run-all-cells")
    page.until(f"{STATE.strip()}.every(c => c.count && c.state != 'running')")
    cells = page.evaluate(STATE)
    outputs = [output for cell in cells for output in cell["outputs"]]
    errors = [output for output in outputs if output["output_type"] == "error"]
    assert not errors, errors
    figures = sum("image/png" in output.get("data", {}) for output in outputs)
    record("figures of notebook 4 in JupyterLab", ">= 4", str(figures), figures >= 4)
    for number in range(0, len(cells), 4):
        page.evaluate(f"void {OPEN}.content.scrollToItem({2 * number}, 'start')")
        time.sleep(0.3)  # for a picture only
        pictured(page, f"whole-{number:02}")
    assert not page.elsewhere(), page.elsewhere()
    record("requests to other machines", "0", "0", True)


def test_stop_button_and_live_views(page, server, record):
    opened(page, server, "stops.ipynb")
    for number in (0, 1):
        run(page, number)
        done(page, number)

    # The table of what ranks do is renewed, without any cell.
    run(page, 2)
    done(page, 2)
    updated = "document.querySelector('.tdl .live').textContent"
    first = page.until(updated)
    page.until(f"{updated} != {json.dumps(first)}")
    pictured(page, "table")

    run(page, 3)
    page.until(f"JSON.stringify({STATE.strip()}[3].outputs).includes('wait in barrier for rank 0')")
    pictured(page, "hangs")
    began = time.monotonic()
    page.click(STOP)
    outputs = done(page, 3)
    took = time.monotonic() - began
    pictured(page, "stopped")
    assert "interrupted: 4 of 4 ranks stopped" in shown(outputs), shown(outputs)
    record("the stop button in a browser", "< 3 s", f"{took:.1f} s", took < 3)
    run(page, 4)
    assert "of 4 goes on" in shown(done(page, 4))

    # The curve grows while the ranks train, which the stop button ends.
    run(page, 5)
    outputs = f"JSON.stringify({STATE.strip()}[5].outputs)"
    first = page.until(f"(text => text.includes('<polyline') && text)({outputs})")
    page.until(f"{outputs} != {json.dumps(first)}")
    pictured(page, "trains")
    page.click(STOP)
    assert "interrupted: 4 of 4 ranks stopped" in shown(done(page, 5))
    run(page, 6)
    assert "epoch 5 of 5" in shown(done(page, 6))
    run(page, 7)
    assert "image/png" in shown(done(page, 7))
    pictured(page, "trained")
    run(page, 8)
    assert "stopped 4 engines" in shown(done(page, 8))
    assert not page.elsewhere(), page.elsewhere()

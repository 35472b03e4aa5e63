"""The site that `make site` built, in a real browser: search, a phone's width, no requests.

It needs Chromium (Debian: apt install chromium) and build/site, and fails without them.
"""

from __future__ import annotations

import functools
import http.server
import json
import threading
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import Page

SITE = Path(__file__).parents[2] / "build/site"
CALLBACKS = "tutorial_dl.training.callbacks"
FOUND = "[...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href'))"
# One page: its width, the window's, what stands out, and pictures that are not there.
LOOK = """
(() => {
  if (document.readyState != 'complete') return null;
  return {
    path: location.pathname,
    width: document.scrollingElement.scrollWidth,
    window: document.documentElement.clientWidth,
    broken: [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
    wrong: document.querySelectorAll('merror').length,
  };
})()
"""


@pytest.fixture(scope="module")
def address():
    assert (SITE / "index.html").exists(), "there is no build/site: make site"

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    handler = functools.partial(Quiet, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize(
    "words, first",
    [
        ("EASGD", "glossary.html#term-EASGD"),
        ("staleness", "glossary.html#term-staleness"),
        ("ring", "api/modules/numba_kernels.allreduce.ring.html"),
        ("--batch-size", "commands/tutorial_dl-train.html#cmdoption-tutorial_dl-train-batch-size"),
        ("Adam", "api/classes/numba_kernels.optimizers.Adam.html"),
        ("early stopping", f"api/modules/{CALLBACKS}.html#{CALLBACKS}.EarlyStopping"),
    ],
)
def test_search_finds(words, first, address, record):
    with Page() as page:
        page.open(f"{address}/search.html?q={quote(words)}")
        shown = page.until(f"(found => found.length > 4 && found)({FOUND})")
        place = shown.index(first) + 1 if first in shown else len(shown)
        record(f"place of {first} in a search for {words}", "<= 3", str(place), place <= 3)
        assert not page.elsewhere(), page.elsewhere()


def test_search_from_disk_has_excerpts_and_finds_beginnings_of_words():
    """A page that is opened from disk may not read others; "lr" is no part of "allreduce"."""
    with Page() as page:
        page.open(f"{SITE.as_uri()}/search.html?q=lr")
        page.until("document.querySelector('#search-results h2')?.textContent == 'Search Results'")
        assert page.until("document.querySelector('#search-results .context')?.textContent").strip()
        names = page.until(
            "[...document.querySelectorAll('#search-results li')].filter(li => li.offsetHeight)"
            ".map(li => li.querySelector('a').textContent)"
        )
        assert names and not [name for name in names if "allreduce" in name.lower()], names


def test_pages_lead_to_notebooks_and_files_and_cells_have_colours():
    glossary = (SITE / "glossary.html").read_text()
    assert 'href="notebooks/05_allreduce.html">notebook 05</a>' in glossary
    assert 'href="source/numba_kernels/allreduce/ring.py.html"><code' in glossary
    notebook = (SITE / "notebooks/05_allreduce.html").read_text()
    assert 'href="04_ranks_and_messages.html">notebook 4</a>' in notebook
    assert '<span class="k">px</span>\n<span class="kn">import</span>' in notebook
    assert "0 of 4 engines" not in notebook  # progress that was written over


def test_every_page_on_a_phone(address, record):
    every = sorted(str(file.relative_to(SITE)) for file in SITE.rglob("*.html"))
    sources = [file for file in every if file.startswith("source/")]  # all alike
    files = [file for file in every if file not in sources] + sources[::50]
    wide, broken, wrong = {}, {}, []
    with Page(390, 844) as page:
        size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        for file in files:
            page.open(f"{address}/{file}")
            seen = page.until(
                f"(seen => seen && seen.path == {json.dumps('/' + file)} && seen)({LOOK})"
            )
            if seen["width"] > seen["window"]:
                wide[file] = seen["width"]
            if seen["broken"]:
                broken[file] = seen["broken"]
            wrong += [file] * bool(seen["wrong"])
        elsewhere, said = page.elsewhere(), page.said[:]
    record(f"of {len(files)} pages, wider than 390 px", "0", str(len(wide)), not wide)
    assert not wide and not broken and not wrong and not elsewhere, (wide, broken, wrong, elsewhere)
    assert not said, said

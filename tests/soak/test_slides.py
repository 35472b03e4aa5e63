"""The decks in a real browser: nothing overflows, type is large, nothing is loaded from elsewhere.

It looks at build/slides, so run `make slides` first. It needs Chromium (Debian: apt install
chromium), and fails without it. Pictures of all slides are in the folder that the environment
variable TUTORIAL_DL_PICTURES names, if it is set. Type in figures: slides/figures.py.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import Page

import render as slides

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "slides"
DECKS = slides.decks(ROOT / "slides")
SMALLEST = 24  # pixels of a slide of 1280 are 18 points on a page of 13.3 inches
# What is wrong with the slide that is shown. Marp may shrink text in an SVG of its own.
WRONG = """
(() => {
  const section = document.querySelector('.bespoke-marp-active section') ||
                  document.querySelector('section');
  const whole = section.getBoundingClientRect(), unit = whole.width / 1280, found = [];
  if (section.scrollHeight > section.clientHeight + 1) found.push('the text is too long by ' +
    (section.scrollHeight - section.clientHeight) + ' pixels');
  for (const e of section.querySelectorAll('*')) {
    const box = e.getBoundingClientRect(), name = e.tagName + ' ' + e.textContent.slice(0, 40);
    if (!box.width || e.closest('mjx-assistive-mml')) continue;
    const ends = [(box.right - whole.left) / unit, (box.bottom - whole.top) / unit];
    if (ends[0] > 1276 || ends[1] > 700) found.push(`${name} ends at ${ends.map(Math.round)}`);
    const hides = getComputedStyle(e).overflowX != 'visible';
    if (hides && e.clientWidth && e.scrollWidth > e.clientWidth + 1)
      found.push(`${name} is cut at the right`);
    if (e.tagName == 'IMG') {
      const ratio = (box.width / box.height) / (e.naturalWidth / e.naturalHeight);
      if (!(Math.abs(ratio - 1) < 0.02)) found.push(`a picture is stretched by ${ratio}`);
    }
  }
  const walker = document.createTreeWalker(section, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || e.closest('mjx-container, style, script')) continue;
    let size = parseFloat(getComputedStyle(e).fontSize);
    const svg = e.closest('svg');
    if (svg && section.contains(svg)) size *= svg.getScreenCTM().a / unit;
    const words = walker.currentNode.data.slice(0, 40);
    if (size < SMALLEST - 0.1) found.push(`${size} pixels: ${words}`);
  }
  return found;
})()
""".replace("SMALLEST", str(SMALLEST))
LOADED = "document.readyState == 'complete' && [...document.images].every(i => i.complete)"
LINK = re.compile(r"""(?:\bsrc=|\bhref=|url\()["']?(https?:[^"'\s)>]+)""")


def pages(pdf: Path) -> int:
    """The number of pages, whose descriptions may lie in compressed streams."""
    texts = []
    for stream in re.findall(rb"/ObjStm.*?stream\r?\n(.*?)endstream", pdf.read_bytes(), re.DOTALL):
        texts.append(zlib.decompressobj().decompress(stream))
    return len(re.findall(rb"/Type\s*/Page\b", b"\n".join([pdf.read_bytes(), *texts])))


def test_decks_are_built():
    assert BUILT.exists(), "there are no decks in build/slides: run make slides first"
    names = {file.name for file in BUILT.iterdir()}
    assert {f"{deck.name}.{kind}" for deck in DECKS for kind in ("html", "pdf")} <= names


@pytest.mark.parametrize("deck", DECKS, ids=lambda deck: deck.name)
def test_every_slide(deck, record):
    file = BUILT / f"{deck.name}.html"
    text = file.read_text()
    links = {url for url in LINK.findall(text) if f'<a href="{url}' not in text}
    assert not links, links
    wrong, pictures = [], os.environ.get("TUTORIAL_DL_PICTURES")
    with Page(1280, 720) as page:
        # The window's frame takes some of its height; the page itself must be 1280 by 720.
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=1280, height=720, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        for number in range(1, len(deck.slides) + 1):
            page.open(f"{file.as_uri()}#{number}")
            page.until(LOADED)
            active = "document.querySelector('.bespoke-marp-active section')"
            page.until(f"{active} && {active}.dataset.marpitPagination == '{number}'", 30)
            wrong += [f"slide {number}: {one}" for one in page.evaluate(WRONG)]
            if pictures:
                time.sleep(0.2)  # the page turns
                page.picture(Path(pictures) / f"{deck.name}-{number:02}.png")
        asked = {url[:100] for url in page.requests if urlsplit(url).scheme not in ("file", "data")}
        assert not asked, asked
        assert not page.said, page.said
    assert pages(file.with_suffix(".pdf")) == len(deck.slides)
    assert not wrong, "\n".join(wrong)
    what = f"what is wrong on {len(deck.slides)} slides of {deck.name}"
    record(what, "0", "0", True)

"""The text of all pages as a script, for excerpts where a search is opened from disk.

There a page may not read other pages, but it may load scripts; `_static/scorer.js` loads this one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

MAIN = re.compile(r'<article role="main".*?</article>', re.DOTALL)
# Tags with a name stay: a result leads to such a place, where its excerpt begins.
LEFT_OUT = re.compile(
    r'<(script|style|svg)\b.*?</\1>|<a class="headerlink".*?</a>|<(?![^>]* id=)[^>]*>', re.DOTALL
)


def write(site: Path) -> None:
    """Write `_static/texts.js` of a built site: `texts["page.html"]` is that page's text."""
    texts = {}
    for file in sorted(site.rglob("*.html")):
        if main := MAIN.search(file.read_text(encoding="utf-8")):
            text = LEFT_OUT.sub("", main[0])
            texts[file.relative_to(site).as_posix()] = re.sub(r"\s+", " ", text)
    script = f"var texts = {json.dumps(texts)};\n"
    (site / "_static/texts.js").write_text(script, encoding="utf-8")

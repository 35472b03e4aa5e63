"""Looks over the built site: every link leads somewhere, nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGEST = 60e6  # bytes of all files
STYLE = re.compile(r"""url\(\s*["']?((?:https?:)?//[^"')]+)|@import\s+["']((?:https?:)?//[^"']+)""")
LOADS = {
    "script": ("src",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src", "srcset"),
    "video": ("src",), "audio": ("src",), "embed": ("src",), "object": ("data",), "link": ("href",),
    "image": ("href", "xlink:href"), "use": ("href", "xlink:href"),
}  # fmt: skip
HARMLESS = {"canonical", "alternate", "search", "author", "license", "next", "prev"}  # of <link>


class Page(HTMLParser):
    """What a page loads, where it links to, and the names that links may end in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)
        self.loads += [a or b for a, b in STYLE.findall(text)]

    def handle_starttag(self, tag: str, attrs: list) -> None:
        given = dict(attrs)
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "link" and set((given.get("rel") or "").split()) & HARMLESS:
            return
        for key in LOADS.get(tag, ()):
            if given.get(key):
                self.loads.append(given[key])


def elsewhere(address: str) -> bool:
    """Whether a browser would ask another machine for this address."""
    return urlsplit(address).scheme in ("http", "https", "ftp", "ws", "wss") or address[:2] == "//"


def problems(site: Path) -> list[str]:
    """All that is wrong with a built site: links, what pages load, and the size of all files."""
    files = [file for file in sorted(site.rglob("*")) if file.is_file()]
    pages = {
        file.resolve(): Page(file.read_text(encoding="utf-8"))
        for file in files
        if file.suffix == ".html"
    }
    if not pages:
        return [f"there are no pages in {site}"]
    found = []
    for file, page in pages.items():
        where = file.relative_to(site.resolve())
        found += [f"{where} loads {one[:80]}" for one in page.loads if elsewhere(one)]
        for link in dict.fromkeys([*page.links, *page.loads]):
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{where} links to {link}, which is not there")
            elif (
                parts.fragment
                and target in pages
                and (unquote(parts.fragment) not in pages[target].ids)
            ):
                found.append(f"{where} links to {link}: that page has no such part")
    for file in files:
        if file.suffix == ".css":
            text = file.read_text(encoding="utf-8", errors="replace")
            found += [f"{file.name} loads {a or b}" for a, b in STYLE.findall(text)]
    size = sum(file.stat().st_size for file in files)
    if size > LARGEST:
        found.append(
            f"the site has {size / 1e6:.0f} MB; it should have at most {LARGEST / 1e6:.0f}"
        )
    return found

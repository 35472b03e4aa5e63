"""The text of both packages' files as small pages of their own, to which the site's pages link."""

from __future__ import annotations

from html import escape
from pathlib import Path

from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, String, Token

from public import ROOTS

# Few colours, so that a page is hardly larger than its file.
COLOURS = {
    Comment: "c", String: "s", Keyword: "k", Number: "n", Name.Function: "d", Name.Class: "d",
    Name.Decorator: "c",
}  # fmt: skip
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{path}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="{up}_static/mark.svg"><link rel="stylesheet" href="{up}_static/source.css">
</head><body><nav><a href="{up}index.html">tutorial-dl</a> {path}</nav>
<pre>{text}</pre></body></html>
"""


def write(root: Path, out: Path) -> None:
    """Write `out/<path>.html` for every Python file of both packages below `root`."""
    for package in ROOTS:
        for file in sorted((root / package).rglob("*.py")):
            path = file.relative_to(root)
            up = "../" * len(path.parts)
            text = lines(file.read_text(encoding="utf-8"))
            page = out / f"{path}.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(PAGE.format(path=path, up=up, text=text), encoding="utf-8")


def lines(code: str) -> str:
    """Code as HTML; line 7 is `#L7`."""
    made, number = ["<i id=L1></i>"], 1
    pieces: list[tuple[str, str]] = []
    for kind, text in PythonLexer(stripnl=False).get_tokens(code):
        colour = _colour(kind)
        if pieces and (pieces[-1][0] == colour or not text.strip()):
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + text)
        else:
            pieces.append((colour, text))
    for colour, text in pieces:
        for i, line in enumerate(text.split("\n")):
            if i:
                number += 1
                made.append(f"\n<i id=L{number}></i>")
            if line:
                whole = escape(line, quote=False)
                made.append(f"<b class={colour}>{whole}</b>" if colour and line.strip() else whole)
    return "".join(made)


def _colour(kind: type[Token]) -> str:
    while kind is not Token:
        if kind in COLOURS:
            return COLOURS[kind]
        kind = kind.parent
    return ""

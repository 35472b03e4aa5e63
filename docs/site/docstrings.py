"""A docstring as Markdown: prose, indented listings, and sections such as `Args:`."""

from __future__ import annotations

import inspect
import re
from textwrap import dedent

TITLES = {
    "Args": "Arguments", "Arguments": "Arguments", "Attributes": "Attributes",
    "Returns": "Returns", "Yields": "Yields", "Raises": "Raises", "Example": "Example",
    "Examples": "Example", "Note": "Note",
}  # fmt: skip
SECTION = re.compile(rf"^({'|'.join(TITLES)}): *(.*)$")
ENTRY = re.compile(r"^([*\w][\w*., -]*): *(.*)$")
SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)
COLUMNS = re.compile(r"\S {3,}\S")
LIST = re.compile(r"^ {0,1}(-|\d+\.) ")


def markdown(docstring: str | None) -> str:
    """The docstring as Markdown (MyST); "" if there is none."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    parts, prose = [], []
    at = 0
    while at < len(lines):
        found = SECTION.match(lines[at])
        if not found:
            prose.append(lines[at])
            at += 1
            continue
        parts.append(_prose(prose))
        prose, body = [], []
        at += 1
        while at < len(lines) and (not lines[at].strip() or lines[at].startswith(" ")):
            body.append(lines[at])
            at += 1
        text = ([found[2]] if found[2] else []) + dedent("\n".join(body)).strip("\n").splitlines()
        parts.append(f"**{TITLES[found[1]]}**\n\n{_section(found[1], text)}")
    parts.append(_prose(prose))
    return "\n\n".join(filter(None, parts))


def escaped(text: str) -> str:
    """Text in which only code between backticks is markup."""
    made, at = [], 0
    for span in SPAN.finditer(text):
        made += [_plain(text[at : span.start()]), span[0]]
        at = span.end()
    return "".join(made) + _plain(text[at:])


def _plain(text: str) -> str:
    text = re.sub(r"([\\*_\[\]<{$`])", r"\\\1", text)
    return re.sub(r"(?m)^( *)([#>%+=~|:])", r"\1\\\2", text)


def _section(title: str, lines: list[str]) -> str:
    entries: list[list[str]] = []
    if title in ("Args", "Arguments", "Attributes", "Raises"):
        for line in lines:
            if ENTRY.match(line):
                entries.append([line])
            elif entries:
                entries[-1].append(line)
            else:
                return _prose(lines)
    if not entries:
        return _prose(lines)
    made = []
    for first, *more in entries:
        name, text = ENTRY.match(first).groups()
        whole = " ".join([text, *(line.strip() for line in more if line.strip())])
        made.append(f"- `{name}`: {escaped(whole)}")
    return "\n".join(made)


def _prose(lines: list[str]) -> str:
    made = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        if paragraph.strip():
            made += _paragraph(paragraph.strip("\n").splitlines())
    return "\n\n".join(_joined(made))


def _paragraph(lines: list[str]) -> list[tuple[bool, str]]:
    """The paragraph in pieces, each (is a listing, its lines)."""
    if LIST.match(lines[0]):
        return [(False, escaped("\n".join(lines)))]
    if lines[0].lstrip().startswith(">>>") or sum(bool(COLUMNS.search(x)) for x in lines) > 1:
        return [(True, "\n".join(lines))]
    pieces: list[tuple[bool, list[str]]] = []
    for line in lines:
        listing = line.startswith("    ") and not LIST.match(line.lstrip())
        if pieces and pieces[-1][0] == listing:
            pieces[-1][1].append(line)
        else:
            pieces.append((listing, [line]))
    return [(listing, "\n".join(x) if listing else escaped("\n".join(x))) for listing, x in pieces]


def _joined(pieces: list[tuple[bool, str]]) -> list[str]:
    """Listings that follow each other become one."""
    made, code = [], []
    for listing, text in [*pieces, (False, "")]:
        if listing:
            code.append(text)
            continue
        if code:
            whole = dedent("\n\n".join(code))
            language = "pycon" if whole.lstrip().startswith(">>>") else "text"
            made.append(f"```{language}\n{whole}\n```")
            code = []
        if text:
            made.append(text)
    return made

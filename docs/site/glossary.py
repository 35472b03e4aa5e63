"""The glossary's table as a list of terms, so that pages and the search box reach a single one."""

from __future__ import annotations

import re

ROW = re.compile(r"^\| (.+?) \| (.+) \| (.*?) \|$", re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)


def as_terms(page: str) -> str:
    """The page with its first table as a glossary; `a, b` in the first column are two terms."""
    table = TABLE.search(page)
    entries = []
    for term, meaning, places in ROW.findall(table[0])[1:]:
        if set(term) == {"-"}:
            continue
        names = "\n".join(term.split(", "))
        where = f"\n\n    *Defined in* {places}" if places.strip() else ""
        entries.append(f"{names}\n    {meaning}{where}")
    listed = "\n\n".join(entries)
    return f"{page[: table.start()]}:::{{glossary}}\n{listed}\n:::\n{page[table.end() :]}"

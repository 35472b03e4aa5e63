"""The programs of a page of docs/: its blocks of Python."""

import re
from collections.abc import Iterator
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^# (\w+\.py)")


def programs(page: Path, folder: Path) -> Iterator[tuple[str | None, str]]:
    """(name of its file, code) of each, in order; one that begins with a name is written there."""
    for code in BLOCK.findall(page.read_text(encoding="utf-8")):
        named = FILE.match(code)
        if named:
            (folder / named[1]).write_text(code, encoding="utf-8")
        yield (named[1] if named else None), code

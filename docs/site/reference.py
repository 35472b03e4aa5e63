"""The reference: a page per public name, with its signature, its docstring and examples."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import docstrings
from cells import Cell
from examples import Block
from public import ROOTS, Name, members
from values import VALUES

CELLS = 3  # links to cells of notebooks on a page
BLOCKS = 2  # examples on a page


def examples_of(
    names: Iterable[Name], blocks: Iterable[Block], cells: Iterable[Cell]
) -> tuple[Mapping[str, list[Block]], Mapping[str, list[Cell]]]:
    """(blocks, cells) that show each name, by its path; those that show the fewest names first."""
    path = {each: one.path for one in names for each in one.paths}
    of_blocks, of_cells = defaultdict(list), defaultdict(list)
    for block in sorted(blocks, key=lambda block: len(block.shows)):
        for shown in dict.fromkeys(path[name] for name in block.shows if name in path):
            of_blocks[shown].append(block)
    for cell in cells:
        for shown in sorted(set().union(*(_named(use, path) for use in cell.uses))):
            of_cells[shown].append(cell)
    return of_blocks, of_cells


def _named(use: str, path: Mapping[str, str]) -> set[str]:
    """The names that `a.b.c` uses, by their paths: `a.b`, which may be called `d`, and `d.c`."""
    found, now = set(), ""
    for word in use.split("."):
        now = f"{now}.{word}" if now else word
        if now in path:
            now = path[now]
            found.add(now)
    return found


def without_example(
    names: Iterable[Name], blocks: Mapping[str, list], cells: Mapping[str, list]
) -> list[str]:
    """Names that no block and no cell shows. For a package, its names' examples are enough."""
    return [
        one.path
        for one in names
        if one.parent and not blocks.get(one.path) and not cells.get(one.path)
    ]


def pages(names: list[Name], blocks: list[Block], cells: list[Cell]) -> Iterator[tuple[str, str]]:
    """(path of the page below `api/`, its Markdown) of all public names, and of the index."""
    of_blocks, of_cells = examples_of(names, blocks, cells)
    by_path = {path: one for one in names for path in one.paths}
    yield "index", _index(names)
    for one in names:
        # Only packages stand in the tree of pages, which is on every page.
        head = f"---\norphan: true\n---\n\n# {one.short}" if one.parent else f"# {one.path}"
        pieces = [head, _called(one)]
        pieces.append(_entry(one))
        if not one.parent:
            pieces.append(_table(one, by_path))
        pieces += [_block(block) for block in of_blocks.get(one.path, [])[:BLOCKS]]
        where = of_cells.get(one.path, [])
        if where and not of_blocks.get(one.path):
            shown = next((cell for cell in where if cell.pictures), where[0])
            pieces.append(_cell(shown))
        pieces.append(_links(where))
        yield one.page, "\n\n".join(filter(None, pieces)) + "\n"


GROUPS = {  # title: which packages
    "Kernels": "numba_kernels",
    "Training": "tutorial_dl",
    "Horovod's interface, and layers": "tutorial_dl.horovod tutorial_dl.interop tutorial_dl.layers",
    "What only the notebooks use": "tutorial_dl.course",
}


def _index(names: list[Name]) -> str:
    tops = [one for one in names if not one.parent]
    count = len(names) - len(tops)
    lines = [
        "# Reference",
        f"The {count} public names of both packages, each with an example that was run. Names that "
        "no page has are not public. In alphabetical order: {ref}`index <genindex>`.",
    ]
    for title in GROUPS:
        ours = [one for one in tops if _group(one.path) == title]
        entries = "\n".join(f"- {_link(one, one.path)}: {_first(one)}" for one in ours)
        lines += [f"## {title}", entries]
    toctree = "\n".join(f"{one.path} <{one.page}>" for one in tops)
    lines.append(f"```{{toctree}}\n:hidden:\n\n{toctree}\n```")
    return "\n\n".join(lines) + "\n"


def _group(path: str) -> str:
    """The last title of GROUPS that has the package, or one above it."""
    found = [
        title
        for title, packages in GROUPS.items()
        if any(f"{path}.".startswith(f"{one}.") for one in packages.split())
    ]
    return found[-1]


def _link(one: Name, text: str) -> str:
    return f"[`{text}`](/api/{one.page}.md)"


def _first(one: Name) -> str:
    """The first sentence of its docstring, or what a value is."""
    if one.kind == "data":
        return docstrings.escaped(VALUES[one.path])
    text = " ".join((inspect.getdoc(_plain(one.value)) or "").split("\n\n")[0].split())
    return docstrings.escaped(text.split(". ")[0].rstrip(":.") + "." if text else "")


def _called(one: Name) -> str:
    others = sorted({path for path in one.others if path != one.path})
    also = f", also {', '.join(f'`{path}`' for path in others[:4])}" if others else ""
    file = _source(one.value)
    source = f"Source: `{file}`" if file else ""
    if not one.parent:
        return f"`{one.path}`{also}. {source}"
    home = f"[{one.parent}](/api/modules/{one.parent}.md)"
    line = f"from {one.path.rpartition('.')[0]} import {one.short}"
    return f"```python\n{line}\n```\n\nIn {home}{also}. {source}"


def _source(value: Any) -> str:
    """Where it is written, as "numba_kernels/team/team.py:40"; "" for values."""
    value = inspect.unwrap(_plain(value))
    try:
        file = Path(inspect.getsourcefile(value))
        line = 0 if inspect.ismodule(value) else inspect.getsourcelines(value)[1]
    except (TypeError, OSError):
        return ""
    path = _below_packages(file)
    return f"{path}:{line}" if path and line else path


def _below_packages(file: Path) -> str:
    """The file's path that begins with the package's name; "" if it is in none."""
    for above in file.parents:
        if above.name in ROOTS:
            return file.relative_to(above.parent).as_posix()
    return ""


def _table(package: Name, by_path: Mapping[str, Name]) -> str:
    """The names of a package with the first sentence of each."""
    entries = [
        (short, by_path[f"{package.path}.{short}"])
        for short in sorted(package.value.__all__, key=str.lower)
    ]
    lines = [f"- {_link(one, short)}: {_first(one)}".rstrip(": ") for short, one in entries]
    return "## Names\n\n" + "\n".join(lines)


def _plain(value: Any) -> Any:
    """The Python function inside a compiled one."""
    return getattr(value, "py_func", value)


def _entry(one: Name) -> str:
    """The directive with signature, docstring and members."""
    home = one.path.rpartition(".")[0]
    if one.kind == "module":
        # What a package offers has pages of its own.
        inside = members(one.value) if one.parent else []
        parts = [_described(name, part, one.path, 5) for name, part in inside]
        return "\n\n".join([docstrings.markdown(one.value.__doc__), *parts])
    if one.kind == "data":
        entry = f":::{{py:data}} {one.short}\n:module: {home}\n\n{_first(one)}\n:::"
        return f"{entry}\n\n```python\n{_value(one.value)}\n```"
    return _described(one.short, one.value, home, 6)


def _value(value: Any) -> str:
    if isinstance(value, Path):
        value = Path(_below_packages(value) or value)
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return text if len(text) < 2000 else text[:2000] + " ..."


def _described(name: str, value: Any, module: str, colons: int) -> str:
    fence = ":" * colons
    kind = "class" if inspect.isclass(value) else "function"
    body = docstrings.markdown(inspect.getdoc(_plain(value)))
    parts = [f"{fence}{{py:{kind}}} {name}{signature(value)}\n:module: {module}\n", body]
    if kind == "class":
        parts += [_member(each, part, fence[:-1]) for each, part in members(value)]
    return "\n\n".join(filter(None, parts)) + f"\n{fence}"


def _member(name: str, part: Any, fence: str) -> str:
    if inspect.isclass(part):
        return ""
    if isinstance(part, property):
        kind, called, options = "property", name, ""
    else:
        options = {classmethod: ":classmethod:\n", staticmethod: ":staticmethod:\n"}.get(
            type(part), ""
        )
        function = getattr(part, "__func__", part)
        kind, called = "method", name + signature(function, method=type(part) is not staticmethod)
    body = docstrings.markdown(inspect.getdoc(part))
    return f"{fence}{{py:{kind}}} {called}\n{options}\n{body}\n{fence}"


def signature(value: Any, method: bool = False) -> str:
    """The signature as text: annotations as they are written, defaults without addresses."""
    try:
        found = inspect.signature(_plain(value))
    except (TypeError, ValueError):
        return "()"
    shown, before = [], None
    kinds = inspect.Parameter
    for i, one in enumerate(found.parameters.values()):
        if method and i == 0:
            continue
        if one.kind is kinds.KEYWORD_ONLY and before not in (
            kinds.KEYWORD_ONLY,
            kinds.VAR_POSITIONAL,
        ):
            shown.append("*")
        stars = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(one.kind, "")
        text = stars + one.name
        typed = one.annotation is not one.empty
        if typed:
            text += f": {_annotation(one.annotation)}"
        if one.default is not one.empty:
            text += f"{' = ' if typed else '='}{_default(one.default)}"
        shown.append(text)
        before = one.kind
    returns = found.return_annotation
    arrow = (
        "" if returns is found.empty or inspect.isclass(value) else f" -> {_annotation(returns)}"
    )
    return f"({', '.join(shown)}){arrow}"


def _default(value: Any) -> str:
    text = value.__name__ if hasattr(value, "__name__") else repr(value)
    return "..." if text.startswith("<") else text


def _annotation(value: Any) -> str:
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    return " ".join(text.replace("'", "").split())


def _block(block: Block) -> str:
    where = f" (on {block.ranks} ranks)" if block.ranks > 1 else ""
    parts = [f"## Example: {docstrings.escaped(block.title)}{where}", f"```python\n{block.code}```"]
    if block.output:
        parts.append(f"```text\n{block.output}\n```")
    if block.picture:
        parts.append(f"![{block.title}]({picture_of(block)})")
    return "\n\n".join(parts)


def picture_of(block: Block) -> str:
    """The path of a block's picture in the site."""
    return f"/pictures/{block.file.removesuffix('.py').replace('/', '-')}-{block.line}.png"


def picture_of_cell(cell: Cell, number: int = 0) -> str:
    return f"/pictures/{cell.label}-{number + 1}{cell.pictures[number][0]}"


def _cell(cell: Cell) -> str:
    parts = [f"## Example: {cell.title}", f"```ipython3\n{cell.code}\n```"]
    if cell.pictures:
        parts.append(f"![The figure that this cell made]({picture_of_cell(cell)})")
    return "\n\n".join(parts)


def _links(cells: list[Cell]) -> str:
    if not cells:
        return ""
    lines = [
        f"- [{cell.title}: {docstrings.escaped(cell.heading)}](#{cell.label})" for cell in cells
    ]
    return "## In the course\n\n" + "\n".join(lines[:CELLS])

"""All pages of the site in one folder: docs, notebooks, reference, commands, gallery."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cells
import commands
import examples
import gallery
import glossary
import public
import reference
import sources
from names import NOTEBOOKS

FURTHER = "binder/README.md", "benchmarks/README.md"  # pages that are not in docs/


class PageError(ValueError):
    """A page names what there is not, or something is missing that the pages are made from."""


def write(
    root: Path, notebooks: Path, blocks: list[examples.Block], command: Any, out: Path
) -> int:
    """Write the pages; returns their number.

    Args:
        root: The folder of the repository.
        notebooks: The folder of notebooks with outputs (executing.py).
        blocks: The examples, with outputs.
        command: The click command of `python -m tutorial_dl`.
        out: The folder; what was there is removed.

    Raises:
        PageError: a notebook is missing, or a public name has no example.
    """
    missing = [
        one.stem for one in NOTEBOOKS.values() if not (notebooks / f"{one.stem}.ipynb").exists()
    ]
    if missing:
        raise PageError(f"there is no {missing[0]}.ipynb in {notebooks}: make notebooks")
    names = public.names()
    found = cells.read(notebooks)
    lacking = reference.without_example(names, *reference.examples_of(names, blocks, found))
    if lacking:
        raise PageError(f"{lacking[0]} has no example in docs/examples ({len(lacking)} have none)")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(
        root / "docs", out, ignore=shutil.ignore_patterns("examples", "site", "__pycache__")
    )
    _rewrite(out.glob("*.md"), "](../", "](")
    readme = (root / "README.md").read_text(encoding="utf-8")
    table = (root / "notebooks/README.md").read_text(encoding="utf-8")
    readme = readme.replace("](notebooks/README.md)", "](notebooks/index.md)")
    guide = readme.replace("](docs/", "](").replace("# tutorial-dl", "# Guide", 1)
    guide = re.sub(
        r"\[\w+\]\((CONTRIBUTING\.md|CHANGES\.md)\)", r"`\1`", guide
    )  # they are no pages
    _write(out / "guide.md", guide)
    for file in FURTHER:
        text = (root / file).read_text(encoding="utf-8").replace("](../docs/", "](../")
        _write(out / file, text)
    shutil.copy(root / "binder/badge.svg", out / "binder")
    for file in [*out.glob("*.md"), *(out / file for file in FURTHER)]:
        _change(file, lambda text, folder=file.parent: with_titles(text, folder))
    _rewrite([out / "index.md"], "% figures", gallery.at_home(found))
    _change(out / "glossary.md", glossary.as_terms)
    words = _notebooks(notebooks, found, out / "notebooks")
    _write(out / "notebooks/index.md", gallery.course(found, table, words))
    sources.write(root, out / "_extra/source")
    for page, text in reference.pages(names, blocks, found):
        _write(out / "api" / f"{page}.md", text)
    _pictures(blocks, found, out / "pictures")
    _commands(command, out / "commands", _lines(out))
    _write(out / "gallery.md", gallery.gallery(found))
    return sum(1 for kind in ("*.md", "*.ipynb") for _ in out.rglob(kind))


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def with_titles(text: str, folder: Path) -> str:
    """The Markdown with titles for names: [docs/data.md](data.md) becomes [*Data*](data.md)."""

    def titled(link: re.Match) -> str:
        return f"[*{_title(folder / link[1])}*]({link[1]}{link[2] or ''})"

    return re.sub(r"\[[\w/.]+\.md\]\(([\w/.]+\.md)(#[\w-]+)?\)", titled, text)


def _title(file: Path) -> str:
    return file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _change(file: Path, change: Callable[[str], str]) -> None:
    file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")


def _rewrite(files: Iterable[Path], old: str, new: str) -> None:
    for file in files:
        _change(file, lambda text: text.replace(old, new))


def _notebooks(folder: Path, found: list[cells.Cell], out: Path) -> dict[str, str]:
    """Write the notebooks; returns the Markdown of each, by its name."""
    words = {}
    for name, about in NOTEBOOKS.items():
        content = json.loads((folder / f"{about.stem}.ipynb").read_text(encoding="utf-8"))
        content = cells.with_labels(name, content, found)
        content["metadata"].pop("widgets", None)  # their program would come from elsewhere
        _write(out / f"{about.stem}.ipynb", json.dumps(content))
        words[name] = "\n".join(
            "".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "markdown"
        )
    return words


def _pictures(blocks: list[examples.Block], found: list[cells.Cell], out: Path) -> None:
    out.mkdir()
    for block in blocks:
        if block.picture:
            file = out / Path(reference.picture_of(block)).name
            file.write_bytes(base64.b64decode(block.picture))
    for cell in found:
        for number, (_, content) in enumerate(cell.pictures):
            (out / Path(reference.picture_of_cell(cell, number)).name).write_bytes(content)


def _lines(out: Path) -> dict[str, str]:
    """Command lines of all documents, each with a link to the first that has it."""
    lines: dict[str, str] = {}
    for file in sorted(out.glob("*.md")):
        text = file.read_text(encoding="utf-8")
        for line in commands.lines_of(text):
            lines.setdefault(line, f"[{_title(file)}](../{file.name})")
    return lines


def _commands(command: Any, out: Path, lines: dict[str, str]) -> None:
    found = [*commands.pages(command, ("python -m tutorial_dl",), lines)]
    for words, text in found:
        _write(out / f"{commands.name_of(words)}.md", text)
    others = {
        "numba_kernels": ("python -m numba_kernels bench", "Time the kernels.", _help_of_bench()),
        "horovod": (
            "python -m tutorial_dl.horovod", "Start a script of Horovod's.", _help_of_horovod()
        ),
    }  # fmt: skip
    for name, (title, _, text) in others.items():
        _write(out / f"{name}.md", f"# {title}\n\n```text\n{text}\n```\n")
    lines = [
        f"{'  ' * (len(words) - 1)}- [`{' '.join(words)}`]({commands.name_of(words)}.md): "
        f"{commands.about(command, words)}"
        for words, _ in found
    ]
    lines += [f"- [`{title}`]({name}.md): {about}" for name, (title, about, _) in others.items()]
    toctree = "\n".join([commands.name_of(found[0][0]), *others])
    text = (
        "Every command with all its options. `--config FILE` takes options of `train` from a file: "
    )
    text += "[training](../training.md)."
    page = f"# Commands\n\n{text}\n\n" + "\n".join(lines)
    _write(out / "index.md", f"{page}\n\n```{{toctree}}\n:hidden:\n\n{toctree}\n```\n")


def _help_of_bench() -> str:
    from numba_kernels import bench

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        bench.main(["bench", "--help"])
    return shown.getvalue().strip()


def _help_of_horovod() -> str:
    from importlib import import_module

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        import_module("tutorial_dl.horovod.__main__").main(["--help"])
    return shown.getvalue().strip()


def problems(root: Path) -> list[str]:
    """What pages and READMEs link to that is not there, and pages that are in no toctree."""
    docs = root / "docs"
    listed = set(re.findall(r"^([\w/]+)$", (docs / "index.md").read_text(), re.MULTILINE))
    found = [
        f"docs/{file.name} is in no toctree of docs/index.md"
        for file in sorted(docs.glob("*.md"))
        if file.stem not in listed | {"index"}
    ]
    pages = [*sorted(docs.glob("*.md")), *(root / file for file in ("README.md", *FURTHER))]
    for file in filter(Path.exists, pages):
        text = file.read_text(encoding="utf-8").replace("](docs/", "](")
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
            folder = docs if file.parent == root else file.parent
            there = (folder / link).exists() or (root / link).exists()
            if not there and not (file.name == "index.md" and _made(link)):
                found.append(f"{file.relative_to(root)}: there is no {link}")
    return found


def _made(link: str) -> bool:
    """Whether the link, of the home page, leads to a page that this module makes."""
    return link in (
        "guide.md", "gallery.md", "api/index.md", "commands/index.md", "notebooks/index.md"
    )  # fmt: skip

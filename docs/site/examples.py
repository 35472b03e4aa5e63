"""The examples in docs/examples: programs in titled blocks, run once for the site.

A file is named as the package it belongs to: `docs/examples/numba_kernels/optimizers.py`. A block
begins with a line `# %% Title` and says which public names it shows:

    # %% A step of Adam
    # shows: Adam, Optimizer, numba_kernels.Team

Names without a package are those of the file's own. `# %% [4 ranks] Title` is a program of its
own, which runs on four ranks. The other blocks of a file run one after the other in one process and
share their variables. The output of a block is what it prints, and its last line's value or figure.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

from public import ROOTS

HEAD = re.compile(r"^# %% (?:\[(\d+) ranks\] )?(.+)\n", re.MULTILINE)
SHOWS = re.compile(r"^# shows: *(.+)\n", re.MULTILINE)
SECONDS = 300.0  # for all blocks on ranks together


class ExampleFailed(RuntimeError):
    """A block raised an error."""


@dataclass(frozen=True)
class Block:
    """A block: the names that it `shows`, its `code`, and the `line` of `file` where that begins.

    `output` and `picture` (PNG in base64), "" before it has run.
    """

    file: str
    line: int
    title: str
    shows: tuple[str, ...]
    code: str
    ranks: int = 1
    output: str = ""
    picture: str = ""


def read(folder: Path) -> list[Block]:
    """The blocks of all files, in order."""
    return [block for file in sorted(folder.rglob("*.py")) for block in _blocks(folder, file)]


def _blocks(folder: Path, file: Path) -> Iterator[Block]:
    text = file.read_text(encoding="utf-8")
    package = ".".join(file.relative_to(folder).with_suffix("").parts)
    heads = [*HEAD.finditer(text)]
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        body = text[head.end() : following.start() if following else len(text)]
        shown = [name.strip() for line in SHOWS.findall(body) for name in line.split(",")]
        full = tuple(
            name if name.partition(".")[0] in ROOTS else f"{package}.{name}"
            for name in filter(None, shown)
        )
        lines = sum(1 for _ in SHOWS.finditer(body))
        code = SHOWS.sub("", body).rstrip() + "\n"
        line = text.count("\n", 0, head.end()) + 1 + lines
        ranks = int(head[1] or 1)
        yield Block(str(file.relative_to(folder)), line, head[2].strip(), full, code, ranks)


def digest(folder: Path) -> str:
    """A checksum of the examples and of both packages."""
    from tutorial_dl.course.executing import digest as of_packages

    whole = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        whole.update(of_packages(file).encode())
    return whole.hexdigest()


def run(folder: Path) -> list[Block]:
    """Run all blocks and return them with their outputs.

    Raises:
        ExampleFailed: names the block and its error.
    """
    blocks = read(folder)
    os.environ.setdefault("MPLBACKEND", "Agg")
    done: dict[int, Block] = {}
    here = folder.resolve()
    # Ranks first: a process that starts ranks should not have initialised MPI.
    for ranks in sorted({block.ranks for block in blocks} - {1}):
        numbers = [i for i, block in enumerate(blocks) if block.ranks == ranks]
        texts = _on_ranks(ranks, here, [blocks[i] for i in numbers])
        done |= {i: _with(blocks[i], text, "") for i, text in zip(numbers, texts, strict=True)}
    with tempfile.TemporaryDirectory() as work, chdir(work):
        scope: dict = {}
        file = ""
        for i, block in enumerate(blocks):
            if block.ranks > 1:
                continue
            if block.file != file:
                file, scope = block.file, {"__name__": "__main__"}
            done[i] = _with(block, *_run(block, here, scope))
    return [done[i] for i in range(len(blocks))]


def _with(block: Block, output: str, picture: str) -> Block:
    return Block(**(asdict(block) | {"output": output, "picture": picture}))


def _run(block: Block, folder: Path, scope: dict) -> tuple[str, str]:
    """Run one block in this process; returns (what it printed and its last value, a picture)."""
    printed, picture = io.StringIO(), ""
    path = str(folder / block.file)
    # The lines before it are empty, so that errors have the file's own line numbers.
    tree = ast.parse("\n" * (block.line - 1) + block.code, path)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    try:
        with redirect_stdout(printed):
            exec(compile(tree, path, "exec"), scope)
            value = eval(compile(ast.Expression(last.value), path, "eval"), scope) if last else None
            if hasattr(value, "savefig"):
                content = io.BytesIO()
                value.savefig(content, format="png", dpi=80)
                picture = base64.b64encode(content.getvalue()).decode()
            elif value is not None:
                print(repr(value))
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ExampleFailed(f"{block.file}, {block.title!r}: {said}") from error
    return printed.getvalue().rstrip(), picture


def _on_ranks(ranks: int, folder: Path, blocks: list[Block]) -> list[str]:
    """Run blocks on so many ranks, started once; returns what each block printed."""
    from numba_kernels import launch

    with tempfile.TemporaryDirectory() as work:
        tasks = Path(work, "blocks.json")
        tasks.write_text(json.dumps([asdict(block) for block in blocks]), encoding="utf-8")
        words = [__file__, str(folder), work]
        ended = launch.run_ranks(ranks, words, timeout=SECONDS)
        if ended.returncode:
            raise ExampleFailed(f"the examples on {ranks} ranks ended with {ended.returncode}")
        each = [json.loads(Path(work, f"rank_{r}.json").read_text()) for r in range(ranks)]
    return [by_rank(list(texts)) for texts in zip(*each, strict=True)]


def by_rank(texts: list[str]) -> str:
    """What ranks 0, 1, ... printed, with their numbers; what several printed alike stands once."""
    who: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        if text:
            who.setdefault(text, []).append(rank)
    if len(who) == 1 and [*who.values()] == [[0]]:
        return texts[0]
    said = {}
    for text, ranks in who.items():
        whole = len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1))
        name = f"ranks {ranks[0]}-{ranks[-1]}" if whole else f"rank {', '.join(map(str, ranks))}"
        said[name] = text.splitlines()
    width = max(map(len, said), default=0)
    return "\n".join(f"{n + ':':{width + 1}} {line}" for n, lines in said.items() for line in lines)


def write(blocks: list[Block], folder: Path, file: Path) -> None:
    whole = {"source": digest(folder), "blocks": [asdict(block) for block in blocks]}
    file.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def load(file: Path) -> list[Block]:
    """The blocks of a file of `write`."""
    blocks = json.loads(file.read_text(encoding="utf-8"))["blocks"]
    return [Block(**block | {"shows": tuple(block["shows"])}) for block in blocks]


def is_current(folder: Path, file: Path) -> bool:
    return file.exists() and json.loads(file.read_text())["source"] == digest(folder)


def _rank_main(folder: str, work: str) -> None:
    """A rank: run the blocks and write what each printed."""
    from mpi4py import MPI

    blocks = json.loads(Path(work, "blocks.json").read_text(encoding="utf-8"))
    texts = []
    for one in blocks:
        block = Block(**one | {"shows": tuple(one["shows"])})
        texts.append(_run(block, Path(folder), {"__name__": "__main__"})[0])
    Path(work, f"rank_{MPI.COMM_WORLD.rank}.json").write_text(json.dumps(texts))


if __name__ == "__main__":
    _rank_main(*sys.argv[1:])

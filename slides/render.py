"""`python slides/render.py`: decks of slides with figures of notebooks and measured numbers.

A deck begins with lines between two `---`: `title: ...` and `notebooks: name, name`. A line `---`
separates its slides. Beside Markdown (of Marp), a deck may contain

    ![h:500](allreduce:ladder)      the figure that cell `ladder` of notebook `allreduce` has made,
                                    drawn in this height and `w:` of 1152 pixels unless said else;
                                    `allreduce:ladder#2` is the cell's second one; of a film, a PDF
                                    has the last picture
    ```output allreduce:counts      what that cell has printed; `output allreduce:counts 1-3`: its
    ```                             lines 1 to 3
    ```source allreduce:team 4-9    the code of that cell, or some lines of it, without `%%px`
    ```
    [[allreduce]]                   the notebook's number and title
    {{ allreduce_ratio }}           a measured number (measure.py)
    <!-- ... -->                    notes for the speaker

`render` puts these in, so that a deck needs nothing else: pictures become part of its text. A slide
is 1280 by 720 pixels.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "docs/site"))
import figures
from names import NOTEBOOKS
from tutorial_dl.figure_style import KEPT_FIGURE, KEPT_FILM, SLIDE_FILM

PICTURE = re.compile(r"!\[([^\]]*)\]\((\w+):([\w-]+)(?:#(\d+))?\)")
LINES = re.compile(r"^```(output|source) (\w+):([\w-]+)(?: (\d+)-(\d+))?\n```$", re.MULTILINE)
NAME = re.compile(r"\[\[(\w+)\]\]")
NUMBER = re.compile(r"\{\{ *(\w+) *\}\}")
HEAD = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
NOTES = re.compile(r"<!--(?! *_)(.*?)-->", re.DOTALL)  # `<!-- _class: lead -->` is no note
SIZE = re.compile(r"\b([wh]):(\d+)")
WIDTH = 1152  # pixels of a slide between its margins


class DeckError(ValueError):
    """A deck names what there is not."""


@dataclass(frozen=True)
class Deck:
    """A deck: `name` of its file, `title`, the `notebooks` it belongs to, and its `slides`."""

    name: str
    title: str
    notebooks: tuple[str, ...]
    slides: tuple[str, ...]

    @classmethod
    def read(cls, file: Path) -> Deck:
        """Raises DeckError if the lines at the top are missing."""
        text = file.read_text(encoding="utf-8")
        head = HEAD.match(text)
        pairs = (line.partition(":") for line in head[1].splitlines()) if head else ()
        facts = {name.strip(): value.strip() for name, _, value in pairs}
        if set(facts) != {"title", "notebooks"}:
            raise DeckError(f"{file.name} must begin with ---, title: ..., notebooks: ..., ---")
        names = tuple(name.strip() for name in facts["notebooks"].split(","))
        slides = re.split(r"^---$", text[head.end() :], flags=re.MULTILINE)
        return cls(file.stem, facts["title"], names, tuple(slide.strip() for slide in slides))

    def names_of_cells(self) -> Iterator[tuple[int, str, str]]:
        """(number of the slide, notebook, cell) of all figures, outputs and sources."""
        for number, slide in enumerate(self.slides, 1):
            for found in PICTURE.finditer(slide):
                yield number, found[2], found[3]
            for found in LINES.finditer(slide):
                yield number, found[2], found[3]


def decks(folder: Path) -> list[Deck]:
    """All decks of a folder, in order."""
    return [Deck.read(file) for file in sorted(folder.glob("[0-9]*.md"))]


def problems(deck: Deck, notebooks: Path, numbers: Mapping) -> list[str]:
    """What the deck names that there is not: notebooks, their cells, numbers; slides without notes.

    Args:
        deck: The deck.
        notebooks: The folder of notebooks, with or without outputs.
        numbers: Names of numbers.
    """
    found, cells = [], {}
    for name in deck.notebooks:
        if name not in NOTEBOOKS:
            found.append(f"{deck.name}: there is no notebook {name!r}")
    for number, notebook, cell in deck.names_of_cells():
        where = f"{deck.name}, slide {number}"
        if notebook not in NOTEBOOKS:
            found.append(f"{where}: there is no notebook {notebook!r}")
            continue
        if notebook not in cells:
            cells[notebook] = {one["id"] for one in _cells(notebooks, notebook)}
        if cell not in cells[notebook]:
            found.append(f"{where}: notebook {notebook} has no cell {cell!r}")
    for number, slide in enumerate(deck.slides, 1):
        where = f"{deck.name}, slide {number}"
        unknown = [name for name in NAME.findall(slide) if name not in NOTEBOOKS]
        found += [f"{where}: there is no notebook {name!r}" for name in unknown]
        unknown = [name for name in NUMBER.findall(slide) if name not in numbers]
        found += [f"{where}: there is no number {name!r}" for name in unknown]
        if not any(note.strip() for note in NOTES.findall(slide)):
            found.append(f"{where}: it has no notes for the speaker")
    return found


def render(
    deck: Deck,
    notebooks: Path,
    numbers: Mapping[str, str],
    warn: Callable[[str], None] = lambda line: None,
) -> str:
    """The deck as Markdown for Marp, with all pictures in it.

    Args:
        deck: The deck.
        notebooks: The folder of notebooks with outputs (executing.py).
        numbers: name -> text.
        warn: Is told what words of figures can't be read, a line each.

    Raises:
        DeckError: a name is unknown, the cell has no such output, or a picture has no size.
    """
    wrong = problems(deck, notebooks, numbers)
    if wrong:
        raise DeckError(wrong[0])

    def picture(found: re.Match) -> str:
        name, which = f"{found[2]}:{found[3]}", int(found[4] or 1)
        size = {side: int(pixels) for side, pixels in SIZE.findall(found[1])}
        if "h" not in size:
            raise DeckError(f"{deck.name}: picture {name} must have a height, as in ![h:500]")
        width, height = size.get("w", WIDTH), size["h"]
        pictures = list(_pictures(_cell(notebooks, found[2], found[3])))
        if len(pictures) < which:
            cell = f"cell {found[3]} of notebook {found[2]}"
            raise DeckError(f"{deck.name}: {cell} has {len(pictures)} figures, not {which}")
        mime, content = pictures[which - 1]
        if mime == KEPT_FILM:
            width = round(height * SLIDE_FILM[0] / SLIDE_FILM[1])
            forms = ("film", "gif", content), ("still", "png", _last_frame(content))
            return "".join(  # theme.css shows one of the two
                f'<img class="{form}" width="{width}" height="{height}" '
                f'src="data:image/{kind};base64,{data}">'
                for form, kind, data in forms
            )
        figure = pickle.loads(base64.b64decode(content))  # which our own notebook has written
        data, flaws = figures.png(figure, width, height)
        for flaw in flaws:
            warn(f"{deck.name}, {name}: {flaw}")
        return f"![w:{width} h:{height}](data:image/png;base64,{_base64(data)})"

    def quoted(found: re.Match) -> str:
        kind, language = (_printed, "text") if found[1] == "output" else (_source, "python")
        lines = kind(_cell(notebooks, found[2], found[3]))
        if found[4]:
            lines = lines[int(found[4]) - 1 : int(found[5])]
        if not lines:
            raise DeckError(f"{deck.name}: cell {found[3]} of {found[2]} has no such {found[1]}")
        return "\n".join([f"```{language}", *lines, "```"])

    def notebook(found: re.Match) -> str:
        about, begins = NOTEBOOKS[found[1]], found.string[: found.start()].endswith(("\n", "|"))
        return f"{'Notebook' if begins else 'notebook'} {about.number}, *{about.title}*"

    head = "\n".join(
        ["---", "marp: true", "theme: tutorial", "paginate: true", "math: mathjax",
         f"title: {json.dumps(deck.title)}", "---", ""]
    )  # fmt: skip
    text = "\n\n---\n\n".join(deck.slides)
    text = NUMBER.sub(lambda found: numbers[found[1]], NAME.sub(notebook, text))
    return head + PICTURE.sub(picture, LINES.sub(quoted, text)) + "\n"


def _cells(folder: Path, notebook: str) -> list[dict]:
    file = folder / f"{NOTEBOOKS[notebook].stem}.ipynb"
    if not file.exists():
        raise DeckError(f"there is no {file}")
    return json.loads(file.read_text(encoding="utf-8"))["cells"]


def _cell(folder: Path, notebook: str, name: str) -> dict:
    return next(cell for cell in _cells(folder, notebook) if cell["id"] == name)


def _pictures(cell: dict) -> Iterator[tuple[str, str]]:
    """(mime type, base64) of the figures and films that a cell has shown, as kept for slides."""
    for output in cell.get("outputs", ()):
        for mime in (KEPT_FIGURE, KEPT_FILM):
            if content := output.get("data", {}).get(mime):
                yield mime, "".join(content).replace("\n", "")


def _last_frame(gif: str) -> str:
    """The last picture of a film, both in base64."""
    picture = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(gif))) as film:
        film.seek(film.n_frames - 1)
        film.convert("RGB").save(picture, "png")
    return _base64(picture.getvalue())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _printed(cell: dict) -> list[str]:
    texts = [
        "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))
        for output in cell.get("outputs", ())
        if output["output_type"] in ("stream", "display_data")
        and not {"image/png", "text/html"} & output.get("data", {}).keys()
    ]
    return "".join(texts).rstrip().splitlines()


def _source(cell: dict) -> list[str]:
    lines = "".join(cell["source"]).splitlines()
    return lines[1:] if lines and lines[0].startswith("%%") else lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0].partition(": ")[2])
    add = parser.add_argument
    add("--notebooks", type=Path, required=True, help="folder of notebooks with outputs")
    add("--numbers", type=Path, required=True, help="JSON file of measure.py")
    add("--out", type=Path, required=True, help="folder for the decks; it is made if need be")
    asked = parser.parse_args()
    try:
        measured = json.loads(asked.numbers.read_text(encoding="utf-8"))
        texts = measured["numbers"] | {name: measured[name] for name in ("date", "machine")}
        asked.out.mkdir(parents=True, exist_ok=True)
        for deck in decks(HERE):
            text = render(deck, asked.notebooks, texts, lambda line: print(f"warning: {line}"))
            (asked.out / f"{deck.name}.md").write_text(text, encoding="utf-8")
            print(f"{deck.name}: {len(deck.slides)} slides")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

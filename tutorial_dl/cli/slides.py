"""`python -m tutorial_dl slides`: what the decks in slides/ are made from."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from .errors import fail, one_line

app = typer.Typer(no_args_is_help=True, help="Make the slides: their numbers, and their text.")
DECKS = Path("slides")


@app.command()
def numbers(
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
) -> None:
    """Measure the numbers on slides, in some minutes; best on a quiet machine."""
    from ..course.numbers import measure

    with one_line():
        try:
            found = measure()
        except RuntimeError as error:
            fail(str(error), 1)
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found['numbers'])} numbers in {out}")


@app.command()
def render(
    notebooks: Annotated[Path, typer.Option(help="Folder of notebooks with outputs.")],
    numbers: Annotated[Path, typer.Option(help="JSON file of `slides numbers`.")],
    out: Annotated[Path, typer.Option(help="Folder for the decks; it is made if need be.")],
    decks: Annotated[Path, typer.Option(help="Folder of the decks' sources.")] = DECKS,
) -> None:
    """Put figures, outputs and numbers into the decks; Marp makes pages of the result."""
    from ..course import slides

    with one_line():
        found = slides.decks(decks)
        if not found:
            fail(f"there are no decks in {decks}")
        measured = json.loads(numbers.read_text(encoding="utf-8"))
        texts = measured["numbers"] | {name: measured[name] for name in ("date", "machine")}
        out.mkdir(parents=True, exist_ok=True)
        for deck in found:
            text = slides.render(deck, notebooks, texts, _warn)
            (out / f"{deck.name}.md").write_text(text, encoding="utf-8")
            print(f"{deck.name}: {len(deck.slides)} slides")


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)

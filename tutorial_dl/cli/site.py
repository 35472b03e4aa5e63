"""`python -m tutorial_dl site`: what the site is made from; Sphinx makes it (make site)."""

from pathlib import Path
from typing import Annotated

import typer

from ..tensorflow_chatter import hide_tensorflow_chatter
from ..words import counted
from .errors import fail, one_line

app = typer.Typer(no_args_is_help=True, help="Make the site: its pages, from docs and notebooks.")
EXAMPLES = Path("docs/examples")


@app.command()
def examples(
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
    folder: Annotated[Path, typer.Option(help="Folder of the examples.")] = EXAMPLES,
    again: Annotated[bool, typer.Option(help="Run them also if nothing has changed.")] = False,
) -> None:
    """Run the examples of the reference, in about a minute, and keep what they print."""
    from ..course.site import examples

    with one_line():
        if not again and examples.is_current(folder, out):
            print("examples: up to date")
            return
        hide_tensorflow_chatter()
        try:
            blocks = examples.run(folder)
        except examples.ExampleFailed as error:
            fail(str(error), 1)
        if not blocks:
            fail(f"there are no examples in {folder}")
        examples.write(blocks, folder, out)
    print(f"{len(blocks)} examples in {out}")


@app.command()
def pages(
    context: typer.Context,
    notebooks: Annotated[Path, typer.Option(help="Folder of notebooks with outputs.")],
    examples: Annotated[Path, typer.Option(help="JSON file of `site examples`.")],
    out: Annotated[Path, typer.Option(help="Folder for the pages; what is there is removed.")],
) -> None:
    """Write all pages as Markdown and notebooks, for Sphinx."""
    from ..course.site import examples as read
    from ..course.site import pages

    with one_line():
        hide_tensorflow_chatter()
        blocks = read.load(examples)
        count = pages.write(Path(), notebooks, blocks, context.find_root().command, out)
    print(f"{count} pages in {out}")


@app.command()
def check(
    site: Annotated[Path, typer.Argument(help="Folder of the built site.")],
) -> None:
    """Check the built site: links, requests to other machines, and its size."""
    from ..course.site.checking import problems

    with one_line():
        found = problems(site)
    for line in found[:20]:
        print(line)
    if found:
        fail(f"{counted(len(found), 'problem')} in {site}", 1)
    print(f"{site}: all links lead somewhere, and nothing is loaded from elsewhere")


@app.command()
def picture(
    out: Annotated[Path, typer.Option(help="SVG file to write.")],
) -> None:
    """Draw the figure of README."""
    from ..course.site.picture import draw

    with one_line():
        draw(out)
    print(out)

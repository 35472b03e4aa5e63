"""`python docs/site COMMAND`: what the site is made from; Sphinx makes it (make site).

public.py       the public names of both packages
docstrings.py   a docstring as Markdown; reference.py: a page per public name
values.py       what each public value is
examples.py     docs/examples: short programs that show how names are used, run once
cells.py        cells of notebooks: which names they use, which figures they made
names.py        the notebooks by name
commands.py     a page per command, with all its options
gallery.py      the course with a figure per notebook, and all figures
glossary.py     the glossary as a list of terms; sources.py: the text of all files
pages.py        puts all pages into one folder
texts.py        the text of all pages, for a search that is opened from disk
checking.py     looks over the built site: its links, what it would load from elsewhere, its size
picture.py      the figure in README
"""

from pathlib import Path
from typing import Annotated

import typer

from tutorial_dl.cli.errors import fail, one_line
from tutorial_dl.tensorflow_chatter import hide_tensorflow_chatter
from tutorial_dl.words import counted

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
Out = Annotated[Path, typer.Option(help="What to write: a JSON file, a folder, or an SVG file.")]
app = typer.Typer(no_args_is_help=True, add_completion=False, help="Make the site's pages.")


@app.command()
def examples(out: Out) -> None:
    """Run the examples of the reference, in about a minute, and keep what they print."""
    import examples

    with one_line():
        if examples.is_current(EXAMPLES, out):
            print("examples: up to date")
            return
        hide_tensorflow_chatter()
        try:
            blocks = examples.run(EXAMPLES)
        except examples.ExampleFailed as error:
            fail(str(error), 1)
        examples.write(blocks, EXAMPLES, out)
    print(f"{len(blocks)} examples in {out}")


@app.command()
def pages(
    notebooks: Annotated[Path, typer.Option(help="Folder of notebooks with outputs.")],
    examples: Annotated[Path, typer.Option(help="JSON file of the command examples.")],
    out: Out,
) -> None:
    """Write all pages as Markdown and notebooks, for Sphinx; what is in the folder is removed."""
    import examples as read
    import pages
    from tutorial_dl.cli import commands

    with one_line():
        hide_tensorflow_chatter()
        command = typer.main.get_command(commands.app)
        count = pages.write(ROOT, notebooks, read.load(examples), command, out)
    print(f"{count} pages in {out}")


@app.command()
def texts(site: Annotated[Path, typer.Argument(help="Folder of the built site.")]) -> None:
    """Write the text of all pages for the search where the site is opened from disk."""
    import texts

    with one_line():
        texts.write(site)


@app.command()
def check(site: Annotated[Path, typer.Argument(help="Folder of the built site.")]) -> None:
    """Check the built site: links, requests to other machines, and its size."""
    from checking import problems

    with one_line():
        found = problems(site)
    for line in found[:20]:
        print(line)
    if found:
        fail(f"{counted(len(found), 'problem')} in {site}", 1)
    print(f"{site}: all links lead somewhere, and nothing is loaded from elsewhere")


@app.command()
def picture(out: Out) -> None:
    """Draw the figure of README, docs/picture.svg."""
    from picture import draw

    with one_line():
        draw(out)
    print(out)


if __name__ == "__main__":
    app(prog_name="python docs/site")

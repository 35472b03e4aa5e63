"""The pages of the site, as Markdown for Sphinx: `python -m tutorial_dl site`.

public.py       the public names of both packages
docstrings.py   a docstring as Markdown; reference.py: a page per public name
values.py       what each public value is
examples.py     docs/examples: short programs that show how names are used, run once
cells.py        cells of notebooks: which names they use, which figures they made
commands.py     a page per command, with all its options
gallery.py      the course with a figure per notebook, and all figures
glossary.py     the glossary as a list of terms; sources.py: the text of all files
pages.py        puts all pages into one folder
checking.py     looks over the built site: its links, what it would load from elsewhere, its size
picture.py      the figure in README
"""

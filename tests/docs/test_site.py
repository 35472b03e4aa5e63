"""The site: every public name has an example, and every page is listed and names what is there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from commands_in_text import commands as lines_of
from commands_in_text import wrong
from page_programs import programs

import cells
import checking
import commands
import docstrings
import examples
import gallery
import glossary
import pages
import public
import reference
import sources
import texts
from names import NOTEBOOKS
from tutorial_dl.cli.commands import app
from values import VALUES

pytestmark = pytest.mark.xdist_group("keras")  # all public names: TensorFlow is loaded
ROOT = Path(__file__).parents[2]
BLOCKS = examples.read(ROOT / "docs/examples")
PAGES = sorted((ROOT / "docs").glob("*.md"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def names():
    return public.names()


def test_every_public_name_has_an_example(names):
    found = reference.examples_of(names, BLOCKS, cells.read(ROOT / "notebooks"))
    assert reference.without_example(names, *found) == []
    pages = [one.page.lower() for one in names]
    assert len(pages) == len(set(pages)) > 300  # also where case does not count


def test_examples_use_the_names_that_they_show(names):
    known = {path for one in names for path in one.paths}
    for block in BLOCKS:
        assert block.shows, (block.file, block.title)
        for name in block.shows:
            assert name in known, (block.file, block.title, name)
            short = name.rpartition(".")[2]
            assert re.search(rf"\b{short}\b", block.code), (block.file, block.title, name)


def test_pages_are_listed_and_link_to_what_is_there():
    assert pages.problems(ROOT) == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_commands_on_pages_are_understood(page):
    lines = lines_of(page.read_text(encoding="utf-8"))
    assert [f"{line}: {said}" for line in lines if (said := wrong(line, TARGETS))] == []


def test_what_pages_lack_is_named(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("```{toctree}\none\n```\n[a](one.md) [b](api/index.md)")
    (docs / "one.md").write_text("[a](three.md#x) [b](https://example.org)")
    (docs / "two.md").write_text("# Two")
    assert pages.problems(tmp_path) == [
        "docs/two.md is in no toctree of docs/index.md", "docs/one.md: there is no three.md",
    ]  # fmt: skip


def test_a_link_to_a_page_has_its_title(tmp_path):
    (tmp_path / "data.md").write_text("# Data\n\nText")
    made = pages.with_titles("[docs/data.md](data.md#a-b), [here](data.md), `x.md`", tmp_path)
    assert made == "[*Data*](data.md#a-b), [here](data.md), `x.md`"


@pytest.mark.parametrize("name", ["add_a_strategy", "add_a_replica"])
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for file, code in programs(ROOT / f"docs/{name}.md", tmp_path):
        if name == "add_a_strategy" and file == "train.py":
            continue  # a master needs a worker: test_pages_on_ranks.py
        exec(compile(code, file or name, "exec"), {"__name__": "__main__"})
    for module in ("my_rule", "logistic"):
        sys.modules.pop(module, None)


def test_every_command_has_a_page_with_all_its_options():
    found = dict(commands.pages(typer.main.get_command(app), ("python -m tutorial_dl",)))
    train = found["python -m tutorial_dl", "train"]
    assert ":::{option} --batch-size" in train and "least 1" in train
    whole = typer.main.get_command(app)
    for words, text in found.items():
        command = whole
        for word in words[1:]:
            command = command.commands[word]
        shown = {w for line in re.findall(r"\{option\} (.*)", text) for w in line.split(", ")}
        shown = {word.split(" ")[0] for word in shown}
        hidden = {o for p in command.params if getattr(p, "hidden", False) for o in p.opts}
        assert set(commands.options(command)) - hidden <= shown, words


def test_a_command_shows_lines_that_call_it():
    text = "```\n$ python -m tutorial_dl train -n 2 \\\n    --epochs 3   # three\n```\nmake run\n"
    text += "    python -m tutorial_dl train\nmpiexec -n 4 python -m tutorial_dl tune"
    lines = commands.lines_of(text)
    assert lines == [
        "python -m tutorial_dl train -n 2 --epochs 3", "mpiexec -n 4 python -m tutorial_dl tune",
    ]  # fmt: skip
    whole, links = typer.main.get_command(app), dict.fromkeys(lines, "[One](../one.md)")
    made = commands.pages(whole, ("python -m tutorial_dl",), links)
    made = {" ".join(words[1:]): page for words, page in made}
    assert f"For example, from [One](../one.md):\n\n```sh\n{lines[0]}\n```" in made["train"]
    assert "```sh" not in made["evaluate"]


@pytest.mark.parametrize(
    "docstring, made",
    [
        ("A *b* `c*d`.", "A \\*b\\* `c*d`."),
        ("A:\n\n    x  = 1\n\nB.", "A:\n\n```text\nx  = 1\n```\n\nB."),
        ("A:\n    x\nThen.", "A:\n\n```text\nx\n```\n\nThen."),
        (">>> 1\n1", "```pycon\n>>> 1\n1\n```"),
        ("a.py     one\nb.py     two", "```text\na.py     one\nb.py     two\n```"),
        ("- one\n  more\n- two", "- one\n  more\n- two"),
        ("A.\n\nArgs:\n    n: number\n        of <them>.\n    m, k: two.\n\nEnd.",
         "A.\n\n**Arguments**\n\n- `n`: number of \\<them>.\n- `m, k`: two.\n\nEnd."),
        ("A.\n\nReturns:\n    A number.", "A.\n\n**Returns**\n\nA number."),
        (None, ""),
    ],
)  # fmt: skip
def test_docstrings_become_markdown(docstring, made):
    assert docstrings.markdown(docstring) == made


def test_signatures():
    def function(
        a, b: "int | None" = None, *c, d=print, g=lambda: 0, e: float = 1.0, **f
    ) -> "str": ...
    def keyword(a, *, b): ...

    assert reference.signature(function) == (
        "(a, b: int | None = None, *c, d=print, g=..., e: float = 1.0, **f) -> str"
    )
    assert reference.signature(keyword, method=True) == "(*, b)"


def test_every_public_name_says_what_it_is(names):
    values = {one.path for one in names if one.kind == "data"}
    assert values == set(VALUES)
    assert [one.path for one in names if not reference._first(one)] == []
    (guard,) = [one for one in names if one.short == "GUARD"]
    assert "PosixPath('numba_kernels/launch/guard.py')" in reference._entry(guard)


def test_where_a_name_is_written(names):
    of = {one.short: reference._called(one) for one in names}
    for name, says in (("Adam", "class Adam("), ("join", "def join(")):  # `join` is decorated
        file, line = re.search(r"Source: `([\w/]+\.py):(\d+)`", of[name]).groups()
        lines = (ROOT / file).read_text().splitlines()
        assert any(each.startswith(says) for each in lines[int(line) - 1 :][:3]), (file, line)
    assert "Source" not in of["ALGORITHMS"]
    assert "from numba_kernels.optimizers import Adam\n" in of["Adam"]


def test_names_of_a_cell():
    known = {}
    code = "%load_ext x\nfrom tutorial_dl import plotting as p, data\nimport numpy as np"
    assert cells.used(code, known) == frozenset()
    found = cells.used("%%px\np.ring_strip(4).x; data.load('d'); np.ones(3)", known)
    names = ("data", "data.load", "plotting", "plotting.ring_strip")
    assert found == {f"tutorial_dl.{name}" for name in names}
    assert cells.used("%%writefile a.txt\nno python", known) == frozenset()


def test_figures_lead_to_their_cells(tmp_path):
    (whole,) = (one for one in cells.read(ROOT / "notebooks") if one.id == "strip")
    drawn = cells.Cell("allreduce", "a_b", "Rings [1]", "x", frozenset(), ((".png", b"p"),))
    made = gallery.gallery([whole, drawn])
    assert "## 5. Allreduce" in made and "(#cell-allreduce-a-b)\nRings \\[1\\]" in made
    code = {"cell_type": "code", "id": "a_b", "source": "x"}
    words = {"cell_type": "markdown", "id": "c", "source": "[g](../docs/gans.md)"}
    content = {"cells": [code, words]}
    labelled = cells.with_labels("allreduce", content, [drawn])["cells"]
    assert [cell["source"] for cell in labelled] == [
        "(cell-allreduce-a-b)=\n", "x", "[g](../gans.md)",
    ]  # fmt: skip
    labels = [cell.label for cell in cells.read(ROOT / "notebooks")]
    assert len(labels) == len(set(labels)) and len(NOTEBOOKS) > 20


def test_the_course_has_a_card_for_each_notebook_with_its_figure():
    found = cells.read(ROOT / "notebooks")
    ids = {(cell.notebook, cell.id) for cell in found}
    assert [name for part in gallery.PARTS.values() for name in part] == list(NOTEBOOKS)
    assert not set(gallery.FIGURES.items()) - ids and set(gallery.FIGURES) == set(NOTEBOOKS)
    drawn = cells.Cell("allreduce", "strip", "Rings", "x", frozenset(), ((".png", b"p"),))
    table = (ROOT / "notebooks/README.md").read_text()
    made = gallery.course([drawn], table, {"allreduce": "**Time**: 60 minutes."})
    cards = made.split(":::{container} card\n")
    assert len(cards) == len(NOTEBOOKS) + 1
    (card,) = [one for one in cards if "5. Allreduce" in one]
    assert "[![Allreduce](/pictures/cell-allreduce-strip-1.png)](05_allreduce.ipynb)" in card
    assert "Several algorithms with one result" in card and "cost. *60 minutes.*" in card
    assert "(notebooks/05_allreduce.ipynb)" in gallery.at_home([drawn])


def test_terms_of_the_glossary():
    whole = (ROOT / "docs/glossary.md").read_text()
    made = glossary.as_terms(whole)
    terms = re.findall(
        r"^(?! )(\S.*)$", made.partition("{glossary}\n")[2].partition("\n:::")[0], re.M
    )
    assert len(terms) == len(set(terms)) > 180
    assert {"EASGD", "staleness", "ring allreduce", "LARS", "LAMB"} <= set(terms)
    assert (
        "\nbandwidth\n    Bytes per second of a link or of memory.\n\n    *Defined in* notebook"
        in made
    )
    assert made.endswith(whole.partition("## Symbols")[2])


def test_text_that_was_written_over_is_not_shown():
    def stream(text, name="stdout"):
        return {"output_type": "stream", "name": name, "text": [text]}

    figure = {"output_type": "display_data", "data": {"image/png": ""}}
    nothing = {"output_type": "display_data", "data": {}}  # a status that has ended
    outputs = [stream("\r0 of 4"), stream("\r3 of 4\r       \r"), stream("4 engines\n"), nothing,
               figure, stream("a\rb\n", "stderr"), stream("\r  \r")]  # fmt: skip
    made = cells.as_shown(outputs)
    assert [one.get("text") for one in made] == ["4 engines\n", None, "b\n"]
    assert cells.as_shown([stream("ab  \nabc\rx\n")])[0]["text"] == "ab  \nxbc\n"


def test_files_as_pages(tmp_path):
    code = '"""A\nB <c>."""\n\n\ndef f(x):  # 1\n    return x & 1\n'
    made = sources.lines(code)
    assert re.findall(r"<i id=L(\d+)>", made) == list("1234567")
    plain = re.sub(r"<[^>]*>", "", made)
    assert plain == code.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert "<b class=d>f</b>" in made and '<i id=L2></i><b class=s>B &lt;c&gt;."""</b>' in made
    folder = tmp_path / "tutorial_dl/data"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text(code)
    sources.write(tmp_path, tmp_path / "out")
    page = (tmp_path / "out/tutorial_dl/data/a.py.html").read_text()
    assert 'href="../../../_static/source.css"' in page and page.count("<i id=") == 7


EXAMPLES = '''"""Examples."""

# %% One
# shows: Team
x = 2
print("x is", x)
x + 1

# %% Two
# shows: numba_kernels.team.Team,
# shows: compiled
from matplotlib.figure import Figure

Figure((1, 1))

# %% Three
# shows: Team
x.y
'''


def test_examples_run_in_order_and_keep_their_output(tmp_path):
    (tmp_path / "numba_kernels.py").write_text(EXAMPLES)
    one, two, three = examples.read(tmp_path)
    assert one.shows == ("numba_kernels.Team",) and one.line == 5 and three.code == "x.y\n"
    assert two.shows == ("numba_kernels.team.Team", "numba_kernels.compiled")
    with pytest.raises(examples.ExampleFailed, match=r"numba_kernels\.py, 'Three': AttributeError"):
        examples.run(tmp_path)
    (tmp_path / "numba_kernels.py").write_text(EXAMPLES.partition("# %% Three")[0])
    one, two = examples.run(tmp_path)
    assert one.output == "x is 2\n3" and two.picture and not two.output
    file = tmp_path / "made.json"
    assert not examples.is_current(tmp_path, file)
    examples.write([one, two], tmp_path, file)
    assert examples.is_current(tmp_path, file) and examples.load(file) == [one, two]


def test_what_ranks_print():
    assert examples.by_rank(["a\nb", "", ""]) == "a\nb"
    assert examples.by_rank(["a", "a", "b"]) == "ranks 0-1: a\nrank 2:    b"
    assert examples.by_rank(["b", "a", "b"]) == "rank 0, 2: b\nrank 1:    a"


def test_the_text_of_pages_for_a_search_from_disk(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "api").mkdir()
    (tmp_path / "api/a.html").write_text(
        '<nav>menu</nav><article role="main" id="m"><style>p {}</style><section id="one">\n'
        '<h1>One<a class="headerlink" href="#one">#</a></h1><p>a &lt; <b>b</b></p>'
        "<svg><text>1</text></svg></section></article><footer>end</footer>"
    )
    (tmp_path / "source.html").write_text("<pre>x = 1</pre>")  # a file of the packages
    texts.write(tmp_path)
    script = (tmp_path / "_static/texts.js").read_text()
    assert json.loads(script.removeprefix("var texts = ").removesuffix(";\n")) == {
        "api/a.html": '<article role="main" id="m"><section id="one"> Onea &lt; b'
    }


def test_links_and_loads_of_the_site_are_checked(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a id="x" href="b.html#y">b</a><a href="https://example.org">c</a><a href="no.html"></a>'
        '<link rel="stylesheet" href="s.css"><script src="//cdn.example.org/m.js"></script>'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#x"></a><a href="#y"></a>')
    (tmp_path / "s.css").write_text("@import 'https://fonts.example.org/f.css';")
    assert checking.problems(tmp_path) == [
        "a.html loads //cdn.example.org/m.js",
        "a.html links to b.html#y: that page has no such part",
        "a.html links to no.html, which is not there",
        "b.html links to #y: that page has no such part",
        "s.css loads https://fonts.example.org/f.css",
    ]
    (tmp_path / "s.css").write_bytes(b"x" * 61_000_000)
    assert checking.problems(tmp_path)[-1] == "the site has 61 MB; it should have at most 60"
    assert checking.problems(tmp_path / "none") == [f"there are no pages in {tmp_path / 'none'}"]


def test_the_command_fails_if_something_is_wrong(tmp_path):
    words = [sys.executable, ROOT / "docs/site", "check", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1 and "there are no pages in" in done.stdout
    assert done.stderr == f"error: 1 problem in {tmp_path}\n"

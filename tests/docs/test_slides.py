"""Decks name notebooks, cells, numbers and commands that are there; figures are put in."""

import base64
import io
import json
import pickle
import re
from pathlib import Path

import pytest
from commands_in_text import commands, wrong
from PIL import Image

import measure
import render as slides
from measure import NUMBERS
from names import NOTEBOOKS
from tutorial_dl import figure_style
from tutorial_dl.figure_style import KEPT_FIGURE
from tutorial_dl.layout import Layout

ROOT = Path(__file__).parents[2]
NAMES = {*NUMBERS, "date", "machine"}
DECKS_AT = ROOT / "slides"
DECKS = slides.decks(DECKS_AT)
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_names_of_notebooks():
    assert NOTEBOOKS["the_forgers_game"] == (20, "The forger's game", "20_the_forgers_game")
    assert [about.number for about in NOTEBOOKS.values()] == list(range(1, len(NOTEBOOKS) + 1))


@pytest.mark.parametrize("deck", DECKS, ids=lambda deck: deck.name)
def test_a_deck_names_only_what_is_there(deck):
    assert slides.problems(deck, ROOT / "notebooks", NAMES) == []
    lines = commands("\n".join(deck.slides))
    assert [f"{line}: {said}" for line in lines if (said := wrong(line, TARGETS))] == []


def test_minutes_of_slides_are_those_of_the_timetable():
    def minutes(slide):
        (said,) = re.findall(r"<!--\s*(\d+) min\. \S", slide)
        return int(said)

    of_decks = [(deck.name[0], sum(map(minutes, deck.slides))) for deck in DECKS]
    table = re.findall(
        r"^\| (\d+):(\d+) \| (\d+) \| (\d) ", (DECKS_AT / "README.md").read_text(), re.M
    )
    assert [(number, int(took)) for _, _, took, number in table] == of_decks
    begins = [60 * int(hour) + int(minute) for hour, minute, _, _ in table]
    ends = [begin + int(row[2]) for begin, row in zip(begins, table, strict=True)]
    assert all(0 <= begin - end <= 65 for end, begin in zip(ends, begins[1:], strict=False))
    assert ends[-1] <= 17 * 60 and begins[0] == 9 * 60


@pytest.mark.parametrize(
    "line, said",
    [
        ("make slides", ""),
        ("make slidez", "make has no target slidez"),
        ("python -m tutorial_dl train -n 4 --strategy downpour", ""),
        ("python -m tutorial_dl trian -n 4", "No such command 'trian'."),
        ("python -m tutorial_dl train --modell mlp", "No such option: --modell"),
        ("python -m tutorial_dl notebooks run --out build allreduce", ""),
        ("ls", ""),
    ],
)
def test_commands_are_parsed(line, said):
    assert wrong(line, TARGETS).startswith(said) and bool(wrong(line, TARGETS)) == bool(said)


CODE = ["%%px\n", "x = 1\n", "y = 2"]
HEAD = "---\ntitle: T\nnotebooks: allreduce\n---\n"


def deck(text, tmp_path):
    file = tmp_path / "1_deck.md"
    file.write_text(HEAD + text)
    return slides.Deck.read(file)


@pytest.mark.parametrize(
    "text, said",
    [
        ("# A", "1_deck, slide 1: it has no notes for the speaker"),
        ("# A\n<!-- _class: lead -->", "1_deck, slide 1: it has no notes for the speaker"),
        ("![](allreduce:stripp)\n<!-- x -->", "slide 1: notebook allreduce has no cell 'stripp'"),
        ("# A\n<!-- x -->\n---\n![](alreduce:strip)\n<!-- x -->",
         "slide 2: there is no notebook 'alreduce'"),
        ("```output allreduce:x\n```\n<!-- x -->", "notebook allreduce has no cell 'x'"),
        ("[[alreduce]]\n<!-- x -->", "there is no notebook 'alreduce'"),
        ("{{ speed }}\n<!-- x -->", "there is no number 'speed'"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_named(text, said, tmp_path):
    (found,) = slides.problems(deck(text, tmp_path), ROOT / "notebooks", NAMES)
    assert said in found


def test_a_deck_without_its_first_lines_is_refused(tmp_path):
    (tmp_path / "1_deck.md").write_text("# A")
    with pytest.raises(slides.DeckError, match="must begin with ---, title"):
        slides.Deck.read(tmp_path / "1_deck.md")


def shown(thing) -> dict:
    """What a notebook keeps of a value."""
    made = thing._repr_mimebundle_()
    return {"output_type": "execute_result", "data": {"text/plain": "<...>"} | made}


@pytest.fixture
def film(monkeypatch):
    """A figure and a film as notebooks keep them for slides."""
    monkeypatch.setenv(figure_style.KEEP, "1")
    with figure_style.axes() as ax:
        ax.plot([0, 1])

    def frames():
        for _ in range(2):
            ax.plot([1, 0])
            yield

    kept = shown(ax.figure)
    return kept, shown(figure_style.Film(ax.figure, frames()))


def image(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url)))


def test_pictures_outputs_names_and_numbers_are_put_in(tmp_path, film):
    printed = {"output_type": "stream", "name": "stdout", "text": ["one\n", "two\n", "three\n"]}
    cells = [{"id": "a", "cell_type": "code", "source": CODE, "outputs": [printed, *film]}]
    (tmp_path / "05_allreduce.ipynb").write_text(json.dumps({"cells": cells}))
    text = (
        "![h:300](allreduce:a)\n![w:600 h:400](allreduce:a)\n![h:260](allreduce:a#2)\n"
        "```output allreduce:a 2-3\n```\n"
        "```source allreduce:a\n```\n[[allreduce]] {{ speed }} [[allreduce]]\n<!-- note -->"
    )
    made = slides.render(deck(text, tmp_path), tmp_path, {"speed": "2.5"})
    pictures = re.findall(r"!\[w:(\d+) h:(\d+)\]\(data:image/png;base64,([^)]+)\)", made)
    assert [one[:2] for one in pictures] == [("1152", "300"), ("600", "400")]
    assert [image(one[2]).size for one in pictures] == [(2304, 600), (1200, 800)]
    moves, still = re.findall(
        r'<img class="(\w+)" width="576" height="260" src="data:image/(\w+);base64,([^"]+)">', made
    )
    assert moves[:2] == ("film", "gif") and still[:2] == ("still", "png")
    film, last = image(moves[2]), image(still[2])
    assert film.size == last.size == figure_style.SLIDE_FILM and film.n_frames == 2
    film.seek(1)
    assert last.tobytes() == film.convert("RGB").tobytes()
    assert "```text\ntwo\nthree\n```\n```python\nx = 1\ny = 2\n```" in made
    assert "\nNotebook 5, *Allreduce* 2.5 notebook 5, *Allreduce*" in made
    for missing in ("![h:9](allreduce:a#3)", "```output allreduce:a 8-9\n```", "![](allreduce:a)"):
        with pytest.raises(slides.DeckError, match=r"has 2 figures|no such output|have a height"):
            slides.render(deck(f"{missing}\n<!-- x -->", tmp_path), tmp_path, {})


def test_each_form_of_a_film_has_a_layout_of_its_own(monkeypatch):
    def filmed():
        with figure_style.panels(1, 2, width=8) as (figure, (panels,)):
            for ax in panels:
                ax.set(xlabel="x", ylabel="a label that is rather long")
                ax.text(0.5, 0.5, "small", size=6)
            return figure, panels, figure_style.Film(figure, iter([None, None]))

    monkeypatch.delenv(figure_style.KEEP, raising=False)
    alone = filmed()[2].gif
    monkeypatch.setenv(figure_style.KEEP, "1")
    draw, sizes = figure_style.FigureCanvasAgg.draw, []

    def noted(canvas):
        sizes.append((canvas.figure.dpi, canvas.figure.axes[0].texts[0].get_fontsize()))
        draw(canvas)

    monkeypatch.setattr(figure_style.FigureCanvasAgg, "draw", noted)
    figure, panels, film = filmed()
    assert film.gif == alone  # what JupyterLab shows does not depend on the slides
    # Once for the layout, and for each of two frames
    assert sizes == 3 * [(100, 6), (figure_style.SLIDE_DPI, figure_style.SLIDE_TYPE)]
    assert Image.open(io.BytesIO(film.gif)).size == (1600, 400)
    # The figure is left in the form for slides.
    assert tuple(figure.bbox.size) == figure_style.SLIDE_FILM
    figure.draw_without_rendering()
    left, right = (ax.get_tightbbox() for ax in panels)
    assert figure.bbox.contains(*left.min) and figure.bbox.contains(*right.max)
    assert left.x1 <= right.x0


def test_a_layout_is_kept_as_its_figure(monkeypatch):
    monkeypatch.setenv(figure_style.KEEP, "1")
    kept = pickle.loads(base64.b64decode(Layout(workers=2)._repr_mimebundle_()[KEPT_FIGURE]))
    assert isinstance(kept, figure_style.Figure) and kept.axes[0].get_title(loc="left")


def test_without_the_variable_figures_and_films_have_one_form(monkeypatch):
    monkeypatch.delenv(figure_style.KEEP, raising=False)
    with figure_style.axes() as ax:
        ax.plot([0, 1])
    made = ax.figure._repr_mimebundle_()
    assert made.keys() == {"image/png", "text/html"} and made["image/png"] in made["text/html"]
    assert 'data-jp-theme-light="false"' in made["text/html"]  # it is dark in a dark theme
    film = figure_style.Film(ax.figure, iter([None]))
    assert film._repr_mimebundle_().keys() == {"text/html", "text/plain"}


# Numbers that commands write -------------------------------------------------------------------

PROGRAM = """
import json, sys
if sys.argv[2] == "fails":
    sys.exit("no such luck")
rows = [{{"what": what, "bytes": size, "ratio": ratio}} for what, size, ratio in {rows}]
result = {{"rows": rows, "seconds": 0.25, "val_accuracy": 0.98765}}
json.dump(result, open(sys.argv[1], "w"))
"""
ROWS = [
    (measure.CYCLE, 2**20, 6.04), (measure.CYCLE, 2**20, 7.06), (measure.CYCLE, 2**26, 5.9),
    ("allreduce, repeated call", 2**20, 9.0),
]  # fmt: skip


@pytest.fixture
def program(tmp_path, monkeypatch):
    (tmp_path / "stand_in.py").write_text(PROGRAM.format(rows=ROWS))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda how: monkeypatch.setattr(
        measure, "COMMANDS", dict.fromkeys(measure.COMMANDS, f"stand_in FILE {how}")
    )


def test_numbers_have_their_command_and_what_they_are(program):
    program("works")
    found = measure.measure()
    digits = ("digits_32", "digits_256", "digits_1024")
    assert found["numbers"] == {
        "allreduce_1mib": "7.1", "allreduce_64mib": "5.9",
        **{f"{name}_seconds": "0.25" for name in digits},
        **{f"{name}_accuracy": "98.8%" for name in digits},
    }  # fmt: skip
    assert found["commands"]["allreduce_1mib"] == "python -m stand_in FILE works"
    assert found["about"].keys() == found["numbers"].keys() and found["machine"]
    assert json.loads(json.dumps(found)) == found


def test_a_command_that_fails_is_an_error_with_its_last_line(program):
    program("fails")
    with pytest.raises(RuntimeError, match="python -m stand_in FILE fails: no such luck"):
        measure.measure()

"""Pages of pictures: the course with a figure per notebook, and the gallery of all figures."""

from __future__ import annotations

import re
from collections.abc import Mapping

import reference
from cells import Cell
from docstrings import escaped
from names import NOTEBOOKS

PARTS = {
    "Learning is fitting": ("curve_fitting", "gradient_descent", "neural_network"),
    "Ranks and messages": ("ranks_and_messages", "allreduce"),
    "The synchronous step": (
        "synchronous_training", "kernels", "when_a_rank_fails", "large_batches",
        "batch_norm_and_friends",
    ),
    "Asynchrony": (
        "parameter_server", "staleness", "elastic_averaging", "gradient_energy_matching",
        "hierarchies",
    ),
    "Models that do not fit": (
        "splitting_a_layer", "pipelines", "sharding_and_long_sequences", "many_dimensions",
    ),
    "GANs": ("the_forgers_game", "distributed_gans", "calorimeter_gan"),
    "Search": (
        "what_descent_cannot_learn", "evolution_and_bayes", "cross_validation", "all_together",
    ),
    "Jobs, data and memory": ("batch_job", "data_at_scale", "memory"),
    "Rules of today": ("matrices_as_matrices", "seldom_talking"),
    "More about earlier parts": (
        "allreduce_two", "noise_and_lars", "friends_of_batch_norm",
    ),
    "Your own": ("your_own_model",),
}  # fmt: skip
# The cell whose figure stands for the notebook.
FIGURES = {
    "curve_fitting": "three", "gradient_descent": "film", "neural_network": "hinge-figure",
    "ranks_and_messages": "star-figure", "allreduce": "strip",
    "synchronous_training": "trainer-check", "kernels": "step-count",
    "when_a_rank_fails": "curve", "large_batches": "rules-figure",
    "batch_norm_and_friends": "sizes-measure", "parameter_server": "turns", "staleness": "map",
    "elastic_averaging": "rest", "gradient_energy_matching": "match", "hierarchies": "who",
    "splitting_a_layer": "paper-figure", "pipelines": "zero",
    "sharding_and_long_sequences": "causal-figure", "many_dimensions": "long-map",
    "the_forgers_game": "penalty", "distributed_gans": "compare",
    "calorimeter_gan": "pictures", "what_descent_cannot_learn": "grid",
    "evolution_and_bayes": "regret", "cross_validation": "winners", "all_together": "search",
    "matrices_as_matrices": "circles", "seldom_talking": "rests",
    "batch_job": "strong", "data_at_scale": "read-measure", "memory": "recompute",
    "allreduce_two": "ladder-figure", "noise_and_lars": "noise-measure",
    "friends_of_batch_norm": "moving", "your_own_model": "own-check",
}  # fmt: skip
AT_HOME = ("allreduce", "staleness", "pipelines", "sharding_and_long_sequences", "hierarchies",
           "calorimeter_gan")  # fmt: skip
ROW = re.compile(r"^\| \[\d+ [^]]+\]\((\w+)\.ipynb\) \| (.+) \|$", re.MULTILINE)
TIME = re.compile(r"\*\*Time\*\*: (\d+ minutes)")


def course(found: list[Cell], table: str, notebooks: Mapping[str, str]) -> str:
    """The page of the course: notebooks in parts, each with a figure and what one learns there.

    Args:
        found: All cells, with pictures.
        table: The text of notebooks/README.md, which says what one learns in each notebook.
        notebooks: The Markdown of each notebook, by its name.

    Raises:
        KeyError: The table lacks a notebook.
    """
    learned = dict(ROW.findall(table))
    words = (
        "Each notebook as it ran, with its output. `make lab` opens a copy, to run and to change. "
        "Each has one idea, a prediction before every measurement, and exercises with a check."
    )
    pieces = ["# The course", words]
    for part, names in PARTS.items():
        cards = []
        for name in names:
            about, figure = NOTEBOOKS[name], figure_of(name, found)
            time = TIME.search(notebooks.get(name, ""))
            text = f"[{about.number}. {about.title}]({about.stem}.ipynb)\n\n"
            said = learned[about.stem]
            text += f"{said[0].upper()}{said[1:]}.{f' *{time[1]}.*' if time else ''}"
            if figure:
                text = f"[![{about.title}]({figure})]({about.stem}.ipynb)\n\n{text}"
            cards.append(f":::{{container}} card\n{text}\n:::")
        pieces += [f"## {part}", "::::{container} cards\n" + "\n\n".join(cards) + "\n::::"]
    toctree = "\n".join(about.stem for about in NOTEBOOKS.values())
    pieces.append(f"```{{toctree}}\n:hidden:\n\n{toctree}\n```")
    return "\n\n".join(pieces) + "\n"


def figure_of(name: str, found: list[Cell]) -> str:
    """The path of the picture that stands for a notebook; "" if it has drawn none."""
    drawn = [cell for cell in found if cell.notebook == name and cell.pictures]
    chosen = [cell for cell in drawn if cell.id == FIGURES[name]] or drawn
    return reference.picture_of_cell(chosen[0]) if chosen else ""


def at_home(found: list[Cell]) -> str:
    """Some figures for the first page; each leads to its notebook."""
    shown = []
    for name in AT_HOME:
        about, figure = NOTEBOOKS[name], figure_of(name, found)
        link = f"notebooks/{about.stem}.ipynb"
        if figure:
            shown.append(
                f":::{{container}} card\n[![{about.title}]({figure})]({link})\n\n"
                f"[{about.number}. {about.title}]({link})\n:::"
            )
    return "::::{container} cards\n" + "\n\n".join(shown) + "\n::::" if shown else ""


def gallery(found: list[Cell]) -> str:
    """The figures of all notebooks, each with a link to the cell that draws it."""
    parts = ["# Gallery", "The figures that the notebooks draw. A figure leads to its cell."]
    for name, about in NOTEBOOKS.items():
        shown = [
            f"[![{cell.heading}]({reference.picture_of_cell(cell, number)})](#{cell.label})\n"
            f"{escaped(cell.heading)}"
            for cell in found
            if cell.notebook == name
            for number in range(len(cell.pictures))
        ]
        if shown:
            title = f"## {about.number}. {about.title}"
            parts += [title, "::::{container} gallery\n" + "\n\n".join(shown) + "\n::::"]
    return "\n\n".join(parts) + "\n"

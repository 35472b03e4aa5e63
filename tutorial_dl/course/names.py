"""The notebooks by name. Slides and pages reach a notebook by its name; here it gets its number."""

from __future__ import annotations

from typing import NamedTuple


class Notebook(NamedTuple):
    """A notebook of the course: `number` of its place, `title`, `stem` of its file's name."""

    number: int
    title: str
    stem: str


# name -> number, title; the file is notebooks/<number>_<name>.ipynb
_PLACES = {
    "curve_fitting": (1, "Curve fitting"),
    "gradient_descent": (2, "Gradient descent"),
    "neural_network": (3, "A neural network"),
    "ranks_and_messages": (4, "Ranks and messages"),
    "allreduce": (5, "Allreduce"),
    "synchronous_training": (6, "Synchronous training"),
    "kernels": (7, "Kernels"),
    "when_a_rank_fails": (8, "When a rank fails"),
    "large_batches": (9, "Large batches"),
    "batch_norm_and_friends": (10, "Batch normalisation and its friends"),
    "parameter_server": (11, "The parameter server"),
    "staleness": (12, "Staleness"),
    "elastic_averaging": (13, "Elastic averaging"),
    "gradient_energy_matching": (14, "Gradient energy matching"),
    "hierarchies": (15, "Hierarchies"),
    "splitting_a_layer": (16, "Splitting a layer"),
    "pipelines": (17, "Pipelines"),
    "sharding_and_long_sequences": (18, "Sharding and long sequences"),
    "the_forgers_game": (20, "The forger's game"),
    "distributed_gans": (21, "Distributed GANs"),
    "calorimeter_gan": (22, "A GAN of particle showers"),
    "what_descent_cannot_learn": (23, "What descent cannot learn"),
    "evolution_and_bayes": (24, "Evolution and Bayes"),
    "cross_validation": (25, "Cross-validation"),
    "all_together": (26, "All together"),
}
NOTEBOOKS = {
    name: Notebook(number, title, f"{number:02d}_{name}")
    for name, (number, title) in _PLACES.items()
}

"""README's figure: a cell runs on four ranks, which exchange gradients and train one network.

The curves are a real training: the rules train on handwritten digits, driven in one process
(strategies/scripted.py) in a random order of workers, so the figure is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from numba_kernels.optimizers import SGD
from tutorial_dl import data
from tutorial_dl import figure_style as style
from tutorial_dl.data import Batches
from tutorial_dl.replica import SoftmaxReplica
from tutorial_dl.strategies import Downpour, ElasticAveraging, Scripted

CELL = (
    "%%px",
    "team = Team()",
    "trainer = Trainer(",
    "    build(), load(),",
    '    "synchronous",',
    "    team=team)",
    "trainer.fit(epochs=10)",
)
BATCH, RATE, STEPS, WORKERS = 16, 0.1, 120, 3  # per rank; of one rank; per rank; with a master
EVERY = 4  # steps between two points of a curve
INK = "#333333"


def draw(file: Path) -> None:
    """Write the figure, as SVG. The same code writes the same file."""
    with matplotlib.rc_context({"svg.hashsalt": "tutorial-dl", "font.size": 10}):
        figure = Figure(figsize=(11, 3.5), facecolor="white")
        cell, ring, curves = figure.subplots(1, 3, width_ratios=(1, 1.05, 1.2))
        draw_cell(cell)
        draw_ring(ring)
        draw_curves(curves)
        figure.subplots_adjust(left=0.01, right=0.985, top=0.86, bottom=0.15, wspace=0.22)
        for left in (0.285, 0.57):
            arrow = FancyArrowPatch(
                (left, 0.5), (left + 0.03, 0.5), transform=figure.transFigure, color=INK,
                arrowstyle="simple", mutation_scale=16,
            )  # fmt: skip
            figure.add_artist(arrow)
        figure.savefig(file, format="svg", metadata={"Date": None})


def draw_cell(ax) -> None:
    """A cell of a notebook, with what each rank runs."""
    title(ax, "a cell runs on four ranks")
    ax.set(xlim=(0, 10), ylim=(0, 10))
    box = FancyBboxPatch(
        (0.6, 1.6), 8.6, 6.6, boxstyle="round,pad=0.2", facecolor="#F6F6F6", edgecolor="#BBBBBB"
    )
    ax.add_patch(box)
    ax.add_patch(Rectangle((0.35, 1.4), 0.22, 7.0, color=style.BLUE))
    for number, line in enumerate(CELL):
        colour = style.PINK if line.startswith("%%") else INK
        place = 7.6 - 0.92 * number
        ax.text(1.0, place, line, family="monospace", fontsize=10, va="center", color=colour)
    ax.axis("off")


def draw_ring(ax) -> None:
    """Four ranks, each with a vector in four slices, one of which is on its way to the next."""
    title(ax, "they exchange gradients")
    ax.set(xlim=(-1.75, 1.75), ylim=(-1.62, 1.5), aspect="equal")
    colours = (style.BLUE, style.ORANGE, style.GREEN, style.PINK)
    places = [(-1, 0.85), (1, 0.85), (1, -0.85), (-1, -0.85)]
    for rank, (x, y) in enumerate(places):
        ax.text(x, y + 0.34, f"rank {rank}", ha="center", va="center", color=INK)
        for i, colour in enumerate(colours):
            full = i == rank
            ax.add_patch(
                Rectangle(
                    (x - 0.48 + 0.24 * i, y - 0.2),
                    0.24,
                    0.36,
                    facecolor=colour,
                    alpha=1.0 if full else 0.25,
                    edgecolor="white",
                )
            )
    ends = [((-0.42, 0.85), (0.42, 0.85)), ((1, 0.52), (1, -0.32)),
            ((0.42, -0.85), (-0.42, -0.85)), ((-1, -0.32), (-1, 0.52))]  # fmt: skip
    for colour, (begin, end) in zip(colours, ends, strict=True):
        ax.add_patch(
            FancyArrowPatch(begin, end, arrowstyle="-|>", mutation_scale=18, color=colour, lw=2.5)
        )
    ax.text(0, 0.02, "mean of\nall gradients", ha="center", va="center", color=INK)
    ax.axis("off")


def draw_curves(ax) -> None:
    """The validation loss by the samples that each rank has computed, one line per strategy."""
    title(ax, "and train one network")
    looks = zip(trained().items(), style.COLOURS, style.LINES, strict=False)
    for (name, losses), colour, line in looks:
        samples = BATCH * EVERY * np.arange(len(losses))
        ax.plot(samples, losses, color=colour, linestyle=line, label=name, lw=2)
    ax.set(xlabel="samples that each rank has computed", yscale="log")
    ax.set_ylabel("validation loss", labelpad=1)
    ax.set_yticks([0.3, 0.5, 1, 2], ["0.3", "0.5", "1", "2"])
    ax.minorticks_off()
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.legend(frameon=False, loc="lower left")


def title(ax, text: str) -> None:
    ax.set_title(text, fontsize=12, loc="center", color=INK, pad=8)


def trained() -> dict[str, list[float]]:
    """Validation losses by strategy, on one rank and on four, in steps of `EVERY` per rank."""
    order = np.random.default_rng(0).permuted(np.tile(np.arange(WORKERS), (STEPS, 1)), axis=1)
    rules = {
        "Downpour, 4 ranks": Downpour(),
        "elastic averaging, 4 ranks": ElasticAveraging(momentum=0.5),
    }
    found = {"1 rank": in_step(1), "synchronous, 4 ranks": in_step(4)}
    for name, rule in rules.items():
        gradients = [gradient_of(worker, WORKERS, BATCH) for worker in range(WORKERS)]
        start = SoftmaxReplica(64, 10, seed=1).parameters
        run = Scripted(rule, gradients, start, WORKERS, SGD(RATE))
        losses = [loss_of(run.center)]
        for step, workers in enumerate(order, 1):
            for worker in workers:
                run.turn(worker)
            if step % EVERY == 0:
                losses.append(loss_of(run.center))
        found[name] = losses
    return found


def in_step(ranks: int) -> list[float]:
    """Plain SGD on the batches of all ranks; its rate follows the linear rule."""
    gradient, rule = gradient_of(0, 1, ranks * BATCH), SGD(ranks * RATE)
    weights = SoftmaxReplica(64, 10, seed=1).parameters.copy()
    state, losses = rule.init(weights.size), [loss_of(weights)]
    for step in range(1, STEPS + 1):
        rule.update(weights, gradient(weights).copy(), state)
        if step % EVERY == 0:
            losses.append(loss_of(weights))
    return losses


def gradient_of(worker: int, workers: int, batch: int) -> Callable[[np.ndarray], np.ndarray]:
    """A function from weights to the gradient of the worker's next batch."""
    replica = SoftmaxReplica(64, 10)
    share = data.shard(data.digits().train, worker, workers)
    batches = (one for epoch in range(1000) for one in Batches(share, batch, seed=2).epoch(epoch))

    def gradient(weights: np.ndarray) -> np.ndarray:
        replica.parameters[:] = weights
        replica.compute_gradient(next(batches))
        return replica.gradient

    return gradient


def loss_of(weights: np.ndarray) -> float:
    replica, held_out = SoftmaxReplica(64, 10), data.digits().validation
    replica.parameters[:] = weights
    return replica.evaluate([held_out.take(slice(0, len(held_out)))])["loss"]

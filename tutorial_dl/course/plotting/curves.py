"""Curve fitting and gradient descent: curves through samples, errors, paths on the loss surface."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from tutorial_dl import figure_style as style
from tutorial_dl.course.foundations import Descent, LeastSquares
from tutorial_dl.figure_style import Numbers

Function = Callable[[np.ndarray], np.ndarray]


@style.one_panel("Curves fitted to the samples", "x", "y", legend="beside")
def fits(ax, x: np.ndarray, y: np.ndarray, curves: Mapping[str, Function], truth: Function):
    """Samples x, y, (s,), curves fitted to them, name -> function of x, and the noiseless truth."""
    grid = np.linspace(np.min(x), np.max(x), 500)
    ax.plot(grid, truth(grid), color=style.GREY, linewidth=5, alpha=0.35, label="truth")
    for number, (label, curve) in enumerate(curves.items()):
        ax.plot(grid, curve(grid), label=label, **style.line(number))
    ax.plot(x, y, "o", color=style.BLACK, label="samples", zorder=3)

    # A curve that follows the noise swings far out: keep the samples in view instead.
    low, high = np.min(y), np.max(y)
    ax.set_ylim(low - 0.25 * (high - low), high + 0.25 * (high - low))


@style.one_panel(
    "More parameters fit the samples better, other samples only at first",
    "parameters k", "mean squared error (unit of y squared)", yscale="log", legend="beside",
)  # fmt: skip
def fit_errors(
    ax, sizes: Sequence[int], training: Numbers, held_out: Numbers, noise: float
):  # fmt: skip
    """Measured errors (n,), by the parameters of a fit.

    `noise` is the standard deviation of a sample: its square is the least held-out error there is.
    """
    looks = (("training", style.BLUE, "o"), ("held out", style.RED, "s"))
    for (label, colour, marker), measured in zip(looks, (training, held_out), strict=True):
        ax.plot(sizes, measured, marker, linestyle="-", color=colour, label=label)
    ax.axhline(noise**2, color=style.GREY, linestyle=":", label="noise variance")


def descent_film(
    loss: LeastSquares,
    descents: Mapping[str, Descent],
    frames: int = 30,
    by: str = "steps",
    title: str = "Descent",
) -> style.Film:
    """An animation of the paths of descents on the contours of their loss, with the loss beside.

    Args:
        loss: of k = 2 parameters.
        descents: legend entry -> its run; all are shown on the same clock.
        frames: how many; the clock runs from 0 to the end of the shortest descent.
        by: the clock: "steps", or "samples" whose gradients were taken.
    """
    per_step = {label: _clock(run, by) for label, run in descents.items()}
    end = min(run.steps * per_step[label] for label, run in descents.items())
    values = {label: _losses(loss, run) for label, run in descents.items()}
    size = {"width": 4.6, "height": 4.0, "width_ratios": [1.2, 1], "title": title}
    with style.panels(1, 2, **size) as (figure, ((surface, beside),)):
        shown = [run.path[: int(end / per_step[label]) + 1] for label, run in descents.items()]
        _surface(loss, shown, surface)
        surface.plot(*loss.minimiser(), "*", color=style.BLACK, markersize=13)
        lines = []
        for label, colour, marker in zip(descents, style.COLOURS, style.MARKERS, strict=False):
            many = end / per_step[label] > 100
            (path,) = surface.plot([], [], color=colour, linewidth=0.8 if many else 1.4)
            (head,) = surface.plot([], [], color=colour, marker=marker, markersize=7)
            (curve,) = beside.plot([], [], color=colour, marker=marker, markevery=[-1], label=label)
            lines.append((path, head, curve))
        beside.set_xlim(0, end)
        least, most = loss(loss.minimiser()), max(v[0] for v in values.values())
        beside.set(yscale="log", ylim=(0.8 * least, 1.5 * most) if least > 0 else None)
        beside.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        beside.yaxis.set_major_formatter("{x:g}")
        beside.yaxis.set_minor_formatter(NullFormatter())
        beside.set(xlabel=_CLOCKS[by], ylabel="loss (mean squared error)")
        beside.legend(loc="upper right")

        def play() -> Iterator[None]:
            for now in np.linspace(0, end, frames):
                for (label, run), (path, head, curve) in zip(descents.items(), lines, strict=True):
                    step = int(now / per_step[label] + 1e-9)
                    path.set_data(*run.path[: step + 1].T)
                    head.set_data(*run.path[step : step + 1].T)
                    curve.set_data(np.arange(step + 1) * per_step[label], values[label][: step + 1])
                yield

        return style.Film(figure, play())


@style.one_panel(
    "Small batches learn early, and stop early", ylabel="L - L* (unit of y squared)",
    yscale="log", legend="beside",
)  # fmt: skip
def loss_curves(
    ax, loss: LeastSquares, descents: Mapping[str, Descent], by: str = "samples"
):  # fmt: skip
    """How far each descent is above the least loss, as the mean over each epoch's steps.

    Args:
        loss: the loss of all descents.
        descents: legend entry -> its run.
        by: the horizontal axis: "steps", or "samples" whose gradients were taken.
    """
    minimum = loss(loss.minimiser())
    for number, (label, run) in enumerate(descents.items()):
        above = (_losses(loss, run) - minimum)[1:].reshape(run.epochs, -1).mean(axis=1)
        clock = _clock(run, by) * run.steps_per_epoch * np.arange(1, run.epochs + 1)
        # Below this the loss is only its own rounding error.
        seen = above > 10 * np.finfo(float).eps * minimum
        every = max(1, run.epochs // 12)
        look = style.marks(number) | {"linestyle": "-", "linewidth": 1.2, "markevery": every}
        ax.plot(clock[seen], above[seen], label=label, **look)
    ax.set_xlim(left=0)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set_xlabel(_CLOCKS[by])


@style.one_panel(
    "Above 2 / $λ_{max}$ the error grows", "learning rate η", "error factor per step",
    legend="beside",
)  # fmt: skip
def error_factors(ax, rates: Numbers, measured: Numbers, predicted: Function, bound: float):
    """The factor by which a step multiplies the error: measured at rates (n,), and by theory.

    `bound` is 2 / lambda_max.
    """
    grid = np.linspace(0, max(np.max(rates), bound) * 1.05, 400)
    ax.axhspan(1, 10, color=style.RED, alpha=0.12, linewidth=0)
    ax.text(0.01 * grid[-1], 1.02, "the error grows", color=style.RED, va="bottom")
    ax.plot(grid, [predicted(rate) for rate in grid], color=style.PREDICTED, label="predicted")
    ax.plot(rates, measured, "o", color=style.MEASURED, label="measured")
    ax.axvline(bound, color=style.GREY, linestyle="--", label="2 / $λ_{max}$")
    ax.set_xlim(0, grid[-1])
    ax.set_ylim(0, max(1.2, 1.1 * np.max(measured)))


_CLOCKS = {"steps": "steps", "samples": "samples whose gradients were taken"}


def _clock(run: Descent, by: str) -> float:
    """By how much one step of `run` advances the clock."""
    if by not in _CLOCKS:
        raise ValueError(f'by must be "steps" or "samples", got {by!r}')
    return 1.0 if by == "steps" else run.samples_per_epoch / run.steps_per_epoch


def _losses(loss: LeastSquares, run: Descent) -> np.ndarray:
    """The full loss before the first step and after every step, shape (steps + 1,)."""
    away = run.path - loss.minimiser()  # (steps + 1, k)
    above = np.einsum("ti,ij,tj->t", away, loss.hessian(), away) / 2
    return loss(loss.minimiser()) + above


def _surface(loss: LeastSquares, paths: list[np.ndarray], ax: Axes) -> None:
    """Draw contours of `loss` over an area with all `paths`, each of shape (steps + 1, 2)."""
    if loss.parameters != 2:
        raise ValueError(f"loss must have 2 parameters to have contours, got {loss.parameters}")
    points = np.concatenate([*paths, loss.minimiser()[None]])  # (points, 2)
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.15 * (high - low).max()
    first = np.linspace(low[0] - margin, high[0] + margin, 160)
    second = np.linspace(low[1] - margin, high[1] + margin, 160)

    W = np.stack(np.meshgrid(first, second), axis=-1)  # (160, 160, 2)
    away = W - loss.minimiser()
    above = np.einsum("...i,ij,...j", away, loss.hessian(), away) / 2  # L - L*, (160, 160)
    # Levels grow as squares: the contours of a bowl are then equally spaced.
    levels = above.max() * np.linspace(0, 1, 13) ** 2
    ax.contourf(first, second, above, levels, cmap="Greys", alpha=0.5)
    ax.contour(first, second, above, levels, colors=style.GREY, linewidths=0.5)
    ax.grid(False)
    ax.set_aspect("equal")
    ax.set(xlabel="w₀", ylabel="w₁")

"""Notebook 04: its solution for the size, messages that are given up, and its figures."""

from __future__ import annotations

import numpy as np
import pytest
from notebook_cells import Notebook

NOTEBOOK = Notebook("04")
SECONDS = 60


def run_here(code: str) -> None:
    """Run `code` as a learner's cell would; every rank calls this."""
    from tutorial_dl.course.exercises import check

    exec(compile(code, "cell", "exec"), {"np": np, "check": check})


def test_the_solution_for_the_size(capsys):
    run_here(NOTEBOOK.solution_of("04.half"))
    assert capsys.readouterr().out.startswith("correct: ")


def after_a_deadlock() -> None:
    from mpi4py import MPI

    from tutorial_dl.course.virtual_ranks import Patient

    comm = Patient(MPI.COMM_WORLD, seconds=0.5)
    other, coming = 1 - comm.rank, np.zeros(1)
    with pytest.raises(TimeoutError):
        comm.Send(np.array([-1.0]), other)  # both ranks send, and neither receives
    with pytest.raises(ValueError, match="2000 bytes"):
        comm.Send(np.zeros(250), other)
    comm = Patient(MPI.COMM_WORLD, seconds=300)
    comm.Sendrecv(np.array([float(comm.rank)]), other, recvbuf=coming, source=other)
    assert coming[0] == other  # and not the abandoned -1


def test_abandoned_messages_are_not_received_later(on_ranks):
    on_ranks(2, after_a_deadlock, timeout=SECONDS)


# The figures -----------------------------------------------------------------------------------


def texts(figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_the_figure_of_message_times():
    from tutorial_dl.course import plotting

    sizes = 2 ** np.arange(3, 23)
    alpha, beta = 2e-6, 1 / 10e9  # half of the bandwidth is reached at 20,000 bytes
    figure = plotting.message_times(sizes, alpha + sizes * beta, {"model": (alpha, beta)})
    assert texts(figure) == [f"n½ = {20000 / 1024:.3g} KiB"]
    measured, predicted, _ = figure.axes[0].lines
    # The measured points must lie on the predicted line: both in µs over bytes.
    assert np.allclose(
        np.interp(np.log(sizes), np.log(predicted.get_xdata()), predicted.get_ydata()),
        measured.get_ydata(),
        rtol=1e-3,
    )
    assert measured.get_ydata()[0] == pytest.approx(2.0008)  # µs
    with pytest.raises(ValueError, match="20 sizes, got 3 times"):
        plotting.message_times(sizes, [1, 2, 3], {"model": (alpha, beta)})


def test_the_figure_of_ranks():
    from matplotlib.patches import FancyArrowPatch

    from tutorial_dl.course import plotting

    figure = plotting.ranks(["a", "b", "c"], messages=[(0, 1), (2, 0)])
    assert texts(figure) == ["rank 0", "a", "rank 1", "b", "rank 2", "c", "1", "2"]
    arrows = [p for p in figure.axes[0].patches if isinstance(p, FancyArrowPatch)]
    assert [(round(a._posA_posB[0][0]), round(a._posA_posB[1][0])) for a in arrows] == [
        (0, 1),
        (2, 0),
    ]
    for message in ((0, 3), (-1, 0), (1, 1)):
        with pytest.raises(ValueError, match="both must be ranks from 0 to 2, and different"):
            plotting.ranks(["a", "b", "c"], messages=[message])

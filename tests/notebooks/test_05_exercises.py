"""Notebook 05: folded solutions pass on every rank, wrong answers get a message, nothing hangs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from notebook_cells import Notebook

NOTEBOOK = Notebook("05")
SECONDS = 60


def run_here(code: str) -> None:
    """Run `code` as a learner's cell would; every rank calls this."""
    from tutorial_dl.course.exercises import check

    exec(compile(code, "cell", "exec"), {"np": np, "check": check})


def test_the_solution_of_the_crossover_is_where_both_formulas_agree(capsys):
    names = {"check": lambda *answer: None}
    exec(NOTEBOOK.solution_of("05.crossover"), names)
    n, alpha, beta, p = names["ring_wins"], 2e-6, 1 / 10e9, 16
    tree = 2 * 4 * alpha + 2 * 4 * n * beta  # 16 = 2^4
    ring = 2 * (p - 1) * alpha + 2 * n * (p - 1) / p * beta
    assert tree == pytest.approx(ring, rel=1e-9)
    run_here(NOTEBOOK.solution_of("05.crossover"))
    assert capsys.readouterr().out.startswith("correct: ")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("22 * 2e-6 / (8 / 10e9)", "too low"),  # without the bytes of the ring
        ("22 * 2e-6 / (6.125 / 10e9) / 4 * 4.2", "too high"),
        ("'72 kB'", "made of numbers"),
        ("...", "put your answer"),
    ],
)
def test_wrong_crossovers(capsys, answer, says):
    run_here(f"check('05.crossover', {answer})")
    said = capsys.readouterr().out
    assert said.startswith("not yet: ") and says in said


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_solution_of_the_reduce_scatter(on_ranks, ranks):
    printed = on_ranks(ranks, run_here, NOTEBOOK.solution_of("05.reduce_scatter"), timeout=SECONDS)
    for rank in range(ranks):
        assert f"correct: rank {rank} has all of chunk {rank}" in printed


RIGHT = """
def reduce_scatter(comm, chunks):
    p, rank = comm.size, comm.rank
    right, left = (rank + 1) % p, (rank - 1) % p
    incoming = np.empty_like(chunks[0])
    for step in range(p - 1):
        outgoing = chunks[(rank - 1 - step) % p]
        mine = chunks[(rank - 2 - step) % p]
        comm.Sendrecv(outgoing, right, recvbuf=incoming, source=left)
        mine += incoming
check("05.reduce_scatter", reduce_scatter)
"""
EXCHANGE = "comm.Sendrecv(outgoing, right, recvbuf=incoming, source=left)"


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        # Many books use another convention: rank r ends with chunk r + 1.
        ("rank - 1 - step", "rank - step", r"rank 0: chunk 0 lacks .* \(complete here: chunk 1\)"),
        ("range(p - 1)", "range(p - 2)", r"rank 2: chunk 2 lacks the values of rank [013]\b"),
        ("range(p - 1)", "range(p)", r"messages went to ranks \[1, 1, 1, 1\]; a ring sends 3"),
        ("mine += incoming", "mine[:] = incoming", r"rank 3: chunk 3 lacks the values of rank"),
        ("mine += incoming", "mine += 0.3 * incoming", r"rank 0: its chunk is off by up to"),
        ("mine += incoming", "chunks.append(incoming)", r"the list has \d chunks now"),
        ("mine += incoming", "", r"rank 0: chunk 0 lacks the values of rank 1, 2, 3"),
        (EXCHANGE, "comm.Send(outgoing, right); comm.Recv(incoming, left)", "waited 2 s for rank"),
        (
            "(rank + 1) % p, (rank - 1) % p",
            "(rank - 1) % p, (rank + 1) % p",
            "rank 1, 3 more than once",
        ),
        # These sums are right, but the messages are not those of a ring.
        ("    for step", "    return whole(comm, chunks)\n    for step", "had .* numbers"),
        ("    for step", "    return star(comm, chunks)\n    for step", "messages went to ranks"),
    ],
)
def test_wrong_reduce_scatters(on_ranks, right, wrong, says):
    assert RIGHT.count(right) == 1
    if right == "rank - 1 - step":  # both lines of the message
        answer = RIGHT.replace(right, wrong).replace("rank - 2 - step", "rank - 1 - step")
    else:
        answer = RIGHT.replace(right, wrong)
    printed = on_ranks(4, run_here, HELPERS + answer, timeout=SECONDS)
    assert re.search(says, printed), printed
    assert printed.count("not yet: ") == 4 and "correct: " not in printed


HELPERS = """
def whole(comm, chunks):  # the exercise of notebook 4: right, but every message is the vector
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    passing, incoming = np.array(chunks), np.empty((comm.size, 2))
    for _ in range(comm.size - 1):
        comm.Sendrecv(passing, right, recvbuf=incoming, source=left)
        chunks[comm.rank] += incoming[comm.rank]
        passing[:] = incoming


def star(comm, chunks):  # every rank sends every chunk straight to the rank that sums it
    incoming = np.empty(2)
    for away in range(1, comm.size):
        to, source = (comm.rank + away) % comm.size, (comm.rank - away) % comm.size
        comm.Sendrecv(chunks[to], to, recvbuf=incoming, source=source)
        chunks[comm.rank] += incoming
"""


def test_an_error_on_one_rank_hangs_no_other(on_ranks):
    code = RIGHT.replace("mine += incoming", "mine += incoming; 1 / (comm.rank - 1)")
    printed = on_ranks(3, run_here, code, timeout=SECONDS)
    assert printed.count("ZeroDivisionError") == 1 and printed.count("waited 2 s") >= 1
    assert printed.count("not yet: ") == 3

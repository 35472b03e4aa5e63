"""Notebook 07: the solutions pass, messages name rank, chunk and step, nothing hangs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from exercise_cells import one_line, run
from notebook_cells import Notebook

from tutorial_dl.course import traffic

NOTEBOOK = Notebook("07")


def said(capsys, code: str) -> str:
    """The one line that is printed."""
    run(code, {"np": np})
    return one_line(capsys, "")


# Trips -----------------------------------------------------------------------------------------


def test_the_solution_of_the_trips_is_what_the_code_does():
    code = next(text for text in NOTEBOOK.cells("markdown") if "## Exercise 1" in text)
    (body,) = re.findall(r"```python\n(.*?)```", code, re.DOTALL)

    def momentum(v, g, t, w):
        exec(body, {"np": np, "mu": 0.9, "eta": 0.1, "v": v, "g": g, "t": t, "w": w})

    vectors = {name: np.ones(4) for name in "vgtw"}
    plan = traffic.trips(momentum, **vectors)
    names = {"check": lambda *answer: None}
    exec(NOTEBOOK.solution_of("07.trips"), names)
    assert names["by_numpy"] == traffic.moved(plan)
    one = {name for trip in plan for name in (*trip.reads, *trip.writes)} - {"t"}
    assert names["in_one_pass"] == len(one) + len({"v", "w"})


# The ring on virtual ranks----------------------------------------------------------------------

RIGHT = """
def ring_allreduce(comm, x):
    p, rank = comm.size, comm.rank
    right, left = (rank + 1) % p, (rank - 1) % p
    chunks = np.array_split(x, p)
    incoming = np.empty_like(chunks[0])
    for step in range(p - 1):
        mine = chunks[(rank - 2 - step) % p]
        outgoing = chunks[(rank - 1 - step) % p]
        comm.Sendrecv(outgoing, right, recvbuf=incoming, source=left)
        mine += incoming[: mine.size]
    for again in range(p - 1):
        done = chunks[(rank - again) % p]
        comm.Sendrecv(done, right, recvbuf=chunks[(rank - 1 - again) % p], source=left)
"""
CHECK = "check('07.ring', ring_allreduce)"


def test_any_ring_is_right(capsys):
    """Other books let each rank begin with its own chunk: rank r first completes chunk r + 1."""
    other = RIGHT.replace("rank - 1 - step", "rank - step").replace("rank - 2 -", "rank - 1 -")
    other = other.replace("(rank - again)", "(rank + 1 - again)")
    other = other.replace("rank - 1 - again", "rank - again")
    assert said(capsys, RIGHT + CHECK).startswith("correct: ")
    assert said(capsys, other + CHECK).startswith("correct: ")


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        (
            "mine += incoming[: mine.size]", "mine[:] = incoming[: mine.size]",
            "4 ranks, 8 numbers: after step 1, rank 0: no chunk has the values of 2 ranks",
        ),
        (
            "rank - 2 - step", "rank - 1 - step",
            "after step 1, rank 0: chunk 3 contains values of chunk 2, from rank 3",
        ),
        (
            "rank - 1 - step", "rank - 1",
            "after step 2, rank 0: chunk 1 contains values of chunk 2, from rank 3",
        ),
        (
            "(rank - again)", "(rank - 1 - again)",
            "after step 4, rank 0: chunk 3 contains values of chunk 2, from rank 3",
        ),
        (
            "mine += incoming[: mine.size]", "mine += 2 * incoming[: mine.size]",
            "after step 1, rank 0: chunk 2 has the values of rank 3 more than once",
        ),
        (
            "mine += incoming[: mine.size]", "mine += 0.5 * incoming[: mine.size]",
            "after step 1, rank 0: chunk 2 is not a sum of the ranks' chunks 2",
        ),
        (
            "    for again", "    x /= 1 + (rank == 2)\n    for again",
            "after step 3, rank 2: chunk 0 is not a sum of the ranks' chunks 0",
        ),
        # This is right only if all chunks are equally long.
        ("incoming[: mine.size]", "incoming", r"3 ranks, 7 numbers: rank \d: ValueError"),
        ("chunks[0])", "chunks[-1])", r"rank \d sent 3 numbers to rank \d, whose recvbuf .* 2"),
        # These stop too early or too late.
        ("    for again", "    return\n    for again", "3 exchanges; a ring of 4 ranks makes 6"),
        ("step in range(p - 1)", "step in range(p - 2)", "after step 3, rank 0: no chunk has the"),
        (
            "again in range(p - 1)", "again in range(p)",
            "the sum is right, but after 7 messages per rank; a ring needs 6",
        ),
        ("np.array_split(x, p)", "np.array_split(x.copy(), p)", "rank 0: x has not changed"),
        # These send to ranks that do not exist, or that do not receive from the sender.
        ("(rank + 1) % p", "rank + 1", "ValueError: dest must be a rank from 0 to 3, got 4"),
        ("source=left)", "source=right)", r"rank \d waited 2 s to receive from rank \d"),
        ("    incoming", "    if rank == 2: return\n    incoming", "rank 2 made 0 exchanges"),
        ("        mine +=", "        1 / (rank - 2); mine +=", "rank 2: ZeroDivisionError"),
        ("comm.Sendrecv(done", "comm.Send(done", "comm has no 'Send' here; it has rank,"),
        # These sums are right, but the messages are not those of a ring.
        ("    chunks =", "    return whole(comm, x)\n    chunks =", "after 3 messages per rank"),
        ("    chunks =", "    return halves(comm, x)\n    chunks =", "messages had 8 numbers"),
        ("    p, rank", "    raise NotImplementedError\n    p, rank", "still to be written"),
    ],
)  # fmt: skip
def test_wrong_rings(capsys, right, wrong, says):
    assert right in RIGHT
    answer = RIGHT.replace(right, wrong, 1)
    printed = said(capsys, HELPERS + answer + CHECK)
    assert printed.startswith("not yet: ") and re.search(says, printed)


HELPERS = """
def whole(comm, x):  # the whole vector goes round
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    passing, incoming = x.copy(), np.empty_like(x)
    for _ in range(comm.size - 1):
        comm.Sendrecv(passing, right, recvbuf=incoming, source=left)
        x += incoming
        passing[:] = incoming


def halves(comm, x):  # as many messages as a ring has, but long ones
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    whole(comm, x)
    for _ in range(comm.size - 1):
        comm.Sendrecv(x, right, recvbuf=np.empty_like(x), source=left)
"""

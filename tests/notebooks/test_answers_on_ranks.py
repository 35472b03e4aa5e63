"""Exercises of %%px cells: right answers in every form, wrong ones with a hint, one line for all.

All answers to an exercise run in one call on ranks that other tests use too.
"""

from __future__ import annotations

import linecache
import re

import numpy as np
import pytest
import right_on_ranks
from mpi4py import MPI
from notebook_cells import Notebook

from numba_kernels.errors import PeerError
from tutorial_dl.course.virtual_ranks import Patient

SECONDS = 200


def solution(exercise: str) -> str:
    """The function of the folded solution, without its check."""
    return Notebook(exercise[:2]).solution_of(exercise).split("\n\ncheck(")[0] + "\n"


def run_here(exercise: str, cells: list[str]) -> None:
    """Check each cell's function as a learner's cell would; every rank calls this."""
    from tutorial_dl.course.exercises import check

    for number, code in enumerate(cells):
        MPI.COMM_WORLD.Barrier()
        print(f"cell {number}", flush=True)
        name = f"cell-{number}"
        linecache.cache[name] = len(code), None, code.splitlines(keepends=True), name
        names = {"np": np, "PeerError": PeerError}
        exec(compile(code, name, "exec"), names)
        function = next(v for k, v in reversed(names.items()) if k not in ("np", "PeerError"))
        check(exercise, function)


def said_by(on_ranks, ranks: int, exercise: str, cells: list[str]) -> list[str]:
    """The line that the ranks print for each cell: there must be one, of all of them."""
    printed = on_ranks(ranks, run_here, exercise, cells, timeout=SECONDS)
    said = [[] for _ in cells]
    for line in printed.splitlines():
        if found := re.search(r"cell (\d+)$", line):
            number = int(found[1])
        elif found := re.search(r"(correct|not yet): .*", line):
            said[number].append(found[0])
    assert all(len(lines) == 1 for lines in said), said
    return [lines[0] for lines in said]


# Right answers ---------------------------------------------------------------------------------

RIGHT = right_on_ranks.RIGHT | {"07.ring_on_ranks": [solution("07.ring")]}


@pytest.mark.parametrize("exercise", RIGHT)
def test_right_answers(on_ranks, exercise):
    others = [] if "07" in exercise else [solution(exercise)]
    for line in said_by(on_ranks, 4, exercise, others + RIGHT[exercise]):
        assert line.startswith("correct: "), line


@pytest.mark.parametrize("exercise", RIGHT)
def test_the_solution_is_right_on_fewer_ranks(on_ranks, exercise):
    code = solution(exercise.replace("_on_ranks", ""))
    for ranks in (1, 2, 3):
        (line,) = said_by(on_ranks, ranks, exercise, [code])
        assert line.startswith("correct: "), (ranks, line)


@pytest.mark.parametrize("exercise", RIGHT)
def test_an_open_cell_is_no_error(on_ranks, exercise):
    code = Notebook(exercise[:2]).open_cell(exercise.replace("_on_ranks", ""))
    code = re.sub(r"check\(.*\);?|from \S+ import check", "", code)
    if "07" in exercise:
        code = "def ring_allreduce(comm, x):\n    raise NotImplementedError\n"
    said = said_by(on_ranks, 2, exercise, [code, "answer = ...\n"])
    assert said[0] == "not yet: the function is still to be written"
    assert said[1] == "not yet: put your answer in place of the `...`"


# Wrong answers ---------------------------------------------------------------------------------

SEND = "comm.Sendrecv(passing, right, recvbuf=coming, source=left)"
EXCHANGE = "comm.Sendrecv(outgoing, right, recvbuf=incoming, source=left)"
STAR = """    incoming = np.empty(2)
    for away in range(1, comm.size):  # every chunk straight to the rank that sums it
        to, source = (comm.rank + away) % comm.size, (comm.rank - away) % comm.size
        comm.Sendrecv(chunks[to], to, recvbuf=incoming, source=source)
        chunks[comm.rank] += incoming
    return
"""
WHOLE = """    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    passing, incoming = np.array(chunks), np.empty((comm.size, 2))
    for _ in range(comm.size - 1):  # the whole vector goes round
        comm.Sendrecv(passing, right, recvbuf=incoming, source=left)
        chunks[comm.rank] += incoming[comm.rank]
        passing[:] = incoming
    return
"""
FIRST = "    p, rank = comm.size, comm.rank\n"

# fmt: off
WRONG = {  # exercise: (piece of the solution, what a learner wrote, hint)
    "04.ring_sum": [
        ("passing[:] = coming", "pass", "send on what you received last"),
        ("comm.size - 1)", "comm.size)", "the ring makes size - 1 steps"),
        ("x.copy(), x.copy()", "0 * x, x.copy()", "without this rank's own x"),
        ("return total", "return total / comm.size", "this is a mean"),
        ("total += coming", "pass", "nothing was added"),
        ("total, passing, coming = x.copy()", "total, passing, coming = x", "x itself has changed"),
        ("    return total\n", "\n", "returns nothing"),
        (SEND, "comm.Send(passing, right); comm.Recv(coming, left)",
         r"^not yet: the ranks wait for one another; rank 0 waited 2 s for rank 1 to receive$"),
        (SEND, "comm.Recv(coming, left); comm.Send(passing, right)",
         r"the ranks wait for one another; rank 0 waited 2 s to receive from rank 3"),
        ("(comm.rank + 1) % comm.size, (comm.rank - 1)",
         "(comm.rank - 1) % comm.size, (comm.rank + 1)", "your ring turns to the left"),
        ("(comm.rank + 1) % comm.size", "comm.rank + 1",
         r"rank 3: ValueError: dest must be a rank from 0 to 3, got 4 \(line 5: `comm.Sendrecv"),
        ("total += coming", "totl += coming",
         r"^not yet: (Name|UnboundLocal)Error: .*'totl'.* \(line 6: `totl \+= coming`\)$"),
        ("total += coming", "total += coming / (comm.rank - 1)",
         r"nothing|off by up to|rank 1: .*not finite"),
        (SEND, "comm.sendrecv(passing)", "comm has no 'sendrecv' here; it has rank,"),
        (SEND, "comm.Sendrecv(passing, right, source=left)", "needs recvbuf=..., an array"),
        ("total += coming", "total += coming; 1 / (comm.rank - 1)",
         r"^not yet: rank 1: ZeroDivisionError: division by zero \(line 6: `total \+= .*`\)$"),
        ("    right,", "    raise NotImplementedError\n    right,", "still to be written$"),
    ],
    "05.reduce_scatter": [
        # Many books use another convention: rank r ends with chunk r + 1.
        ("rank - 1 - step", "rank - step", "chunk 2|chunk 0"),
        ("range(p - 1)", "range(p - 2)", r"rank 0: chunk 0 lacks the values of rank \d"),
        ("range(p - 1)", "range(p)", "after 4 messages per rank; a ring needs 3"),
        ("mine += incoming", "mine[:] = incoming", r"rank 0: chunk 0 lacks the values of rank"),
        ("mine += incoming", "mine += 0.3 * incoming", r"rank 0: chunk 0 is off by up to"),
        ("mine += incoming", "chunks.append(incoming)", r"^not yet: the list has 7 chunks now"),
        ("mine += incoming", "", r"rank 0: chunk 0 lacks the values of rank 1, 2, 3"),
        (EXCHANGE, "comm.Send(outgoing, right); comm.Recv(incoming, left)", "wait for one another"),
        ("(rank + 1) % p, (rank - 1) % p", "(rank - 1) % p, (rank + 1) % p", "1, 3 more than once"),
        # These sums are right, but the messages are not those of a ring.
        (FIRST, WHOLE + FIRST, "messages had 8 numbers; a chunk has at most 2"),
        (FIRST, STAR + FIRST, "rank 0 sent to ranks 1, 2, 3; in a ring"),
        ("mine += incoming", "mine += incoming; 1 / (rank - 1)", "rank 1: ZeroDivisionError"),
    ],
    "06.average": [
        ("    message = ", "    return team.allreduce(g.copy()) / team.size\n    message = ",
         r"^not yet: the gradient: this is the mean of means; here ranks have \[0, 2, 4, 7\] s"),
        (" / message[-1]", "", "this is a sum over the samples"),
        ("/ message[-1]", "/ team.size", "not by the number of ranks"),
        ("/ message[-1]", "/ max(1, s)", "not by this rank's"),
        ("s * g", "g", "off by up to|sum of the ranks' means"),
        ("np.append(s * g, s)", "np.append(team.allreduce(s * g), s); n = message[-1:]",
         "off by|2 allreduces"),
        ("    message = ", "    n = team.allreduce(np.array([1.0 * s]))\n    message = ",
         "right, but took 2 allreduces"),
        ("    return ", "    g -= 1\n    return ", "g itself has changed"),
        ("    return message[:-1] / message[-1]", "", "returns nothing"),
        ("return message", "return message[:2]; return message", r"should have shape \(3,\)"),
        # The usual mistake: a rank without samples does nothing.
        ("    message = ", "    if not s: return g\n    message = ",
         "rank 0: a rank that calls no allreduce"),
        ("message = ", "1 / (team.rank - 1); message = ",
         r"^not yet: rank 1: ZeroDivisionError: division by zero \(line 2: `1 / "),
        ("team.allreduce(", "team.Allreduce(", "AttributeError: 'Team' object has no attribute"),
    ],
    "07.ring_on_ranks": [
        ("rank - 2 - step", "rank - 1 - step", "after step 1, rank |than recvbuf has room"),
        ("mine += inc", "mine[:] = inc", r"after step 1, rank 0: no chunk has the values of 2"),
        ("for step in range(p - 1):  # copy", "for step in range(p):  # c", "after 7 messages per"),
        ("recvbuf=chunks[(rank - 1 - step) % p], source=left",
         "recvbuf=chunks[(rank - 1 - step) % p], source=right", "to receive from rank 1"),
        ("mine += inc", "1 / (rank - 1); mine += inc", "rank 1: ZeroDivisionError"),
        (FIRST, "    raise NotImplementedError\n" + FIRST, "^not yet: the function is still to be"),
    ],
    "08.sums": [
        ('op="max"', 'op="min"', "rank 0, with 3 batches, returns 2 sums"),
        ('op="max")[0]', 'op="max")[0] + 1', r"returns 4 sums; the ranks have \[3, 3, 3, 2\]"),
        ("np.zeros_like(batches[0])", "batches[-1].copy()", "the sum of round 2 .* is off by"),
        ("added.append(team.allreduce(brought))", "added.append(brought)", "of round 0 .* is off"),
        ("return added", "return None", "^not yet: the function returns nothing"),
        # The function of the text, with its bug.
        ("    rounds = ", "    return [team.allreduce(b.copy()) for b in batches]\n    rounds = ",
         "rank 3, with 2 batches, returns 2 sums"),
        # Right only if just the last rank has one batch fewer.
        ("    rounds = ",
         "    batches = [*batches, *[0 * batches[0]] * (team.rank == team.size - 1)]\n"
         "    return [team.allreduce(b.copy()) for b in batches]\n    rounds = ",
         r"the ranks have \[1, 4, 4, 4\]"),
        ("rounds = ", "round = ", r"^not yet: NameError: name 'rounds' is .*\(line 4: `for"),
    ],
    "34.auc": [
        ("    team.allreduce(counts)\n", "    counts = [team.allreduce(row) for row in counts]\n",
         "took 2 allreduces"),
        ("negative / 2", "0", "yours count nothing"),
        ("below + negative / 2", "below + negative", "yours count whole"),
        ("negative, positive = counts", "positive, negative = counts", "1 - the area"),
        ("    team.allreduce(counts)\n", "", "a rank that calls no allreduce"),
        ("    team.allreduce(counts)\n", "    team.allreduce(counts.copy())\n",
         "only this rank's|number|not finite|must be finite"),
        ("    counts = ",
         "    w = scores[labels == 1][:, None] - scores[labels == 0]; s = len(labels)\n"
         "    a = ((w > 0) + (w == 0) / 2).mean() if s else 0\n"
         "    t = team.allreduce(np.array([s * a, s], float)); return t[0] / t[1]\n    counts = ",
         "a mean of the ranks' areas"),
        ("    counts = ", "    if not len(labels): return 0.5\n    counts = ",
         "rank 3: a rank that calls no allreduce"),
        ("    return (", "    return 'high', (", "the area must be a number"),
        ("    return (", "    (", "returns nothing"),
        ("team.allreduce", "1 / (team.rank - 1); team.allreduce", "rank 1: ZeroDivisionError"),
    ],
    "16.loss": [
        ("(z.max(axis=1), op", "(0 * z.max(axis=1), op",
         "logits near 1000: the loss is not finite: subtract"),
        ('team.allreduce(z.max(axis=1), op="max")', "z.max(axis=1)", "the loss, .* is too|off by"),
        ("(np.log(total) + largest", "(np.log(total)", "has to be added again"),
        ("team.allreduce(np.exp(z - largest[:, None]).sum(axis=1))",
         "np.exp(z - largest[:, None]).sum(axis=1)", "only this rank's classes"),
        ("    team.allreduce(label)  # one rank has it, the others add 0\n", "",
         "the loss, .* is too|logit of the label is missing"),
        (".mean()", "", "one number is asked for"),
        (".mean()", ".sum()", "a sum over the samples"),
        ("return (", "return -(", "the wrong sign"),
        ("largest - label", "largest", "the logit of the label is missing"),
        ("y - team.rank * z.shape[1]", "y", "the loss, .* is too"),
        ("    largest = ",
         "    z = np.concatenate(team.allgather(z).reshape(team.size, *z.shape), axis=1)\n"
         "    top = z.max(axis=1)\n"
         "    each = np.log(np.exp(z - top[:, None]).sum(axis=1)) + top - z[np.arange(len(y)), y]\n"
         "    return each.mean()\n    largest = ",
         "right, but this rank gave 40 numbers per sample"),
        ("    largest = ",
         "    from mpi4py import MPI\n"
         "    z = np.concatenate(MPI.COMM_WORLD.allgather(z), axis=1)\n"
         "    top = z.max(axis=1)\n"
         "    each = np.log(np.exp(z - top[:, None]).sum(axis=1)) + top - z[np.arange(len(y)), y]\n"
         "    return each.mean()\n    largest = ", "nothing went through `team`"),
        ("return (", "(", "returns nothing"),
        ("column = ", "column = 1 / (team.rank - 1) + ", "rank 1: ZeroDivisionError|IndexError"),
    ],
}
# fmt: on


@pytest.mark.thorough(but=["05.reduce_scatter", "06.average", "08.sums", "34.auc", "16.loss"])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exercise", WRONG)
def test_wrong_answers(on_ranks, exercise):
    code, cells = solution(exercise.replace("_on_ranks", "")), []
    for old, new, _ in WRONG[exercise]:
        assert old in code, old
        cells.append(code.replace(old, new))
    said = said_by(on_ranks, 4, exercise, ["answer = 3\n", *cells, code])
    assert said[0] == "not yet: a function is asked for, not 3"
    for (old, new, hint), line in zip(WRONG[exercise], said[1:], strict=False):
        assert line.startswith("not yet: ") and re.search(hint, line), (old, new, line)
    assert said[-1].startswith("correct: "), "a wrong answer spoils the next one"


def after_a_deadlock() -> None:
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

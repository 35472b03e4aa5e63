"""Messages between masters and workers: each record comes back from its words, which fit."""

import numpy as np
import pytest

from numba_kernels.star.star import HEAD
from tutorial_dl.runtime.master import messages
from tutorial_dl.runtime.master.messages import PAIRS, PIECES, Answer, Counts, Kind, Order, Report
from tutorial_dl.runtime.master.tasks import Task
from tutorial_dl.runtime.master.validation import NUMBERS, Evaluated, Part

TASK = Task(3, 40, 20, 60, 100, 1, 2)


def sent(record, *before) -> list[float]:
    """The words of a record, as a star hands them over."""
    words, numbers = np.zeros(HEAD), [*before, *messages.flat(record)]
    words[: len(numbers)] = numbers
    return words.tolist()


REQUESTS = [
    (Kind.PULL, ()),
    (Kind.PUSH, Report(3, 10.0, 2.5, 1.0, 10.0, 4.0, 7.0, ((40, 60),))),
    (Kind.REPORT, Report()),
    *((Kind.EVALUATED, piece) for piece in Evaluated.pieces(np.arange(1.5, 3 + NUMBERS))),
    (Kind.NOT_FINITE, messages.NotFiniteAt(1, 2)),
    (Kind.LOST, messages.Lost(5)),
    (Kind.COUNTS, Counts(1, tuple((number, 7) for number in range(PAIRS)))),
    (Kind.COUNTS, Counts(0, ((0, 12),))),
    (Kind.REPORT, Report(3, 10.0, done=((0, 40),) * PIECES)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "record"), REQUESTS)
def test_requests(kind, record):
    found = messages.request_of(sent(record, kind))
    assert found == (kind, record) and type(found[1]) is type(record)


def test_requests_of_all_kinds_are_tried():
    assert {kind for kind, record in REQUESTS if record} == messages.RECORDS.keys()


@pytest.mark.parametrize("answer", [
    Answer(Order.GIVEN_UP),
    Answer(Order.TRAIN, 12, True, TASK),
    Answer(Order.EVALUATE, 12, False, Part(5, 8)),
])  # fmt: skip
def test_answers(answer):
    found = Answer.of_words(sent(answer))
    assert found == answer and type(found.about) is type(answer.about)


def test_reports_add_up():
    one = Report(3, 10.0, 2.5, 1.0, 10.0, 4.0, 7.0)
    two = one.plus(one._replace(epoch=5, done=((4, 8),)))
    assert two == (3, 20.0, 5.0, 2.0, 20.0, 8.0, 14.0, ((4, 8),))

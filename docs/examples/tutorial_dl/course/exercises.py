"""Examples of tutorial_dl.course.exercises."""

# %% Check an answer
# shows: check
from tutorial_dl.course.exercises import check

check("01.degree", "three")

# %% How a check is written
# shows: NotYet, number_of, whole, must_be, must_have, counted
from tutorial_dl.course.exercises import NotYet, counted, must_be, must_have, number_of, whole

pair = must_have((4, 2.0), 2, "two numbers: ranks, speed-up")
ranks, speed = whole(pair[0], 1, None, "ranks"), number_of(pair[1], "the speed-up")
try:
    must_be(speed, 3.2, "the speed-up", {"did you forget the exchange?": 4.0})
except NotYet as error:
    print(counted(ranks, "rank") + ":", error)

# %% Answers that are functions
# shows: call, must_be_function, must_return, close, must_not_be, must_not_be_scaled
import numpy as np

from tutorial_dl.course.exercises import (
    NotYet,
    call,
    close,
    must_be_function,
    must_not_be,
    must_not_be_scaled,
    must_return,
)


def gradient(w):  # a learner's: the sign is wrong
    return -2 * w


must_be_function(gradient)
w = np.array([1.0, 3.0])
found = call(gradient, w)
must_return(found)
for test in (
    lambda: must_not_be(found, 2 * w, {"this is the loss": w**2}),
    lambda: must_not_be_scaled(found, 2 * w, "the gradient", "it points downhill", s=1),
    lambda: close(found, 2 * w, "the gradient at (1, 3)"),
):
    try:
        test()
    except NotYet as error:
        print("not yet:", error)

# %% Rings of messages
# shows: must_be_a_ring, whose, listed
import numpy as np

from tutorial_dl.course.exercises import NotYet, listed, must_be_a_ring, whose

weights = np.array([1.0, 2.0])
print(whose(101 * weights, weights, 3), "ranks", listed([0, 2]), "are in the sum")
try:
    must_be_a_ring([(2, 1), (2, 1)], rank=0, ranks=4, steps=3)  # messages of rank 0
except NotYet as error:
    print("not yet:", error)

# %% [4 ranks] Exercises that all ranks answer together
# shows: every_rank, call_on_ranks, must_reduce_once
import numpy as np

from tutorial_dl import Team
from tutorial_dl.course.exercises import call_on_ranks, every_rank, must_reduce_once

team = Team()


@every_rank
def mean_of_ranks(answer):  # a judge that each rank calls
    found = call_on_ranks(answer, team)
    return f"correct: {found[0]}"


print(mean_of_ranks(lambda team: team.allreduce(np.array([float(team.rank)]), "mean")))
print(must_reduce_once.__name__, "counts the allreduces of a team that is watched")

"""Checks for the exercises of notebook 24, evolution and Bayes."""

from . import NotYet, must_be, whole

MEMBERS = 20  # exercise 1: of the population
TRAINING, SUGGESTION = 45.0, 0.3  # exercise 2: seconds


def tournament(answer) -> str:
    """Exercise 1: the chance that the fitter of two members is of the fitter half."""
    half = MEMBERS // 2
    both_worse = half * (half - 1) / (MEMBERS * (MEMBERS - 1))
    mistakes = {
        "the two are drawn without putting the first one back": 0.75,
        "this is the chance that both are of the worse half": both_worse,
        "without a tournament": 0.5,
    }
    must_be(answer, 1 - both_worse, "the chance", mistakes, rtol=2e-3, units=False)
    return "so a parent is of the fitter half three times out of four, and variety is kept"


def groups(answer) -> str:
    """Exercise 2: groups that one coordinator keeps busy, one suggestion after the other."""
    n, right = whole(answer, 1, 10**6, "the number of groups"), round(TRAINING / SUGGESTION)
    if n in (right, right + 1):
        return "with more, some group always waits for its turn"
    if n == round(TRAINING * SUGGESTION):
        raise NotYet("a group asks once per training: how many suggestions fit into one?")
    raise NotYet(
        f"with {n} groups, {'some wait' if n > right else 'the coordinator could serve more'}"
    )

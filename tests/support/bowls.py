"""A loss of few parameters, for tests of fits and of descent."""

from tutorial_dl.course.foundations import LeastSquares


def bowl(random, s=23, k=3):
    """A loss of k parameters whose minimum is not zero."""
    return LeastSquares(random.standard_normal((s, k)), random.standard_normal(s))

"""Checks for the exercises of notebook 23, what descent cannot learn."""

import math

from . import NotYet, call, close, number_of, whole

SHARE, CHANCE = 0.02, 0.9  # exercise 1: among the best 2%, with a chance of 90%


def draws(answer) -> str:
    """Exercise 1: the least n with 1 - (1 - SHARE)^n of at least CHANCE."""
    n = whole(answer, 1, 10**6, "the number of sets")
    right = math.ceil(math.log(1 - CHANCE) / math.log(1 - SHARE))
    if n == right:
        return "and that holds for any number of parameters, and any figure of merit"
    if n == right - 1:
        raise NotYet("with so many the chance is just below: round up")
    if n == math.ceil(CHANCE / SHARE):
        raise NotYet("chances of single draws can't be added: two may both hit")
    if n == math.ceil(math.log(CHANCE) / math.log(1 - SHARE)):
        raise NotYet("this many miss with a chance of 90%; they should hit with it")
    if n == math.ceil(math.log(1 - CHANCE) / math.log(SHARE)):
        raise NotYet("a draw misses with a chance of 98%, not of 2%")
    chance = 1 - (1 - SHARE) ** n
    side = "many" if n > right else "few"
    raise NotYet(f"{n} sets hit with a chance of {chance:.3f}: too {side}")


def improvement(answer) -> str:
    """Exercise 2: expected improvement below b of normal values with mean m and deviation s."""
    from scipy.stats import norm

    for m, s, b in ((0.5, 0.3, 0.4), (1.0, 0.5, 1.0), (-2.0, 0.1, -1.5), (3.0, 2.0, 0.0)):
        given = f"m = {m}, s = {s}, b = {b}"
        found = number_of(call(answer, m, s, b), f"the expected improvement for {given}")
        z = (b - m) / s
        mean = (b - m) * norm.cdf(z)
        right = mean + s * norm.pdf(z)
        mistakes = {
            "this is for a maximum; here lower is better": right + m - b,
            "the part with the density is missing: values vary around their mean": mean,
            "this is the chance of an improvement, not how large it is": norm.cdf(z),
            "the density has to be multiplied by s, too": mean + norm.pdf(z),
            "values above b count as no improvement, not as a negative one": b - m,
        }
        close(found, right, given, mistakes, atol=1e-12)
    return "it is large where the mean is low, and where the deviation is large"

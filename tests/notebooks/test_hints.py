"""Hints on wrong answers to notebooks 17 and 20 to 29; how a hint is found."""

import numpy as np
import pytest
from exercise_cells import says
from scipy.stats import norm

from tutorial_dl.course.exercises import answers
from tutorial_dl.training import schedules


def raw(p, q):
    return 0.5 * np.sum((p - q)[p + q > 0] ** 2 / (p + q)[p + q > 0])


def twice(p, q):
    return 2 * raw(p / p.sum(), q / q.sum())


def of_common_bins(p, q):
    p, q, both = p / p.sum(), q / q.sum(), (p > 0) & (q > 0)
    return 0.5 * np.sum((p - q)[both] ** 2 / (p + q)[both])


def rises_only(step, start, rate, steps):
    """If the target rate is lower than the first rate, a warm-up must go down."""
    return min(rate, schedules.warm_up(rate, steps, start)(step))


HINTS = [
    ("09.warm_up", rises_only, "start = 0.5, rate = 0.1"),
    ("17.batches", (62, 21), "GPipe: with m = 62 the ranks are idle 10.1% of the time"),
    ("17.batches", (63, 20), "ZB-H1: with m = 20 the ranks are idle 10.4% of the time"),
    ("17.batches", (70, 21), "GPipe: this is where the idle time is a tenth of the work"),
    ("17.batches", (63, 24), "ZB-H1: this is where the idle time is a tenth of the work"),
    ("17.batches", (72, 21), "GPipe: the first rank does not wait for itself"),
    ("17.batches", (64, 21), "GPipe: m = 64 is enough, but so would be fewer"),
    ("17.batches", (63.5, 21), "whole number"),
    ("17.batches", (63, "21"), "got '21'"),
    ("17.batches", 63, "expected two numbers"),
    ("20.penalty", 0.04, "how much of it does a penalty take away"),
    ("20.penalty", 0.4, "in the determinant twice"),
    ("20.penalty", 0.2, "the square of the factor"),
    ("20.penalty", -0.1, "is the sign right"),
    ("20.penalty", 1.0198, "the factor of a step"),
    ("20.penalty", "a", "must be a number"),
    ("20.best_score", lambda p, q: np.log(q / p), "which density belongs on top"),
    ("20.best_score", lambda p, q: p / (p + q), "this is the probability"),
    ("20.best_score", lambda p, q: p / q, "the score is its logarithm"),
    ("21.traffic", 7.0, "how many steps does the discriminator make"),
    ("21.traffic", 29.4, "which player makes five steps"),
    ("21.traffic", 3.15, "a weight has 4 bytes"),
    ("21.traffic", 12.6e6, "check the units"),
    ("21.overlap", [84, 84, 64], "no gradient to hide under"),
    ("21.overlap", [84, 84, 44], "share a core"),
    ("21.overlap", [74, 84, 74], "players in turn"),
    ("21.overlap", 74, "three numbers"),
    ("22.deeper", np.log(20), "in units of what"),
    ("22.deeper", 4.03 * np.log10(20), "by e, not by 10"),
    ("22.deeper", 80.6, "the logarithm of the energy"),
    ("22.separation_power", raw, "normalise both first"),
    ("22.separation_power", twice, "do not overlap should have 1"),
    ("22.separation_power", of_common_bins, "empty in one of them"),
    ("23.draws", 113, "round up"),
    ("23.draws", 45, "can't be added"),  # 0.9 / 0.02
    ("23.draws", 6, "this many miss"),  # ln 0.9 / ln 0.98
    ("23.draws", 1, "misses with a chance of 98%"),  # ln 0.1 / ln 0.02
    ("23.draws", 200, "too many"),
    ("23.draws", 50, "too few"),
    ("23.improvement",
     lambda m, s, b: (m - b) * norm.cdf((m - b) / s) + s * norm.pdf((b - m) / s), "maximum"),
    ("23.improvement", lambda m, s, b: (b - m) * norm.cdf((b - m) / s), "density is missing"),
    ("23.improvement", lambda m, s, b: norm.cdf((b - m) / s), "the chance of an improvement"),
    ("23.improvement", lambda m, s, b: b - m, "no improvement, not as a negative one"),
    ("24.tournament", 0.75, "without putting the first one back"),
    ("24.tournament", 10 / 20 * 9 / 19, "both are of the worse half"),
    ("24.tournament", 0.5, "without a tournament"),
    ("24.groups", 14, "how many suggestions fit into one"),
    ("24.groups", 400, "some wait"),
    ("24.groups", 20, "the coordinator could serve more"),
    ("25.samples", 9, "it falls with sqrt(n)"),
    ("25.samples", 9000, "both chances"),
    ("25.samples", 2500, "not of a half"),
    ("25.samples", 30, "square it"),
    ("25.held_out", lambda n, k: [np.arange(n)], "there must be 3 folds, got 1"),
    ("25.held_out", lambda n, k: [np.arange(n)] * k, "sample 0 is in more than one fold"),
    ("25.held_out", lambda n, k: [np.arange(i * (n // k), (i + 1) * (n // k))
                      for i in range(k)], "sample 9 is in no fold"),
    ("25.held_out", lambda n, k: [np.arange(n - k + 1), *([i] for i in range(n - k + 1, n))],
     "differ by more than one"),
    ("25.held_out", lambda n, k: [np.arange(1 + i, n + 1, k) for i in range(k)],
     "indices go from 0 to 9"),
    ("25.held_out", lambda n, k: [np.arange(n) % k == i for i in range(k)], "whole numbers"),
    ("26.ranks", 220, "who coordinates?"),
    ("26.ranks", 181, "the sub-masters are ranks, too"),
    ("26.ranks", 201, "the top master of each training"),
    ("26.ranks", 161, "this counts the ranks that compute"),
    ("26.ranks", 45, "each fold has a training of its own"),
    ("26.ranks", 56, "each group has all folds"),
    ("26.ranks", 240, "one coordinator for the whole search"),
    ("26.finished", lambda times, groups: sum(times) / groups, "always in use"),
    ("26.finished", lambda times, groups: max(times), "may begin late"),
    ("26.finished", lambda times, groups: sum(times), "one group alone"),
    ("26.finished", lambda times, groups: max(sum(times[g::groups]) for g in range(groups)),
     "should ask when it is free"),
    ("26.finished", lambda times, groups: sum(
        max(times[i : i + groups]) for i in range(0, len(times), groups)),
     "slowest of each round"),
    ("27.job", (4, 8, 8), "8 ranks of 8 cores do not fit on a node of 48"),
    ("27.job", (3, 6, 8), "3 x 6 = 18 ranks"),
    ("27.job", (24, 1, 8), "fewer nodes are enough"),
    ("27.job", (4, 6, 48), "each rank is to have 8 cores"),
    ("27.job", 24, "three numbers"),
    ("27.amdahl", (0.5, 59), "the share of the ideal speed-up"),
    ("27.amdahl", (1 / 30, 59), "but not no time"),
    ("27.amdahl", (30 / 59, 59), "on one GPU is asked for"),
    ("27.amdahl", (1 / 59, 60), "not the number of GPUs"),
    ("28.wait", (7, 18_182), "takes longer than reading"),
    ("28.wait", (9, 18_182), "but so do fewer"),
    ("28.wait", (8, 2560), "what one rank computes"),
    ("28.wait", (8, 8 * 2560), "what so many ranks would compute"),
    ("28.wait", (7.1, 18_182), "whole number"),
    ("28.share", lambda lengths, rank, ranks: [(0, 0, 0)], "an empty part"),
    ("28.share", lambda lengths, rank, ranks: [(0, 0, 1)], "is not samples 0 to 9"),
    ("28.share", lambda lengths, rank, ranks: [
        (f, i, i + 1) for f, n in enumerate(lengths) for i in range(n)
    ][rank * sum(lengths) // ranks : (rank + 1) * sum(lengths) // ranks], "one part per file"),
    ("29.fit", (6, 8), "would hold 42.0 GB"),
    ("29.fit", (8, 8), "ranks = 8 is enough, but so would be fewer"),
    ("29.fit", (7, 7), "activations take 30 GB"),
    ("29.fit", (7, 9), "m = 9 micro-batches fit, but so would fewer"),
    ("29.accumulate", lambda gradient, x, k: np.mean(
        [gradient(part) for part in np.array_split(x, k)], axis=0), "mean of means"),
    ("29.accumulate", lambda gradient, x, k: sum(
        gradient(part) for part in np.array_split(x, k)), "the sum of the micro-batches' means"),
    ("29.accumulate", lambda gradient, x, k: gradient(x), "your micro-batches have [8] samples"),
]  # fmt: skip


@pytest.mark.parametrize(("exercise", "answer", "hint"), HINTS)
def test_a_mistake_is_named(exercise, answer, hint, capsys):
    assert hint in says(capsys, exercise, answer)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (2e4, "power of 1000"),
        (0.02, "power of 1000"),
        (160, "8 bits"),
        (2.5, "8 bits"),
        (-20, "wrong sign"),
        (1 / 20, "upside down"),
        (20.7, "slightly too high"),
        (30, "is too high$"),
        (200, "is much too high$"),
        (19.5, "1024 bytes"),
        (15, "is too low$"),
        (-3, "is too low$"),
    ],
)
def test_a_hint_is_what_leads_from_the_right_number_to_this_one(value, hint):
    with pytest.raises(answers.NotYet, match=hint) as raised:
        answers.must_be(value, 20.0, "the number")
    assert "20" not in str(raised.value).replace(f"{value:g}", "")


def test_a_number_within_the_tolerance_is_right():
    answers.must_be(20.19, 20.0, "the number")
    answers.must_be(19.81, 20.0, "the number", {"a mistake": 19.81})


@pytest.mark.parametrize("answer", ["71", b"71", True, np.True_, 1j, [1, 2], {}, object()])
def test_what_is_no_number(answer):
    with pytest.raises(answers.NotYet, match="the size must be a number, got "):
        answers.number_of(answer, "the size")


@pytest.mark.parametrize("answer", [70.5, 71.0001, "71", True, float("inf"), [71, 71]])
def test_what_is_no_whole_number(answer):
    with pytest.raises(answers.NotYet, match="must be a whole number from 1 to 100, got "):
        answers.whole(answer, 1, 100, "the size")
    assert answers.whole(71 + 1e-12, 1, 100, "the size") == 71

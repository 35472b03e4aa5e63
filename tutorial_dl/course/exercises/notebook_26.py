"""Checks for the exercises of notebook 26, all together."""

from heapq import heapify, heapreplace

import numpy as np

from . import call, close, must_be, number_of

GROUPS, FOLDS = 4, 5  # exercise 1, with each training on MASTERS x WORKERS x DEVICES
MASTERS, WORKERS, DEVICES = 2, 2, 2


def ranks(answer) -> str:
    """Exercise 1: ranks of a search in which every training has sub-masters."""
    computing, trainings = MASTERS * WORKERS * DEVICES, GROUPS * FOLDS
    each = 1 + MASTERS + computing
    right = 1 + trainings * each
    mistakes = {
        "who coordinates?": right - 1,
        "the sub-masters are ranks, too": 1 + trainings * (1 + computing),
        "the top master of each training is a rank, too": 1 + trainings * (MASTERS + computing),
        "masters are ranks, too: this counts the ranks that compute": 1 + trainings * computing,
        "each fold has a training of its own": 1 + GROUPS * each,
        "each group has all folds": 1 + FOLDS * each,
        "there is one coordinator for the whole search": trainings * (1 + each),
    }
    must_be(answer, right, "the number of ranks", mistakes, rtol=1e-6, units=False)
    return "the coordinator is one of them, and costs least where there are many"


def finished(answer) -> str:
    """Exercise 2: when the last trial ends, if whoever is free takes the next one."""
    long = np.random.default_rng(0).uniform(1, 10, 40).round(1).tolist()
    for times, groups in (
        ([3.0, 1.0, 1.0, 2.0, 2.0], 2), ([1.0, 9.0, 1.0, 1.0], 2), ([2.0, 5.0, 4.0, 3.0, 6.0], 3),
        (long, 8), ([4.0, 2.0], 5),
    ):  # fmt: skip
        given = f"{groups} groups and times {times if len(times) < 9 else 'of 1 to 10 s'}"
        found = number_of(call(answer, list(times), groups), f"the end for {given}")
        right = _end(times, groups)
        dealt = max(sum(times[group::groups]) for group in range(groups))
        rounds = sum(max(times[i : i + groups]) for i in range(0, len(times), groups))
        mistakes = {
            "here all wait for the slowest of each round": rounds,
            "here each group has its trials from the start; it should ask when it is free": dealt,
            "this is only right if all groups are always in use": sum(times) / groups,
            "this is what one group alone would need": sum(times),
            "the longest trial may begin late": max(times),
        }
        close(found, right, given, mistakes)
    return "a slow trial then holds up one group, and no other"


def _end(times, groups: int) -> float:
    free = [0.0] * groups  # when each group is
    heapify(free)
    for seconds in times:
        heapreplace(free, free[0] + seconds)
    return max(free)

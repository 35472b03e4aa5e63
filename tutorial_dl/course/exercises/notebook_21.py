"""Checks of notebook 21, distributed GANs."""

from . import must_be, must_have

RING = 2 * 7 / 8  # numbers sent per number reduced, on 8 ranks
GRADIENT, REDUCTION, UPDATE = 30, 10, 2  # ms


def traffic(answer) -> str:
    """MB that a rank sends per step of the generator: 0.8 and 0.2 million weights, 5 steps."""
    right = RING * 4 * (0.8 + 5 * 0.2)
    mistakes = {
        "how many steps does the discriminator make in that time?": RING * 4 * (0.8 + 0.2),
        "which player makes five steps?": RING * 4 * (5 * 0.8 + 0.2),
        "this is per step of the discriminator": right / 5,
        "a weight has 4 bytes": right / 4,
        "a ring sends each number twice, but for one part of 8": right / RING,
        "there are two halves of an allreduce: adding up, and handing out": right / 2,
    }
    must_be(answer, right, "the traffic", mistakes)
    return "five reductions of the small player cost more than one of the large player"


def overlap(answer) -> str:
    """ms of a round: in turn; at once; at once and overlapped."""
    names = "players in turn", "at once, one after the other", "at once, overlapped"
    in_turn = 2 * (GRADIENT + REDUCTION + UPDATE)
    right = in_turn, in_turn, 2 * GRADIENT + REDUCTION + 2 * UPDATE
    mistakes = {
        "the discriminator's reduction has no gradient to hide under": right[2] - REDUCTION,
        "both updates come at the end": right[2] - UPDATE,
        "do both gradients share a core?": right[2] - GRADIENT,
    }
    parts = must_have(answer, 3, "three numbers, in ms")
    for name, mine, its in zip(names, parts, right, strict=True):
        must_be(mine, its, name, mistakes if its == right[2] else {}, units=False)
    return "of two reductions one is hidden, so a round is shorter by 10 ms of 84"

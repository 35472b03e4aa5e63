"""Checks of notebook 28, data at scale."""

from . import NotYet, call, must_be, must_have, whole

BATCH, SAMPLE, DISK, COMPUTE = 512, 110e3, 2e9, 0.200  # exercise 1: samples, bytes, bytes/s, s


def wait(answer) -> str:
    """Exercise 1: the fewest ranks that wait for the file system; the most images per second."""
    ranks, images = must_have(answer, 2, "two numbers: ranks, and images per second")
    p, read = whole(ranks, 1, None, "ranks"), BATCH * SAMPLE / DISK
    if COMPUTE / p > read:
        raise NotYet(f"with {p} the gradient of a share takes longer than reading the batch")
    if p > 1 and COMPUTE / (p - 1) <= read:
        raise NotYet(f"{p} ranks wait for the file system, but so do fewer")
    mistakes = {
        "this is what one rank computes": BATCH / COMPUTE,
        "this is what so many ranks would compute": p * BATCH / COMPUTE,
    }
    must_be(images, DISK / SAMPLE, "images per second", mistakes)
    return f"reading a batch takes {1e3 * read:.0f} ms, however many ranks share it"


def share(answer) -> str:
    """Exercise 2: the parts (file, first, last) that a rank reads."""
    for lengths, ranks in (([10], 1), ([4, 4], 2), ([5, 0, 7, 3], 4), ([2, 2, 2], 5), ([1], 3)):
        n = sum(lengths)
        for rank in range(ranks):
            what = f"lengths {lengths}, rank {rank} of {ranks}"
            found = [tuple(int(i) for i in part) for part in call(answer, lengths, rank, ranks)]
            samples = [(file, i) for file, first, last in found for i in range(first, last)]
            begin, end = rank * n // ranks, (rank + 1) * n // ranks
            right = [(f, i) for f, length in enumerate(lengths) for i in range(length)][begin:end]
            if any(first >= last for _, first, last in found):
                raise NotYet(f"{what}: there is an empty part in {found}")
            if samples != right:
                raise NotYet(f"{what}: {found} is not samples {begin} to {end - 1} of the whole")
            if len(found) != len({file for file, _ in right}):
                raise NotYet(f"{what}: one part per file is enough, got {found}")
    return "every sample is read once, in as few reads as possible"

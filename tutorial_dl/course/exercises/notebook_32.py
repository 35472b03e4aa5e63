"""Checks of notebook 32, allreduce II."""

from . import must_be

LATENCY, BANDWIDTH = 2e-6, 10e9  # seconds, bytes per second; p = 16 ranks


def crossover(answer) -> str:
    """The size above which a ring beats a tree: 16 ranks, 2 µs, 10 GB/s, additions cost nothing."""

    def equal(tree_alpha, tree_beta, ring_alpha, ring_beta):
        """Bytes where tree_alpha alpha + tree_beta n beta = ring_alpha alpha + ring_beta n beta."""
        return (ring_alpha - tree_alpha) * LATENCY * BANDWIDTH / (tree_beta - ring_beta)

    right = equal(8, 8, 30, 30 / 16)
    mistakes = {
        "the bytes of the ring are missing": equal(8, 8, 30, 0),
        "a ring sends 2 (p - 1) / p of the vector, not twice the vector": equal(8, 8, 30, 2),
        "each of the ring's messages is one chunk, a p-th of the vector": equal(8, 8, 30, 30),
        "the ring also distributes the sum: it has 2 (p - 1) steps": equal(8, 8, 15, 15 / 16),
        "the ring has p - 1 steps in each half, not p": equal(8, 8, 32, 2),
        "a tree adds up, and then distributes: both halves cost": equal(4, 4, 30, 30 / 16),
        "a tree of 16 ranks has log2 16 levels": equal(32, 32, 30, 30 / 16),
        "this is a number of float32 weights; bytes are asked for": right / 4,
        "β is seconds per byte: it is the inverse of the bandwidth": right / BANDWIDTH**2,
    }
    must_be(answer, right, "the size in bytes", mistakes)
    return "some 18,000 weights in float32: the gradients of most networks are far larger"

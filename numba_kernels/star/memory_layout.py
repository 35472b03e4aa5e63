"""The memory layout of a star: rows that hub and leaves share, and arrays for compiled code."""

# Words (int64) of a row. Words of different writers are two cache lines apart, as processors fetch
# pairs of lines.
REQUEST, SLEEPING = 0, 1  # written by the leaf
ANSWERED, JOB = 16, 17  # written by the hub
TICKETS, RINGS, HUB_SLEEPS = 0, 16, 17  # in the hub's own row
FIRST_BLOCK = 32
CONTROL, HEAD = 8, 16  # words of a block before its vector; the first word holds flags
# Flags of a request: the vector was sent; an answer's vector is wanted; `out` is the vector of the
# second block instead of the first; the answer's vector shall take the place of the one sent.
SENT, WANTED, SECOND, SWAP = 1, 2, 4, 8

# The state of a star's kernels, in an array of integers (node_array.py says why).
HUB, MINE, SPINS, PATIENCE, AT, TICKET, HELPED, HELD = range(8)
# The hub's table of leaves, shape (3, ranks): address of each leaf's row (0: none, or dropped), the
# ticket of its request served last, and the ticket of a request that arrived as a message.
ROWS, SERVED, ARRIVED = range(3)

# Return values of kernels besides READY and WAIT (board.py): there is a job for this leaf; these
# are not the vectors of a request.
WORK, NO = 2, 3

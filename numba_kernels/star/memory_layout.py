"""Where everything lies in a star's memory: rows that hub and leaves share, and small arrays for
compiled code."""

# Words (int64) of a row. Lines of different writers are two apart: the processor fetches pairs.
REQUEST, SLEEPING = 0, 1  # by the leaf
ANSWERED, JOB = 16, 17  # by the hub
TICKETS, RINGS, HUB_SLEEPS = 0, 16, 17  # in the hub's own row
FIRST_BLOCK = 32
CONTROL, HEAD = 8, 16  # words of a block before its vector; the first says what FLAGS say
# Flags of a request: the vector comes along; an answer's vector is wanted; `out` is the second
# block's vector, not the first's; the answer's shall come in its place.
SENT, WANTED, SECOND, SWAP = 1, 2, 4, 8

# What a star's kernels work with, in an array of integers (see node_array.py for why).
HUB, MINE, SPINS, PATIENCE, AT, TICKET, HELPED = range(7)
# What the hub knows of leaves, shape (3, ranks): the address of each one's row (0: it has none, or
# none any more), the ticket of its request that was taken up last, and of one that came as message.
ROWS, SERVED, ARRIVED = range(3)

# What kernels return besides READY and WAIT (board.py): there is a job for this leaf; these are not
# the vectors of a request.
WORK, NO = 2, 3

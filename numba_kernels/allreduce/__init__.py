"""Allreduce: every rank brings a vector, every rank leaves with the reduction of all of them.

One file per algorithm, all behind one call:

    allreduce(team, x, op="sum", algorithm="auto")

"auto" (dispatch.py) uses the memory that the ranks share where all are on one node: in place where
`x` lies in it (`team.empty`), through it in pieces otherwise, and with a single barrier for short
vectors. Between nodes it takes two_level, which chooses among ways that give the same bits.

naive, tree, ring, recursive_doubling, rabenseifner   by messages: the steps of a rank, which
                                                      kernel carries out; mpi: the library's own
shared_memory, staged, short                          within a node
two_level                                             within nodes, then between them:
    leaders, pairwise, learning                       for short vectors, for long ones, its choice
schedules                                             which messages each of the first five sends
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=[
        "calls", "costs", "dispatch", "elementwise", "fold", "gather", "kernel", "leaders",
        "learning", "machine", "measure", "messages", "mpi", "naive", "pairwise", "rabenseifner",
        "recursive_doubling", "ring", "schedules", "shared_memory", "short", "staged", "steps",
        "tree", "two_level",
    ],
    submod_attrs={"dispatch": ["ALGORITHMS", "MESSAGES", "allreduce"]},
)  # fmt: skip

"""Which rank plays which role: the coordinator of a search, masters, sub-masters, workers.

    from tutorial_dl.layout import Layout

    layout = Layout(masters=2, workers=3, devices=2)
    print(layout)           # a tree, in text; the last line of a notebook cell draws it
    layout.ranks            # 15
    layout.roles()[8]       # Role(rank=8, role='sub_master', ...)

Numbers and names only: there is no MPI in this package. Teams are made from the lists of ranks
that `hub_ranks` and `worker_ranks` give.
"""

from tutorial_dl.layout.layout import Layout
from tutorial_dl.layout.roles import Role, hub_ranks, worker_ranks

__all__ = ["Layout", "Role", "hub_ranks", "worker_ranks"]

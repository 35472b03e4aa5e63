"""The role of each rank: coordinator of a search, master, sub-master or worker.

    from tutorial_dl.layout import Layout

    layout = Layout(masters=2, workers=3, devices=2)
    print(layout)           # a tree, in text; the last line of a notebook cell draws it
    layout.ranks            # 15
    layout.roles()[8]       # Role(rank=8, role='sub_master', ...)

This package holds numbers and names only, no MPI. Teams are made from the lists of ranks that
`hub_ranks` and `worker_ranks` return.

layout.py, counts.py  how many ranks there are; roles.py what each does, placing.py on which node
axes.py               the numbering of ranks; tree.py and figure.py show a layout
"""

from tutorial_dl.layout.layout import Layout
from tutorial_dl.layout.roles import Role, hub_ranks, worker_ranks

__all__ = ["Layout", "Role", "hub_ranks", "worker_ranks"]

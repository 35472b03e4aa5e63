"""ipyparallel engines that are ranks of one MPI world, for %%px cells in a notebook.

from tutorial_dl import cluster
c = cluster.start(n=4)

ipyparallel is imported at first use, so the command line and its help start without it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "engines": ["Cluster", "Engine"],
        "listing": ["list", "stop"],
        "notebook": ["join", "start"],
        "profile": ["ProfileError"],
        "registry": ["ClusterError"],
    },
)

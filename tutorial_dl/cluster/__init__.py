"""ipyparallel engines that are ranks of one MPI world, for %%px cells in a notebook.

from tutorial_dl import cluster
c = cluster.start(n=4)

ipyparallel is imported at first use, so the command line and its help start without it.
"""

import importlib

_WHERE = {
    "Cluster": "engines",
    "ClusterError": "registry",
    "Engine": "engines",
    "ProfileError": "profile",
    "join": "notebook",
    "list": "listing",
    "start": "notebook",
    "stop": "listing",
}
__all__ = list(_WHERE)


def __getattr__(name: str):
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)

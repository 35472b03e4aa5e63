"""ipyparallel engines that are ranks of one MPI world, for %%px cells in a notebook.

from tutorial_dl import cluster
c = cluster.start(n=4)
"""

from tutorial_dl.cluster.engines import Cluster, ClusterError, Engine, start

__all__ = ["Cluster", "ClusterError", "Engine", "start"]

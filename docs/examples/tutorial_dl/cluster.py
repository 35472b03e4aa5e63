"""Examples of tutorial_dl.cluster."""

# %% Start two ranks from Python
# shows: start, Cluster, Engine, list, join, stop
from tutorial_dl import cluster

c = cluster.start(n=2, name="example")  # a Cluster; in a notebook, %%px cells run on it
c["x"] = 3
print(c.run(lambda: 2 + 2), c["x"])
# An Engine for each rank:
print([entry.name for entry in cluster.list()], c.status()[0].rank)
print(cluster.join("example") is not None)
cluster.stop("example")

# %% Errors of one line
# shows: ClusterError, ProfileError
from tutorial_dl.cluster import ClusterError, ProfileError, join, start

for call in (lambda: join("nobody"), lambda: start(n=2, profile="nowhere")):
    try:
        call()
    except (ClusterError, ProfileError) as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0][:60]}")

"""ipyparallel engines that are ranks of one MPI world, for %%px cells in a notebook.

from tutorial_dl import cluster
c = cluster.start(n=4)

ipyparallel is imported at first use, so the command line and its help start without it.

notebook.py, listing.py   what users call; engines.py: `Cluster`
variables.py              c["x"] and c.run(function); engine_values.py, parcels.py: on the engines,
                          and on the way; hints.py: a name that only the notebook has
capacity.py               how many engines fit; one_line.py, before_start.py: errors of one line
view.py, tables.py        its table of engines; engine_states.py, rank_words.py: their words
registry.py, lease.py     which clusters there are, and how long one stays
profile.py, submit.py     how and where engines run; batch_job.py, job_runner.py: within a job
startup.py, processes.py  the processes of a cluster; process_watch.py: which of them ended first
client.py                 ipyparallel's client; engine_hooks.py, engine_activity.py,
                          engine_probe.py: what engines do
magics.py                 cells; cell_runner.py, running_cell.py, cell_errors.py, traced_cell.py:
                          starting one, waiting for it, why it failed, a drawing of it
"""

import lazy_loader

from . import before_start

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
before_start.register()

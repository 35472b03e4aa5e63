"""ipyparallel engines that are ranks of one MPI world, for %%px cells in a notebook.

from tutorial_dl import cluster
c = cluster.start(n=4)

ipyparallel is imported at first use, so the command line and its help start without it.

notebook.py               what users call, and how many engines fit; engines.py: `Cluster`
tables.py, view.py        tables of all clusters, and of a cluster's engines
variables.py              c["x"] and c.run(function); parcels.py: how values travel
registry.py, lease.py     which clusters there are, and how long one stays
profile.py                how and where engines run; submit.py: in a job of a batch system
                          (batch_job.py); job_runner.py, mpi_launcher.py: programs within it
processes.py              a cluster's processes: how they start, and what ends too early
process_watch.py          which engine ended first; job_watch.py: whether their job has ended
engine.py, controller.py  ipyparallel's programs, with what we add; __main__.py runs them
engine_*.py, preload.py   on the engines; protocol.py: what they and the notebook tell each other
client.py                 ipyparallel's client, which also asks what engines do
magics.py                 cells; cell_runner.py, running_cell.py: starting one, waiting for it;
                          cell_errors.py: why it failed
cell_output.py            what the ranks of a cell have shown; cell_layout.py: in which order it is
                          shown; cell_display.py shows it
rank_status.py            what ranks do, in words
"""

import lazy_loader

from . import placeholder_magics

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "engines": ["Cluster", "Engine"],
        "tables": ["list", "stop"],
        "notebook": ["join", "start"],
        "profile": ["ProfileError"],
        "registry": ["ClusterError"],
    },
)
placeholder_magics.register()

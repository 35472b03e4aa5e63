"""ipyparallel engines that are ranks of one MPI world, for %%px cells in a notebook.

from tutorial_dl import cluster
c = cluster.start(n=4)

ipyparallel is imported at first use, so the command line and its help start without it.

notebook.py, listing.py   what users call; engines.py: `Cluster`; capacity.py: how many engines fit
variables.py              c["x"] and c.run(function); parcels.py: how values travel
view.py, tables.py        its table of engines
registry.py, lease.py     which clusters there are, and how long one stays
profile.py, submit.py     how and where engines run; mpi_launcher.py: by which launcher
batch_job.py              a job of a batch system; job_runner.py: within it; job_watch.py,
                          job_end.py: whether it has ended, and why
startup.py, processes.py  the processes of a cluster; process_watch.py: which of them ended first
controller.py, engine.py  ipyparallel's programs, with what we add; __main__.py runs them
engine_*.py, preload.py   on the engines; protocol.py: what they and the notebook tell each other
client.py                 ipyparallel's client; engine_probe.py: asking engines
magics.py                 cells; cell_runner.py, running_cell.py: starting one, waiting for it;
                          cell_errors.py, hints.py: why it failed; traced_cell.py: a drawing of it
cell_display.py           shows the output of a cell; cell_output.py, rank_screen.py: what its
                          ranks printed; cell_layout.py: in which order
rank_status.py            what ranks do, in words, below a cell and in the table
"""

import lazy_loader

from . import placeholder_magics

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
placeholder_magics.register()

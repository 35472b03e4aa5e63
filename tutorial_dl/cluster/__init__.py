"""ipyparallel engines that are ranks of one MPI world, for %%px cells in a notebook.

from tutorial_dl import cluster
c = cluster.start(n=4)

ipyparallel is imported at first use, so the command line and its help start without it.

notebook.py, listing.py   what users call; engines.py: `Cluster`
variables.py              c["x"] and c.run(function); engine_values.py, parcels.py: on the engines,
                          and on the way
capacity.py               how many engines fit; one_line.py, before_start.py: errors of one line
view.py, tables.py        its table of engines; engine_states.py, rank_words.py: their words
registry.py, lease.py     which clusters there are, and how long one stays
profile.py, submit.py     how and where engines run; mpi_launcher.py: by which launcher
batch_job.py              a job of a batch system; job_runner.py: within it; job_watch.py,
                          job_end.py: whether it has ended, and why; heartbeats.py: a node that is
                          cut off
startup.py, processes.py  the processes of a cluster; process_watch.py: which of them ended first
client.py                 ipyparallel's client
engine_hooks.py           on the engines: what they do, with engine_activity.py and text_bars.py;
                          engine_end.py: how they end; engine_probe.py: asking them
magics.py                 cells; cell_runner.py, running_cell.py, traced_cell.py: starting one,
                          waiting for it, a drawing of it; cell_errors.py, hints.py: why it failed
cell_display.py           shows the output of a cell; cell_output.py, rank_screen.py: what its
                          ranks printed; cell_layout.py: in which order; cell_status.py: one line
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

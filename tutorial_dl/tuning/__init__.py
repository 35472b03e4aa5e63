"""Hyper-parameter search: many trainings at once, each on ranks of its own.

space.py, options.py       what is searched; whether every set of values can be trained
samplers.py                by name; bayesian.py and gaussian_process.py, evolutionary.py,
                           evolution_strategy.py; their base, and events of trials: proposing.py
study.py, described.py     the trials, kept by Optuna; what a search that goes on must keep
coordinator.py             keeps the books; hands trials to whoever is free; mpi_port.py: to ranks
leader.py                  chooses a group's next set, from all results
lifelines.py               notices the ends of processes on other machines
cell.py                    the side of the ranks that train
folds.py, merit.py         cross-validation; figures of merit
search.py                  `Search`: what to search, and how
running.py                 a search on the ranks of an MPI job; report.py, figures.py: its page
notebook.py, on_engine.py  a search from a notebook, on the engines of its cluster
live_view.py, drawing.py   what it shows meanwhile; pictures, also for the report
simulation.py              coordinator and leaders on a simulated clock
problems.py                functions to search on, and one search on one of them
"""

import sys
import warnings

import lazy_loader

if "ipykernel.zmqshell" in sys.modules:  # in a notebook, this warns where there are no widgets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tqdm.auto  # noqa: F401  (Optuna imports it)

_attached, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["samplers"],
    submod_attrs={
        "notebook": ["tune"],
        "running": ["run"],
        "search": ["Search"],
        "space": ["Space"],
        "study": ["Study"],
    },
)


GONE = {
    "Parameter": "write Space.of({name: {'type': ...}}), or Space.of({name: distribution}) with a "
    "distribution of Optuna's",
}


def __getattr__(name):
    if name in GONE:
        raise ImportError(f"tuning.{name} is gone: {GONE[name]}")
    return _attached(name)

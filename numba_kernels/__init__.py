"""Kernels for distributed deep learning: collectives and optimizers on flat vectors.

Needs numpy, numba and mpi4py only, and has never heard of a neural network.

    from numba_kernels import Team, optimizers
    team = Team()
    x = team.empty(1_000_000)          # in memory that the node's ranks share
    team.allreduce(x, op="mean")       # in place; never hangs
"""

from importlib import import_module

__all__ = ["DeadlineError", "MismatchError", "PeerError", "Team", "TeamError", "compiled"]

_HOMES = {"Team": "team", "compiled": "compile"} | dict.fromkeys(
    ["DeadlineError", "MismatchError", "PeerError", "TeamError"], "errors"
)


def __getattr__(name):
    # Lazily: `import numba_kernels` alone must not initialise MPI.
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name in ("allreduce", "compression", "fused", "launch", "optimizers"):
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Kernels for distributed deep learning: collectives and optimizers on flat vectors.

It needs only numpy, numba and mpi4py, and does not depend on any deep learning library.

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
    # Lazy, because `import numba_kernels` alone must not initialise MPI.
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name in ("allreduce", "compression", "fused", "launch", "optimizers"):
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

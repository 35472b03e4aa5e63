"""Kernels for distributed deep learning: collectives and optimizers on flat vectors.

It needs only numpy, numba and mpi4py, and does not depend on any deep learning library.

    from numba_kernels import Team, optimizers
    team = Team()
    x = team.empty(1_000_000)          # in memory that the node's ranks share
    team.allreduce(x, op="mean")       # in place; never hangs
"""

import lazy_loader

# Lazily: `import numba_kernels` alone must not initialise MPI.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=[
        "allreduce", "bench", "compression", "environment", "errors", "fused", "jit", "launch",
        "optimizers", "shared", "spans", "star", "step", "team", "trace",
    ],
    submod_attrs={
        "errors": ["DeadlineError", "MismatchError", "PeerError", "TeamError"],
        "jit.compile": ["compiled"],
        "team.team": ["Team"],
    },
)  # fmt: skip

"""Starting ranks on this machine, and ending everything that was started.

ranks.py            runs a Python program on n ranks, and shows what they print
mpiexec.py          which MPI mpi4py loads, and which mpiexec belongs to it
guard.py            a small process that ends all processes below it
open_mpi.py         settings with which Open MPI starts ranks as MPICH does
open_mpi_rank.py    becomes a rank of Open MPI, whose output goes to our pipes
remarks.py          takes mpiexec's own remarks out of what ranks print
privacy.py          settings with which MPI offers nothing to others
fork_server.py      imports what ranks need once, and forks them
forked_rank.py      stands for a forked rank towards mpiexec
rank_supervisor.py  a small process per rank, which keeps its place when the rank is killed
"""

import lazy_loader

from ..environment import (
    MOST_RANKS,
    THREAD_VARIABLES,
    check_ranks,
    set_threads,
    thread_environment,
    threads_per_rank,
    usable_cores,
)
from ..launcher import launched, local_ranks, rank, under_mpi

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["guard", "mpiexec", "open_mpi", "privacy"],
    submod_attrs={
        "mpiexec": ["LaunchError", "environment_without_ranks", "find_mpiexec", "mpi_library"],
        "ranks": [
            "GUARD",
            "can_be_lost",
            "guarded",
            "is_first_to_tell",
            "is_open_mpi",
            "mpiexec_command",
            "rank_environment",
            "run_ranks",
            "status_of",
        ],
    },
)
__all__ += [
    "MOST_RANKS", "THREAD_VARIABLES", "check_ranks", "launched", "local_ranks", "rank",
    "set_threads", "thread_environment", "threads_per_rank", "under_mpi", "usable_cores",
]  # fmt: skip

"""Examples of numba_kernels.launch."""

# %% Start two ranks
# shows: run_ranks, LaunchError, check_ranks, MOST_RANKS
from numba_kernels import launch

code = "from mpi4py import MPI; MPI.COMM_WORLD.rank or print(MPI.COMM_WORLD.size, 'ranks')"
ended = launch.run_ranks(2, ["-c", code], capture=True)
print(ended.stdout.strip(), "status", ended.returncode)
try:
    launch.check_ranks(launch.MOST_RANKS + 1)
except ValueError as error:
    print(error)
print(issubclass(launch.LaunchError, RuntimeError))  # no mpiexec, or a wrong one

# %% Which MPI, and which mpiexec
# shows: mpi_library, find_mpiexec, is_open_mpi, mpiexec, mpiexec_command
from pathlib import Path

from numba_kernels import launch

library = launch.mpi_library()
print(library.name, launch.is_open_mpi(), Path(launch.find_mpiexec()).name)
print([Path(word).name for word in launch.mpiexec_command(4, ["python", "train.py"])])
print(launch.mpiexec.LaunchError is launch.LaunchError)

# %% Is this process a rank?
# shows: launched, under_mpi, local_ranks, can_be_lost, is_first_to_tell, rank, status_of
from numba_kernels import launch

print(launch.launched(), launch.under_mpi(), launch.rank(), launch.local_ranks())
# On a rank of run_ranks(..., survive=True), can_be_lost() says that others can go on without it,
# and status_of(2) how rank 2 has ended, which one of them tells: is_first_to_tell().

# %% Threads for each rank
# shows: threads_per_rank, thread_environment, set_threads, usable_cores, THREAD_VARIABLES
from numba_kernels import launch

print(launch.threads_per_rank(launch.usable_cores()))  # all cores are used by one rank each
print(launch.THREAD_VARIABLES)
print(launch.thread_environment(2)["OMP_NUM_THREADS"])
print(launch.set_threads() >= 1)  # a rank calls it before it imports anything that computes

# %% The environment and the guard of ranks
# shows: rank_environment, environment_without_ranks, guard, guarded, GUARD, privacy, open_mpi
from numba_kernels import launch

print(launch.environment_without_ranks({"PMI_RANK": "3", "HOME": "/home/me"}))
print(len(launch.rank_environment(4)) > 0)
words = launch.guarded(["mpiexec", "-n", "4", "a"], 1)  # GUARD ends all processes below it
print(launch.GUARD.name, launch.GUARD.name in " ".join(words), launch.guard.POLL, "s")
print(sorted(launch.privacy.settings({}))[:1])  # transports that no other user can reach
print(sorted(launch.open_mpi.settings({}))[:1])

"""Settings with which MPI offers nothing to other users of a machine, or to other machines.

MPI asks nobody for a password. Whoever reaches the TCP port that a rank listens on may send it
messages, and UCX, which carries MPICH's messages, also makes segments of System V shared memory
that the user's whole group may read and write (mode 0660).

- Ranks that stay on one machine need neither: MPICH's own shared memory has mode 0600, and so has
  that of UCX's other transports.
- Ranks on several nodes do need ports, which everybody in the cluster's network can reach.
"""

import re
from collections.abc import Mapping

ANYWHERE = {"UCX_TLS": "^sysv"}  # all transports but this one
ON_THIS_MACHINE = {
    "UCX_TLS": "^sysv,tcp",
    # Other transports, and Open MPI's: on the loopback interface only.
    "UCX_NET_DEVICES": "lo",
    "FI_TCP_IFACE": "lo",
    "FI_SOCKETS_IFACE": "lo",
    # Open MPI: shared memory only; each rank would listen for TCP. Its mpiexec listens on all
    # interfaces: it ignores the loopback interface where there is another, and fails if that is
    # all that it is allowed (PRRTE 3: github.com/openpmix/prrte/pull/2788).
    "OMPI_MCA_btl": "^tcp,ofi,uct",
    "PMIX_MCA_ptl_tcp_if_include": "lo",
}
# With these, mpiexec may start ranks on other machines.
ELSEWHERE = re.compile(r"SLURM_JOB_?ID|PBS_(JOBID|NODEFILE)|LSB_JOBID|HYDRA_HOST_FILE|PE_HOSTFILE")


def stays_here(env: Mapping[str, str]) -> bool:
    """Return whether ranks stay on this machine: `env` names no batch job and no hosts."""
    return not any(ELSEWHERE.fullmatch(name) for name in env)


def settings(env: Mapping[str, str], here: bool | None = None) -> dict[str, str]:
    """Return variables for ranks that `env` lacks.

    `here`: the ranks stay on this machine; by default, unless `env` names a batch job or hosts.
    """
    if here is None:
        here = stays_here(env)
    wanted = ON_THIS_MACHINE if here else ANYWHERE
    return {name: value for name, value in wanted.items() if name not in env}

"""Two nodes on one machine: network namespaces with a link of 1 Gbit/s between them.

As root, with `ip` and `tc` (iproute2) and MPICH, the ranks of a node run in a namespace of their
own, and what they send to the other node goes through TCP and through a token bucket filter in each
direction. Anything else that may send, such as the MPI library itself, does so under the same
conditions. Elsewhere, NUMBA_KERNELS_NODE=2 makes our kernels treat the halves of the ranks as
nodes; messages then go through the memory of this machine.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from numba_kernels import launch
from numba_kernels.launch.mpiexec import FAMILIES, mpi_library
from numba_kernels.launch.ranks import guarded, rank_environment

RATE, BYTES_PER_SECOND = "1gbit", 1e9 / 8  # of the link, each way
ADDRESSES = "10.77.8.1", "10.77.8.2"  # in the namespaces only
CABLE = "cable"
LABEL = "NUMBA_KERNELS_BENCH_NODES"  # an environment variable: how the nodes are made
EMULATED, PRETENDED = "2 nodes, 1 Gbit/s", "2 nodes of one memory"

# mpiexec calls it as it would call ssh, with a host and a command for its shell.
LAUNCHER = """#!/bin/sh
[ "$1" = -x ] && shift
host=$1; shift
case $host in {first}) node={one};; *) node={other};; esac
exec ip netns exec $node sh -c "$*"
"""


def possible() -> bool:
    """Whether this process can make the namespaces, and MPI's mpiexec starts ranks in them."""
    tools = shutil.which("ip") and shutil.which("tc")
    return bool(os.geteuid() == 0 and tools and FAMILIES.get(mpi_library().name) == "MPICH")


class TwoNodes:
    """A context: two namespaces while it lasts. Raises CalledProcessError if they can't be made."""

    def __enter__(self):
        self.names = [f"node{os.getpid()}{letter}" for letter in "ab"]
        self.folder = Path(tempfile.mkdtemp(prefix="two-nodes-"))
        one, other = self.names
        try:
            self._do(f"ip netns add {one}")
            self._do(f"ip netns add {other}")
            self._do(f"ip link add {CABLE} netns {one} type veth peer name {CABLE} netns {other}")
            for name, address in zip(self.names, ADDRESSES, strict=True):
                self._do(f"ip -n {name} addr add {address}/24 dev {CABLE}")
                for device in ("lo", CABLE):
                    self._do(f"ip -n {name} link set {device} up")
                limit = f"tbf rate {RATE} burst 64kb latency 50ms"
                self._do(f"ip netns exec {name} tc qdisc add dev {CABLE} root {limit}")
            self._wait_until_up()
        except BaseException:
            self.__exit__()
            raise
        self.launcher = self.folder / "launcher"
        self.launcher.write_text(LAUNCHER.format(first=ADDRESSES[0], one=one, other=other))
        self.launcher.chmod(0o700)
        return self

    def __exit__(self, *error) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        shutil.rmtree(self.folder)

    def _do(self, words: str) -> str:
        return subprocess.run(words.split(), check=True, capture_output=True, text=True).stdout

    def _wait_until_up(self) -> None:
        """UCX takes a device only when Linux says that it is up, up to a second after it is set."""
        end = time.monotonic() + 10
        while not all("state UP" in self._do(f"ip -n {n} link show {CABLE}") for n in self.names):
            if time.monotonic() > end:
                raise subprocess.CalledProcessError(1, "waiting for the link")
            time.sleep(0.02)

    def run(self, per_node: int, argv: Sequence[str], env: dict, timeout: float):
        """As `launch.run_ranks` with `per_node` ranks on each node."""
        words = [
            *("ip", "netns", "exec", self.names[0], launch.find_mpiexec()),
            *("-launcher", "ssh", "-launcher-exec", str(self.launcher), "-iface", CABLE),
            *("-hosts", ",".join(ADDRESSES), "-ppn", str(per_node), "-n", str(2 * per_node)),
            *(sys.executable, *argv),
        ]
        # Only TCP between the nodes: MPI would find out that they share a memory.
        over_tcp = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": CABLE, "FI_TCP_IFACE": CABLE}
        settings = over_tcp | env | {"NUMBA_KERNELS_NODE": str(per_node)}
        whole = rank_environment(2 * per_node, settings)
        return subprocess.run(guarded(words, os.getpid()), env=whole, timeout=timeout, check=False)


def run(ranks: int, argv: Sequence[str], env: dict, timeout: float):
    """Run Python with `argv` on two nodes, each of half the `ranks`, emulated as well as it goes.

    The ranks find in NUMBA_KERNELS_BENCH_NODES which of the two ways it is.
    """
    per_node = ranks // 2
    if possible():
        try:
            with TwoNodes() as nodes:
                return nodes.run(per_node, argv, env | {LABEL: EMULATED}, timeout)
        except subprocess.CalledProcessError:
            pass  # a container may have no right to make namespaces
    env = env | {LABEL: PRETENDED, "NUMBA_KERNELS_NODE": str(per_node)}
    return launch.run_ranks(ranks, argv, env=env, timeout=timeout)

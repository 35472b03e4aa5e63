"""Where ranks run, as Horovod's launcher is told: "localhost:4", or "node1:2,node2:2"."""

import socket

LOCAL = ("localhost", "127.0.0.1", "::1")


def ranks_on(hosts: str | None, ranks: int | None) -> int:
    """The number of ranks to start on this machine; without `ranks`, one for each slot of `hosts`.

    Raises:
        ValueError: If a host is another machine, or has too few slots, or nothing says how many.

    Example:
        >>> ranks_on("localhost:4", None), ranks_on("localhost:4", 3), ranks_on(None, 2)
        (4, 3, 2)
    """
    if hosts is None:
        if ranks is None:
            raise ValueError("the number of ranks is missing: give -np 4 or -H localhost:4")
        return ranks
    slots = 0
    for one in hosts.split(","):
        host, colon, number = one.strip().rpartition(":")
        if not (colon and host and number.isdigit() and int(number)):
            raise ValueError(f"hosts {hosts!r}: expected localhost:4, a name and its slots")
        if host not in (*LOCAL, socket.gethostname(), socket.getfqdn()):
            raise ValueError(
                f"host {host!r} is another machine, but ranks start on this one only: on several "
                "nodes, use the site's mpiexec or srun instead (docs/clusters.md)"
            )
        slots += int(number)
    if ranks is not None and ranks > slots:
        raise ValueError(f"{ranks} ranks, but hosts {hosts!r} has {slots} slots")
    return slots if ranks is None else ranks

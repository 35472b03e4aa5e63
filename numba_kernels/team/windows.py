"""Find out which ranks share memory, and allocate arrays in it: the collective part of windows."""

import os
from contextlib import suppress

import numpy as np

from ..allreduce import calls, messages
from ..allreduce.two_level import Lanes
from ..shared import window
from ..shared.node_array import WORDS, node_array, shared_bytes


def find_node(team, shared: bool, patience: float) -> None:
    """Find out which ranks share memory by sharing the board and the stage. Collective."""
    token = window.node_token() if shared else -1 - team.rank
    table = team.gather([token, team.rank // ranks_a_node(team.size), *window.cpu_mask()])
    alike = (table[:, :2] == table[team.rank, :2]).all(axis=1)
    candidates = tuple(map(int, np.flatnonzero(alike)))
    leader, place, ranks = candidates[0], candidates.index(team.rank), len(candidates)
    nbytes = window.row_bytes(shared_bytes(ranks), np.dtype("uint8"))
    made, name = -1, 0
    try:
        if team.rank == leader:
            made, name = window.create(nbytes)
        pid, descriptor, name = map(int, team.gather([os.getpid(), made, name])[leader])
        memory = window.attach(pid, descriptor, name, nbytes)
    except OSError as error:
        if made >= 0:
            os.close(made)
        raise RuntimeError(
            f"this process has no further file ({error.strerror}): every team keeps one open; "
            "close() those that are no longer used"
        ) from None
    attached = team.gather([memory is not None, leader])
    if made >= 0:
        os.close(made)
    # Memory is shared by all candidates or by none; sharing among some of a node is of no use.
    leaders = attached[:, 1].copy()
    for first in set(leaders):
        if not attached[leaders == first, 0].all():
            leaders[leaders == first] = np.flatnonzero(leaders == first)
    nodes = [tuple(map(int, np.flatnonzero(leaders == first))) for first in sorted(set(leaders))]
    here = next(i for i, node in enumerate(nodes) if team.rank in node)
    if nodes[here] != candidates:
        place, ranks, memory = 0, 1, np.zeros(shared_bytes(1), np.uint8)
    team.nodes, team.node, team.place = nodes, nodes[here], place
    team.single_node = len(nodes) == 1
    # Ranks of several nodes may share this machine's cores where NUMBA_KERNELS_NODE makes nodes.
    local = [team.rank, *team.processes]
    cores = sum(int(word).bit_count() for word in np.bitwise_or.reduce(table[local, 2:]))
    crowded = len(local) > cores
    team.board = memory[: ranks * WORDS * 8].view(np.int64).reshape(ranks, WORDS)
    team.window = window.Window(place, ranks)
    team.node_array, team.tile = node_array(
        memory, ranks, place, team.window.table, crowded, patience
    )

    def route(members):
        team.routes.append(messages.route(team.comm, members, 0 if crowded else 1000, patience))
        return team.routes[-1]

    route(range(team.size))
    team.lanes = Lanes(nodes, here, place, route, team.routes[0])


def ranks_a_node(ranks: int) -> int:
    """Return the most ranks that count as one node: NUMBA_KERNELS_NODE, or all if it is not set."""
    said = os.environ.get("NUMBA_KERNELS_NODE", str(ranks))
    if not said.isdecimal() or int(said) < 1:
        raise ValueError(f"NUMBA_KERNELS_NODE must be a whole number, at least 1, got {said!r}")
    return int(said)


def empty(team, n: int, dtype, common: bool = False) -> np.ndarray:
    dtype = np.dtype(dtype)
    if not calls.known(dtype):
        raise TypeError(f"dtype of a window must be one of {', '.join(calls.DTYPES)}, got {dtype}")
    if n < 0:
        raise ValueError(f"elements of a window must be at least 0, got {n}")
    team.ready()
    leader, ranks = team.node[0], len(team.node)
    row = window.row_bytes(n, dtype)
    stride, nbytes = (0, row) if common else (row, row * ranks)  # bytes row to row; of all rows
    made, name = -1, 0
    if team.rank == leader and ranks > 1:
        with suppress(OSError, OverflowError):
            made, name = window.create(nbytes)
    call = calls.encode("empty", dtype)
    kind, full = calls.DTYPES.index(dtype.name), team.window.full
    try:
        # Every rank takes part in all three rounds, even if its own part has failed.
        table = team.gather([os.getpid(), made, name, full, n, kind, common], call, n)
        for peer in range(team.size):
            if (table[peer, 4:] != table[team.rank, 4:]).any():
                other = calls.encode("empty", calls.DTYPES[table[peer, 5]])
                theirs = calls.describe(other, table[peer, 4])
                raise team.mismatch(peer, theirs + ", common" * int(table[peer, 6]))
        pid, descriptor, name = map(int, table[leader, :3])
        left = team.gather([window.available()], call, n)[list(team.node), 0].min()
        memory = None
        if ranks > 1 and descriptor >= 0 and not full and nbytes <= left:
            place = team.node.index(team.rank) * stride
            if window.reserve(pid, descriptor, name, place, row):
                with suppress(OSError):
                    memory = window.attach(pid, descriptor, name, nbytes)
        enough = memory is not None if ranks > 1 else row <= left
        got = team.gather([enough], call, n)[:, 0]
        if table[:, 3].any():
            raise MemoryError(
                f"a team can have at most {window.MOST} windows at a time: drop some arrays first"
            )
        if not got.all():
            raise MemoryError(
                f"no memory for a window of {nbytes // row} x {row / 2**20:.1f} MiB: "
                f"{left / 2**20:.0f} MiB are left on rank {team.rank}'s node"
            )
    finally:
        if made >= 0:
            os.close(made)
    if memory is None:
        return window.aligned(n, dtype)
    return team.window.add(memory, stride, row, dtype)[:n]

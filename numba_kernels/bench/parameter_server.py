"""Benchmark of a parameter server on a Star against a plain one on MPI's Send and Recv.

One rank is the master, the others are workers. A cycle has the operations of a training step:

    a worker:   writes its gradient | sends it, waits, receives the new weights | reads them
    the master: for each request: updates its weights by the gradient, answers with them

    plain:      worker  Send(gradient), Recv(weights)
                master  Recv(gradient, ANY_SOURCE), optimizer.update, Send(weights)

Both use the same vector and rule, in turns. Times are per update: the time of a cycle divided by
the number of workers. Rows "full cycle" contain all of it; from the others, the time to write and
read the same vectors without a server is subtracted, as in other rows of this benchmark.

Ours is measured in three forms: on the node (gradient and weights lie in the Star's memory and
change places at each answer, as for Downpour SGD), on the node in place (there is one vector, as
for elastic averaging, EASGD), and over messages, as between nodes.
"""

import numpy as np
from mpi4py import MPI

from ..jit.compile import REASSOCIATE, compiled
from ..optimizers import SGD, Adam
from ..optimizers.serve import serve
from ..star.star import Star
from ..team.team import Team
from .rows import FULL_CYCLE, row
from .step import name_of
from .timing import copy_bandwidth, interleaved, net

SIZES = (669_706,)  # a network of 784-512-512-10
FULL_SIZES = (10_000, 100_000, *SIZES, 10_000_000)
WAIT = 60.0  # seconds that the master waits for a request


def rows(seconds: float, full: bool) -> list[dict]:
    team = Team()
    workers, bandwidth = team.size - 1, copy_bandwidth(team.barrier)
    messages = Team(shared=False)
    cases = [(rule, n) for n in (FULL_SIZES if full else SIZES) for rule in (SGD(0.01), Adam())]
    found = []
    for rule, n in cases:
        stars = {
            "node": Star(team, n, n, kept=(1 + rule.slots) * n),
            "node, in place": Star(team, n, n, in_place=True, kept=(1 + rule.slots) * n),
            "messages": Star(messages, n, n),
        }
        calls = [cycle(star, rule, n) for star in stars.values()]
        calls += [plain_cycle(rule, n), nothing(team.rank, n)]
        times = interleaved(calls, team.barrier, seconds / len(cases)).T / workers
        *ours, peer, only_vectors = times
        for name, own in zip(stars, ours, strict=True):
            for what, mine, theirs in (
                ("parameter server", net(own, only_vectors), net(peer, only_vectors)),
                (FULL_CYCLE, own, peer),
            ):
                key = (what, team.size, {"parameters": n}, f"{name}, {name_of(rule)}")
                peers = ("MPI Send + Recv", theirs)
                found.append(row(*key, mine, *peers, moved(n, rule), bandwidth))
        for star in stars.values():
            star.close()
        team.barrier()
    return found


# This rank's part of a cycle: on a star, with Send and Recv, and without a server.


def cycle(star: Star, rule, n: int):
    if not star.is_hub:
        source = np.full(n, 1e-3, np.float32)

        def work():
            write(star.out, source)
            star.ask(swap=True)
            read(star.into)

        return work
    weights, state = star.keep(n), rule.init(n)
    weights[:] = 1
    star.adopt(state)

    def master():
        for _ in range(star.team.size - 1):
            leaf = star.next(WAIT)
            serve(rule, weights, star.sent(leaf), state, star.answer_vector(leaf))
            star.answer(leaf)

    return master


def plain_cycle(rule, n: int):
    comm, gradient, weights = MPI.COMM_WORLD, np.zeros(n, np.float32), np.ones(n, np.float32)
    if comm.rank > 0:
        source = np.full(n, 1e-3, np.float32)

        def work():
            write(gradient, source)
            comm.Send(gradient, 0)
            comm.Recv(weights, 0)
            read(weights)

        return work
    state, status = rule.init(n), MPI.Status()

    def master():
        for _ in range(comm.size - 1):
            comm.Recv(gradient, MPI.ANY_SOURCE, status=status)
            rule.update(weights, gradient, state)
            comm.Send(weights, status.source)

    return master


def nothing(rank: int, n: int):
    source, gradient, weights = (np.full(n, 1e-3, np.float32) for _ in range(3))

    def work():
        if rank > 0:
            write(gradient, source)
            read(weights)

    return work


@compiled
def write(x, source):
    for i in range(x.size):
        x[i] = source[i]


@compiled(fastmath=REASSOCIATE)
def read(x):
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i]
    return total


def moved(n: int, rule) -> int:
    """Bytes per update: the gradient and the answer are written once and read once; the master's
    weights and state are read once and written once."""
    return (4 + 2 + 2 * rule.slots) * 4 * n

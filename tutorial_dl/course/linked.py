"""Ranks as two nodes of two devices each, whose links and layers take the time of real ones.

A rank sleeps as long as its device would compute, and as long as a link would need for what the
rank has sent. All else is real: ranks, messages, gradients, and who waits for whom.
"""

import time
from collections.abc import Sequence

from mpi4py import MPI

from tutorial_dl import Team
from tutorial_dl.model_parallel import Grid
from tutorial_dl.replica.layers import Layer

NODE = 2  # ranks
links = {"inside": 16e6, "between": 16e6}  # bytes per second, within a node and between nodes
sent: dict[str, float] = {}  # bytes that this rank has sent, by what they are for


def transfer(what: str, size: float, ranks: Sequence[int]) -> None:
    """Note that so many bytes were sent to others of these `ranks`, and wait for their link."""
    sent[what] = sent.get(what, 0) + size
    one_node = len({rank // NODE for rank in ranks}) == 1
    time.sleep(size / links["inside" if one_node else "between"])


def members(team: Team) -> list[int]:
    """The numbers of a team's ranks among all ranks."""
    return team.comm.group.Translate_ranks(None, MPI.COMM_WORLD.group)


class Linked(Team):
    """A team whose allreduce, by a ring, takes its links' time. `what` says what it is for."""

    what = "tensor"

    def allreduce(self, x, *more, **options):
        found = super().allreduce(x, *more, **options)
        if self.size > 1:
            transfer(self.what, 2 * (self.size - 1) / self.size * x.nbytes, members(self))
        return found


class Device(Layer):
    """A layer that changes nothing: the device's time for the block behind it, of so many `blocks`.

    It also takes the time of what crosses the edges of its stage. `seconds` are those of the whole
    model per sample, forward and backward.
    """

    def __init__(self, name: str, block: int, blocks: int, grid: Grid, seconds: float):
        super().__init__(name)
        pipe, stages = members(grid.pipe), grid.pipe.size
        stage, place = divmod(block, blocks // stages)
        last = place == blocks // stages - 1
        self.before = pipe[stage - 1 : stage + 1] if stage > 0 and place == 0 else None
        self.after = pipe[stage : stage + 2] if stage < stages - 1 and last else None
        self.share = seconds / blocks / grid.tensor.size

    def forward(self, x, w, at):
        if self.before:
            transfer("pipeline", x.nbytes, self.before)
        time.sleep(len(x) * self.share / 3)
        return x, None

    def backward_inputs(self, w, saved, gy):
        if self.after:
            transfer("pipeline", gy.nbytes, self.after)
        time.sleep(len(gy) * self.share * 2 / 3)
        return gy, None

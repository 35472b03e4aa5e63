"""The synchronous step: average the gradients of all ranks and update the weights, in one pass.

Rank i's gradient g_i is the mean over its s_i samples, so the gradient of the whole batch is

    g = sum_i s_i g_i / sum_i s_i

and p ranks do exactly what one process would do with the whole batch, however uneven their shares.
This is synchronous data parallelism, as in PyTorch's DDP or Horovod.

In shared memory every rank's gradient is a row of the node's window, and so are its weights.
Rank r does for its slice only:

    for each tile of slice r:
        tile        = sum_i s_i gradient_i[tile] / sum_i s_i  read what all ranks wrote
        w_r[tile]   = update(w_r[tile], tile, state[tile])    state of this slice only, 1/p per rank
        w_i[tile]   = w_r[tile]  for all i                    write the new weights to every rank

    rank 0:  gradient | barrier | reduce, update, write slice 0 of all rows | barrier
    rank 1:  gradient | barrier | reduce, update, write slice 1 of all rows | barrier

After the first barrier, all gradients are complete, and no rank uses the old weights any more.
After the second one, the new weights are complete, and no rank reads gradients any more. With Adam,
2p + 5 numbers are read or written per parameter.

The weights may lie in

- rows of the window (`team.empty(n)`): as above, the fastest
- one row for all ranks (`team.empty(n, common=True)`): this saves p - 1 copies
- any other memory: new weights go through the rows of the gradient, and each rank copies its row to
  its weights after the second barrier

Between nodes, one rank of each node sends its node's sum of a slice to the rank that owns the
slice, and gets its new weights (between.py). Ranks without common memory each count as a node.
Dividing the optimizer state among the ranks is known as ZeRO stage 1 (Rajbhandari et al.,
arXiv 1910.02054).

LARS, LAMB and clipping need norms over the slices of several ranks before any weight can change.
Their step makes several passes over slice r, and in between the ranks add up sums of squares, two
numbers per layer:

    gradient | barrier | reduce slice r | (clip) squares | allreduce | update | write | barrier ...
"""

import math

import numpy as np

from ..allreduce import calls
from ..optimizers.base import Optimizer, check_range
from ..optimizers.clipping import clip_factor, squared_length
from ..spans import announces
from .between import ALL, BEGUN, DONE, REDUCE, SIZE, SPREAD, WIDTH, between, plan
from .kernels import hand_out, last_barrier, meet, reduce, step, weigh


class Step:
    """A synchronous update of `parameters` from every rank's `gradient`. Making it is collective.

    Args:
        team: the ranks that train together.
        optimizer: the update rule; its state covers this rank's slice of the parameters only.
        parameters: (n,) float32 or float64, equal on all ranks: this rank's own copy, best from
            `team.empty(n)`, or the node's only copy, from `team.empty(n, common=True)`.
        gradient: (n,) of the same dtype, from `team.empty(n)` for the step in shared memory. A
            step overwrites it.
        segments: where layers begin, needed by LARS and LAMB (see `Optimizer.init`).
        clip_norm: clip the gradient of the whole batch, over all parameters, to this norm; None
            means no clipping.

    Attributes:
        takes_own: whether this rank's slice of its own gradient may lie outside `gradient`, where
            the library that computed it has put it.
        own: int64, shape (3, layers): offset in the gradient, size, and address of each layer,
            sorted by offset. The memory must not move during a step. Shape (3, 0) means that the
            whole gradient is in `gradient`.
        factor: factor for the numbers at those addresses.
    """

    own, factor = np.zeros((3, 0), np.int64), 1.0

    def __init__(
        self,
        team,
        optimizer: Optimizer,
        parameters: np.ndarray,
        gradient: np.ndarray,
        segments=None,
        clip_norm: float | None = None,
    ):
        if parameters.shape != gradient.shape or parameters.dtype != gradient.dtype:
            raise ValueError(
                f"parameters {parameters.dtype}{parameters.shape} and gradient "
                f"{gradient.dtype}{gradient.shape} must have the same shape and dtype"
            )
        if clip_norm is not None:
            check_range("clip_norm", clip_norm)
        rows = team.peers(gradient) or []
        if gradient.size and len({row.ctypes.data for row in rows}) < len(rows):
            raise ValueError("each rank needs its own gradient, but all ranks share this one")
        self.team, self.optimizer, self.clip_norm = team, optimizer, clip_norm
        self.parameters = calls.vector(parameters, "parameters")
        self.gradient = calls.vector(gradient, "gradient")
        first, last = team.slice_of(parameters.size)
        self.mine = slice(first, last)
        self.state = optimizer.init(last - first, parameters.dtype, segments, first)
        nodes = self._nodes()
        self.shared = len(nodes) == 1 < team.size
        self.plan = None
        if len(nodes) > 1:
            self.plan = plan(team, nodes, parameters.size, parameters.dtype)
            self._met = len(nodes) < team.size  # the ranks of a node meet at a barrier
        self.call = calls.encode("step", parameters.dtype)
        self._sums = np.zeros(2)  # samples and mean loss
        self._norms = clip_norm is not None or self.state.layers > 0
        if self._norms:  # memory for the allreduce of sums of squares
            self._squares = team.empty(2 * max(1, self.state.layers), np.float64).reshape(-1, 2)

    def _nodes(self) -> list[tuple[int, ...]]:
        """The ranks that reduce together: a node's, or each alone if any gradient lies elsewhere.

        All ranks must decide alike, or some would wait for messages and others at a barrier.
        """
        team = self.team
        mine = len(team.node) == 1 or team.peers(self.gradient) is not None
        if team.allreduce(np.array([mine], np.int64), "min")[0]:
            return team.nodes
        return [(rank,) for rank in range(team.size)]

    @property
    def takes_own(self) -> bool:
        return self.team.size > 1 and not self._norms

    def __call__(self, loss: float, samples: int) -> tuple[float, int]:
        """Do one step; `gradient` and `loss` must be means over this rank's `samples`.

        `samples` may be 0; if it is 0 on all ranks, nothing is updated. Returns the mean loss over
        all ranks' samples, and the number of these samples.
        """
        self._sums[:] = samples, loss if samples else 0.0
        if self.takes_own:
            self._in_one_pass()
        else:
            if self.team.size > 1:
                self._reduce()
            if self._sums[0] > 0:
                self._update()
            if self.team.size > 1:
                self._hand_out()
        return float(self._sums[1]), int(self._sums[0])

    def resume(self) -> None:
        """After a step that failed on some ranks: rank 0's weights, equal counts. Collective."""
        self.team.broadcast(self.parameters)
        steps = np.array([self.state.step])
        self.state.step = int(self.team.allreduce(steps, "max")[0])

    # The four parts that a trace shows

    @announces("reduce + update")
    def _in_one_pass(self) -> None:
        if self.shared:
            hyper = self.optimizer.hyper(self.state.step + 1)
            how = self.state.slots, self.optimizer.rule, hyper
            self._on_node(step, *how, self._sums, self.own, self.factor)
        else:
            self._meet()
            self._between(ALL)
            self._part()
        self.state.step += int(self._sums[0] > 0)

    @announces("update")
    def _update(self) -> None:
        """Update this rank's slice of the weights by its slice of the whole batch's gradient."""
        w, g, rule, state = (
            self.parameters[self.mine], self.gradient[self.mine], self.optimizer, self.state
        )  # fmt: skip
        if self.clip_norm is not None:
            length = math.sqrt(self._over_ranks([[0, squared_length(g)]])[0, 1])
            weigh(g, clip_factor(length, self.clip_norm))
        squares = rule.begin(w, g, state)
        rule.finish(w, g, state, self._over_ranks(squares) if state.layers else squares)

    def _over_ranks(self, squares) -> np.ndarray:
        total = self._squares[: len(squares)]
        total[:] = squares
        return self.team.allreduce(total)

    @announces("reduce")
    def _reduce(self) -> None:
        """Reduce `_sums`, and this rank's slice of `gradient`, over all ranks."""
        if self.shared:
            self._on_node(reduce, self._sums, Step.own)
        else:
            self._meet()
            self._between(REDUCE)

    @announces("hand out")
    def _hand_out(self) -> None:
        if self.shared:
            self._on_node(hand_out, self._sums[0] > 0)
        else:
            if self._sums[0] > 0:
                self._between(SPREAD)
            self._part()

    def _on_node(self, kernel, *arguments) -> None:
        self.team.on_node(kernel, self.call, self.gradient, self.parameters, *arguments)

    # Between nodes

    def _meet(self) -> None:
        """The first barrier of each node; afterwards the plan has the node's sums."""
        if self._met:
            self._on_node(meet, self._sums)
        samples, loss = self._sums
        self.plan.sums[-1] = samples, samples * loss

    def _part(self) -> None:
        if self._met:
            self._on_node(last_barrier, self._sums[0] > 0)

    def _between(self, does: int) -> None:
        """Run the kernel `between`."""
        team, w, g, state = self.team, self.parameters, self.gradient, self.state
        self.plan.numbers[[DONE, BEGUN]] = 0
        width = WIDTH * int(self.plan.numbers[SIZE])
        incoming = team.scratch(width, g.dtype)[:width]
        how = state.slots, self.optimizer.rule, self.optimizer.hyper(state.step + 1), self.factor
        more = does, self.plan, team.node_array, incoming, g, w, how, self._sums, self.own
        team.by_messages(self.call, w.size, w.dtype, between, more)

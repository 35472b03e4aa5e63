"""Allreduce of a short vector between nodes: one exchange of leaders, one arrival on the node.

The first rank of each node is its leader. The ranks of a node leave their vectors in shared memory
and announce their arrival there, as at a barrier, but only the leader waits for all arrivals. It
adds up the vectors, exchanges the sum with the other leaders by recursive doubling, and then
announces the result, for which the others wait.

    node 0   rank 0 (leader)   add rank 1's x -->  sum  <--.         result --> rank 1
             rank 1            x --> stage                 | exchange
    node 1   rank 2 (leader)   add rank 3's x -->  sum  <--'         result --> rank 3
             rank 3            x --> stage

Cost with q ranks on each of k nodes: one arrival and one release on the node + the leader's q n
bytes through the caches and (q-1) n gamma + log2(k) (alpha + n beta). two_level.py sends as many
bytes and has q ranks add and send at once, but it needs four barriers; so this is for short
vectors. See Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19 (2005),
section 6.
"""

from ..jit.compile import compiled
from ..shared.board import COUNT, READY, all_arrived, arrive, release, released
from ..shared.node_array import AT, LEAD, PATIENCE, RANK, SPINS, board_of
from ..shared.stage import lead_stage
from .elementwise import combine, copy, divide
from .kernel import carry_out
from .messages import link_at

LONGEST = LEAD  # bytes: what fits in the stage
FAR = 1 << 32  # -FAR - 1 - rank: the call of a rank on another node differs


@compiled
def allreduce(node, handles, wire, call, x, incoming, op, divisor, rows):
    """Reduce `x`, at most LONGEST bytes, in place. Resumable.

    `handles` and `wire` (messages.addresses) are those of the leaders' route, `incoming` is scratch
    like `x`, and `rows` is a leader's table of farthest_first (kernel.py); the other ranks of the
    node don't look at them. Without rows, every node reduces for itself.
    """
    link, rank, ranks = link_at(handles, wire)
    board, place = board_of(node), node[RANK]
    turn = board[place, COUNT] + (node[AT] == 0)
    if node[AT] == 0:
        if place != 0:
            copy(lead_stage(node, x, place, turn), x)
        arrive(board, place, call, x.size)
        node[AT] = 1
    if place != 0:
        done = released(board, place, node[SPINS], node[PATIENCE])
        if done == READY:
            copy(x, lead_stage(node, x, 0, turn))
        return done
    if node[AT] == 1:
        done = all_arrived(board, place, node[SPINS], node[PATIENCE])
        if done != READY:
            return done
        for peer in range(1, board.shape[0]):
            combine(op, x, lead_stage(node, x, peer, turn))
        node[AT] = 2
        if rows.shape[0] == 0:
            divide(x, divisor)
    done = carry_out(link, rank, ranks, x, x, incoming, op, divisor, rows)
    if done < 0:
        return done - FAR
    if done == READY and board.shape[0] > 1:
        copy(lead_stage(node, x, 0, turn), x)
        release(board, place)
    return done

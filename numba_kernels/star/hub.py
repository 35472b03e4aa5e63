"""The hub of a star: serves requests in order, and notices leaves that are gone."""

import time
import weakref
from collections.abc import Sequence

import numpy as np

from ..optimizers.serve import helpers
from ..shared import window
from ..shared.board import READY, WAIT
from ..team.mailbox import LEFT, cause_first
from ..team.stall import has_ended, state
from . import doorbell, helping, message_ends, messages
from .leaf import put
from .memory_layout import AT, CONTROL, HEAD, PATIENCE, ROWS, SECOND, SWAP, WANTED

# From the flags of a request to (block of its vector, block of the answer's vector).
PLACES = {0: (0, 1), SECOND: (1, 0), SWAP: (0, 0), SECOND | SWAP: (1, 1)}


class Hub:
    """The methods of a Star for the hub."""

    def next(self, seconds: float) -> int | None:
        """Wait at most `seconds` for the next request; 0 only checks.

        Returns the leaf (its rank, at least 1) whose unserved request arrived first; None if there
        is none. On a leaf, and after `close`, it raises RuntimeError.
        """
        if not self.is_hub:
            raise RuntimeError(f"rank {self.team.rank} is a leaf of this star; only the hub serves")
        self._ready()
        patience, left, end = float(self._star[PATIENCE]), 1e6 * seconds, None
        try:
            while True:
                leaf = doorbell.next_leaf(
                    self._star, self._table, self._messages, min(left, patience)
                )
                if leaf:
                    self._current = leaf
                    return leaf
                if end is None:
                    end = time.monotonic() + seconds - 1e-6 * min(left, patience)
                left = 1e6 * (end - time.monotonic())
                if left <= 0:
                    doorbell.rest()
                    return None
        except BaseException as error:
            self.team.abort(error, heard=True)
            raise

    def head(self, leaf: int) -> np.ndarray:
        """Return the head of `leaf`'s request, float64 [HEAD]. Valid until it is answered."""
        return self._requests[leaf][1]

    def sent(self, leaf: int) -> np.ndarray:
        """Return the vector of `leaf`'s request, (sent,), to be used until it is answered."""
        return self._vectors[leaf][self._places(leaf)[0]]

    def wanted(self, leaf: int) -> bool:
        """Return whether `leaf` asked for a vector."""
        return bool(self._requests[leaf][0][0] & WANTED)

    def answer_vector(self, leaf: int) -> np.ndarray:
        """Return the memory for the vector of the answer, (received,), once `leaf` has asked.

        It may be the memory of the vector sent: see `in_place` of Star, and `swap` of `ask`.
        """
        return self._vectors[leaf][self._places(leaf)[1]]

    def _places(self, leaf: int) -> tuple[int, int]:
        """Return (block of the vector of `leaf`'s request, block of the answer's vector)."""
        return PLACES[int(self._requests[leaf][0][0]) & (SECOND | SWAP)]

    def answer(self, leaf: int, words: Sequence[float] = (), vector: bool = True) -> None:
        """Send the answer to `leaf`'s request: up to HEAD numbers, and maybe the vector."""
        self._ready()
        put(self._heads[leaf], words)
        if self._table[ROWS, leaf]:
            self._replies[leaf][0][0] = vector
            doorbell.answer(self._star, self._table, leaf)
        elif leaf in self._open:
            message_ends.send(self._inbox, leaf, self.wanted(leaf), bool(vector))

    def keep(self, n: int) -> np.ndarray:
        """Return zeroed memory for `n` elements that leaves on this node can see, if any is left.

        If weights and the optimizer's state lie there (`adopt`), leaves help with `serve.serve`.
        """
        first = self._used
        if self._memory is None or first + n > self._memory.size:
            return window.aligned(n, self.dtype)
        line = 64 // self.dtype.itemsize
        self._used += -(-n // line) * line
        return self._memory[first : first + n]

    def adopt(self, state) -> None:
        """Move an optimizer's state to memory from `keep`."""
        slots = self.keep(state.slots.size).reshape(state.slots.shape)
        slots[:] = state.slots
        state.slots = slots

    def _help(self, rule, weights, sent, slots, hyper, answer) -> bool:
        """Serve the current leaf with its help, or while the answer is sent; False if it can't."""
        leaf = self._current
        if not leaf or not sent.dtype == weights.dtype == self.dtype:
            return False
        vectors = rule, weights, sent, slots, hyper, answer
        if not self._table[ROWS, leaf]:
            return message_ends.stream(self._inbox, leaf, *vectors) == READY
        if self._memory is None:
            return False
        self._star[AT] = 0
        starts = self._starts[self._places(leaf)]
        how = self._star, self._table, leaf, starts, self._memory, *vectors
        done = helping.together(*how)
        began = time.monotonic() if done == WAIT else None
        while done == WAIT:
            if self._is_gone(leaf, time.monotonic() - began):
                return True
            done = helping.together(*how)
        return done == READY

    def _is_gone(self, leaf: int, waited: float) -> bool:
        """Return whether to do without chunks that a leaf has held for `waited` seconds.

        A leaf that has only lost its core to other ranks will finish them.
        """
        pid = self.team.pid(leaf)
        if has_ended(pid) or waited > helping.STARVED:
            return True
        return waited > helping.GIVE_UP and (pid is None or state(pid) in ("T", "t"))

    def lost(self) -> dict[int, str]:
        """Return {leaf: reason} of leaves that have failed, left or ended since the last call.

        It takes some ten microseconds per leaf. A request that such a leaf made before is still
        served, unless the leaf is dropped.
        """
        team = self.team
        mail, open_ = team.letters, sorted(self._open - self._reported)
        found = {}
        for leaf in open_:  # before reading the mailbox, which may have letters of ended processes
            pid = team.pid(leaf)
            if has_ended(pid):
                found[leaf] = f"its process {pid} has ended"
        mail.collect()
        for leaf in open_:
            letters = [mail.failures.get(leaf), *mail.fails_again(leaf)]
            letters = sorted(filter(None, letters), key=cause_first)
            if letters:
                found[leaf] = letters[0].text
            elif leaf in mail.ended:
                found[leaf] = LEFT
            elif leaf in mail.recovering:
                found[leaf] = "it called recover()"
            elif self._inbox.leaves[leaf, message_ends.BROKEN]:
                found.setdefault(leaf, "MPI reports an error in its messages")
        self._reported |= found.keys()
        return found

    def drop(self, leaf: int) -> None:
        """Stop serving `leaf`, which was dismissed or lost, and reporting it by `lost`."""
        if leaf not in self._open:
            return
        self._open.discard(leaf)
        self._table[:, leaf] = 0
        if self._inbox.leaves[leaf, message_ends.IN]:
            dead = has_ended(self.team.pid(leaf))
            message_ends.drop(self._comm, self._inbox, leaf, self._row_of[leaf], dead)

    def send_bytes(self, leaf: int, data: bytes, seconds: float = 10.0) -> bool:
        """Send bytes to a leaf's `receive_bytes()`; return whether they arrived in `seconds`."""
        self._ready()
        return messages.send_bytes(self._comm, leaf, data, seconds)

    @property
    def leaves(self) -> list[int]:
        """The leaves that are served: all that have not been dropped."""
        return sorted(self._open)

    def _be_hub(self, comm, rows: dict[int, np.ndarray]) -> None:
        size = self.team.size
        self._inbox = message_ends.make_inbox(comm, self._blocks[1][1])
        self._table, self._current = np.zeros((3, size), np.int64), 0
        self._open, self._reported = set(range(1, size)), set()
        self._row_of = dict(rows)
        for leaf in self._open:
            if leaf in rows:
                self._table[ROWS, leaf] = rows[leaf].ctypes.data
            else:
                self._row_of[leaf] = row = window.aligned(self._row.size, np.int64)
                here = [(8 * at + row.ctypes.data, words) for at, words, _ in self._blocks]
                self._inbox.leaves[leaf, : message_ends.SENT] = *here[0], *here[1]
                message_ends.receive(self._inbox, leaf)
        self._messages = None if self.near else self._inbox
        views = [self._views(self._row_of[leaf]) for leaf in range(size)]
        self._requests, self._replies = zip(*views, strict=True)
        self._vectors = [(asked[2], reply[2]) for asked, reply in views]
        self._heads = [memoryview(head).cast("B") for _, head, _ in self._replies]
        starts = [8 * (start + CONTROL + HEAD) for start, *_ in self._blocks]
        self._starts = {(i, j): np.array([starts[i], starts[j]]) for i, j in PLACES.values()}
        self._used, star = 0, weakref.ref(self)  # so that `helpers` does not keep the star alive

        def helper(*vectors) -> bool:
            return star() is not None and star()._help(*vectors)

        self._helper = helper
        helpers.append(helper)

    def _stop_help(self) -> None:
        if self._helper in helpers:
            helpers.remove(self._helper)

"""The leaf of a star: sends requests, and waits for the hub only."""

import time
from collections.abc import Callable, Sequence
from struct import Struct

from ..errors import DeadlineError, PeerError
from ..shared.board import READY, WAIT
from ..team.mailbox import LEFT
from ..team.stall import HubWatch, has_ended
from . import doorbell, helping, message_ends, messages
from .memory_layout import AT, CONTROL, HEAD, PATIENCE, SECOND, SENT, SPINS, SWAP, WANTED

GRACE = 0.5  # seconds that the last answer of an ended hub may still be in flight
FORMATS = [Struct(f"{n}d{8 * (HEAD - n)}x") for n in range(HEAD + 1)]  # n numbers, then zeros


class Leaf:
    """The methods of a Star for leaves."""

    def ask(
        self,
        words: Sequence[float] = (),
        vector: bool = True,
        answer: bool = True,
        swap: bool = False,
        idle: bool = False,
    ):
        """Send `words` and `out` to the hub, and wait for its answer, whose vector is in `into`.

        Only the team's deadline limits the wait. A wait of 10 s is reported; if `idle` (the hub may
        have nothing for this leaf for a long time), only if the hub was stopped. If the hub failed,
        or its process ended, PeerError is raised.

        Args:
            words: up to HEAD numbers; so are the words of the answer, which are returned.
            vector: False means that the hub does not need `out`; it may see it, or an older one.
            answer: False means that the vector of the answer is not needed; `into` may change.
            swap: have the answer written to the memory of the vector sent, which avoids a pass over
                other memory; `out` and `into` then change places. (With messages there is nothing
                to gain and they stay, so read both attributes again.)
        """
        if self.is_hub:
            raise RuntimeError("rank 0 is the hub of this star; only leaves send requests")
        self._ready()
        put(self._head, words)
        self._idle = idle
        swap = self._may_swap(answer) if swap else False
        self._swap = SWAP * swap
        self._flags[0] = SENT * bool(vector) | WANTED * bool(answer) | self._swap | self._second
        if self.near:
            self._star[AT] = 0
            done = self._ask_near()
            if done != READY:
                self._until_answered(done, self._ask_near)
        else:
            (first, size, _), (second, most, _) = self._blocks
            outgoing = self._row[first : first + (size if vector else CONTROL + HEAD)]
            how = self._line, outgoing, self._row[second : second + most], bool(answer)
            self._line.numbers[0] = 0
            self._until_answered(WAIT, lambda: message_ends.ask(*how))
        if swap and self._given[0]:
            self.out, self.into = self.into, self.out
            self._second ^= SECOND
        return self._reply.copy()

    def _may_swap(self, answer: bool) -> bool:
        if self.out.size != self.into.size or not answer:
            raise ValueError(
                f"swap needs vectors of equal length, but {self.out.size} elements are sent and "
                f"{self.into.size if answer else 'none'} come back"
            )
        return self.near and not self._in_place

    def _ask_near(self) -> int:
        if self._memory is None:
            return doorbell.ask(self._star)
        into = self.out if self._swap else self.into
        return helping.ask(self._star, self._memory, self.out, into)

    def receive_bytes(self) -> bytes:
        """Return bytes that the hub sends with `send_bytes`. Waits for them as `ask` does."""
        self._ready()
        news = messages.News(self._comm)
        self._until_answered(WAIT, news.come)
        return news.data

    def _be_leaf(self, comm) -> None:
        (self._flags, asked, _), (self._given, self._reply, _) = self._views(self._row)
        self._second = self._swap = 0
        self._idle = False
        self._head = memoryview(asked).cast("B")
        if not self.near:
            spins, patience = int(self._star[SPINS]) // 2, 1e-6 * int(self._star[PATIENCE])
            words = self._blocks[1][1]
            self._line = message_ends.make_line(comm, words, self._in_place, spins, patience)

    def _until_answered(self, done: int, again: Callable[[], int]) -> None:
        """Continue a kernel that returned WAIT; in between check that the hub is still there."""
        if done == WAIT and not self.near:
            done = again()
            if done == READY:
                return
        team, started = self.team, time.monotonic()
        team.doing, self._ended = "Star.ask()", None
        try:
            with HubWatch(team, self._idle) as watch:
                while done != READY:
                    if done != WAIT:
                        raise PeerError(0, self._why_broken())
                    waited = time.monotonic() - started
                    try:
                        self._heed_hub(waited)
                        watch.look(waited)
                    except PeerError:
                        if again() == READY:  # the hub had answered before it failed
                            break
                        raise
                    if again != self._ask_near:  # the shared-memory kernel sleeps by itself
                        time.sleep(min(0.001, waited / 100))
                    done = again()
        except BaseException as error:
            if not self.near:
                self._abandon()
            team.abort(error, heard=True)
            raise
        watch.end(time.monotonic() - started)

    def _abandon(self) -> None:
        dead = has_ended(self.team.pid(0))
        message_ends.leave(self._comm, self._line, dead, self._row)

    def _why_broken(self) -> str:
        """Return why MPI reports an error in messages with the hub; often because the hub died."""
        pid, end = self.team.pid(0), time.monotonic() + GRACE
        while pid is not None and time.monotonic() < end:
            if has_ended(pid):
                return f"its process {pid} has ended"
            time.sleep(0.01)
        return "MPI reports an error in the messages with it"

    def _heed_hub(self, waited: float) -> None:
        """Raise the failure that the hub has reported; failures of other leaves are ignored."""
        team = self.team
        mail = team.letters
        mail.collect()
        for letter in filter(None, [mail.failures.get(0), *mail.fails_again(0)]):
            raise letter.error()
        if 0 in mail.recovering:
            raise PeerError(0, "it is recovering from a failure of its own")
        if 0 in mail.ended:
            self._ended = waited if self._ended is None else self._ended
            if waited - self._ended > GRACE:
                raise PeerError(0, LEFT)
        if team.deadline is not None and waited > team.deadline:
            raise DeadlineError(team.rank, team.doing, waited, team.deadline)


def put(block: memoryview, words: Sequence[float]) -> None:
    if len(words) > HEAD:
        raise ValueError(f"a head has room for {HEAD} words, got {len(words)}")
    FORMATS[len(words)].pack_into(block, 0, *words)

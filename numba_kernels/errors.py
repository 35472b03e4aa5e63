"""The errors that a Team raises. Each builds its text from its fields, with the team's ranks."""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager

LEFT = "it left the team, or its program ended, before this call"  # the reason of a PeerError


class TeamError(RuntimeError):
    """A team cannot go on. It answers every further call with the same error until recovered.

    `args` is the text alone: libraries that wrap an error (Keras does) show `args[0]`.
    """


class PeerError(TeamError):
    """Another rank failed.

    `cause` is the rank that failed first; not `rank` if that rank failed because another one did.
    `reason` is the error of `cause`, or how it ended. `roles` says what ranks do, see
    `Failing.roles`.
    """

    def __init__(
        self, rank: int, reason: str, cause: int | None = None,
        roles: Mapping[int, str] | None = None,
    ):  # fmt: skip
        self.rank, self.reason, self.cause = rank, reason, rank if cause is None else cause
        super().__init__()
        self.name_roles(roles or {})

    def name_roles(self, roles: Mapping[int, str]) -> None:
        """Build the text; "rank 1 (stage 1) failed", for the role "stage 1" of rank 1."""
        self.roles = {rank: roles[rank] for rank in (self.rank, self.cause) if rank in roles}
        chain = [self.rank] if self.cause == self.rank else [self.rank, self.cause]
        said = (f"rank {rank}{in_brackets(self.roles.get(rank))} failed: " for rank in chain)
        self.args = ("".join(said) + self.reason,)

    def renumbered(self, numbers: Mapping[int, int]) -> "PeerError":
        """The same error for ranks of another team; `numbers`: {rank here: rank there}."""
        if self.cause in numbers:
            roles = {numbers[rank]: role for rank, role in self.roles.items()}
            return PeerError(numbers[self.rank], self.reason, numbers[self.cause], roles)
        return PeerError(numbers[self.rank], f"a rank outside the team failed: {self.reason}")

    def __reduce__(self):  # for pickling: an exception is rebuilt from its `args` otherwise
        return type(self), (self.rank, self.reason, self.cause, self.roles)


class MismatchError(TeamError):
    """Ranks of one team made different calls at the same time.

    `calls` is {rank: its call}, as far as known, or None for another, unknown call.
    """

    def __init__(self, calls: dict[int, str | None], text: str = ""):
        said = [
            f"rank {rank} called {call}" if call else f"rank {rank} made another call"
            for rank, call in calls.items()
        ]
        super().__init__(text or ", but ".join(said))
        self.calls = calls

    def __reduce__(self):
        return type(self), (self.calls, str(self))


class DeadlineError(TeamError, TimeoutError):
    """A wait of `rank` in the call `waiting_in` reached its deadline, after `waited` seconds.

    `seconds` is the limit; `late` are the ranks that did not come, if known.
    """

    def __init__(
        self, rank: int, waiting_in: str, waited: float, seconds: float, late: Sequence[int] = ()
    ):
        verb = "call" if waiting_in.endswith(")") else "begin"
        super().__init__(
            f"{ranks_in_words(late)} did not {verb} {waiting_in} within {seconds:g} s: "
            "all ranks of a team must call it"
            if late
            else f"rank {rank} waited {waited:.1f} s in {waiting_in}; the limit is {seconds} s"
        )
        self.rank, self.waiting_in, self.late = rank, waiting_in, tuple(late)
        self.waited, self.seconds = waited, seconds

    def __reduce__(self):
        return type(self), (self.rank, self.waiting_in, self.waited, self.seconds, self.late)


@contextmanager
def numbered(ranks: Sequence[int]):
    """Give ranks in a PeerError of a part of a team the numbers `ranks` that the team has."""
    try:
        yield
    except PeerError as error:
        raise error.renumbered(dict(enumerate(ranks))) from None


def in_brackets(words: str | None) -> str:
    return f" ({words})" if words else ""


def ranks_in_words(ranks: Sequence[int], more=lambda rank: "") -> str:
    """Return a phrase such as "rank 2" or "ranks 0, 1 and 3"."""
    names = [f"{rank}{more(rank)}" for rank in ranks[:16]]
    if len(ranks) > 16:
        names.append(f"{len(ranks) - 16} others")
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def message_of(error: BaseException) -> str:
    """Return str(error), or why that fails: an error of a user's class may raise another one."""
    try:
        return str(error)
    except Exception as failed:
        return f"(its message could not be made: {type(failed).__name__})"


def line_of(error: BaseException) -> str:
    """Return an error's class and message in one line: "ValueError: bad batch"."""
    return f"{type(error).__name__}: {message_of(error)}".replace("\n", " ").removesuffix(": ")

"""The errors that a Team raises. Their messages name the ranks, as numbered in that team."""


class TeamError(RuntimeError):
    """A team cannot go on. It answers every further call with the same error until recovered."""


class PeerError(TeamError):
    """Another rank failed; `rank` is its number, and the message gives the reason."""

    def __init__(self, rank: int, message: str):
        super().__init__(f"rank {rank} failed: {message}")
        self.rank = rank


class MismatchError(TeamError):
    """Ranks of one team made different calls at the same time."""


class DeadlineError(TeamError, TimeoutError):
    """A wait reached its deadline."""

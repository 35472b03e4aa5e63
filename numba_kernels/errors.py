"""What a Team raises. Every one names the rank it speaks of, counted in that team."""


class TeamError(RuntimeError):
    """A team cannot go on. After one, the team refuses further calls with the same error."""


class PeerError(TeamError):
    """Another rank failed while this one waited for it; `rank` and its message say who and why."""

    def __init__(self, rank: int, message: str):
        super().__init__(f"rank {rank} failed: {message}")
        self.rank = rank


class MismatchError(TeamError):
    """Ranks of one team called different things at the same time."""


class DeadlineError(TeamError, TimeoutError):
    """A wait was given a deadline and reached it."""

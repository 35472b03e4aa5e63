"""`Link`: a rank's way to the coordinator. This file, unlike cell.py, loads no MPI."""

from __future__ import annotations


class Link:
    """A rank's way to the coordinator."""

    ends_with_interrupt = True  # whether Ctrl-C ends the search on this rank

    def tell(self, message: dict) -> None:
        raise NotImplementedError

    def messages(self) -> list[dict]:
        """What the coordinator has sent since the last call."""
        raise NotImplementedError

    def is_broken(self) -> bool:
        """Whether the coordinator's process is known to have ended."""
        raise NotImplementedError

    def close(self) -> None: ...

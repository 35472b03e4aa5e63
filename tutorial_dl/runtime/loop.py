"""`Loop`: what a Trainer asks of the two training loops, InStepLoop and MasterLoop."""

from __future__ import annotations

from ..checkpoint.contents import Saving
from ..layout.layout import Layout


class Loop:
    """Base class of the training loops.

    Args:
        run: The state of the run, which the loop changes.
    """

    def __init__(self, run):
        self.run = run

    # Before there is a run

    @staticmethod
    def layout(strategy) -> Layout:
        """The role of each rank of the strategy's team; ValueError if they do not fit."""
        raise NotImplementedError

    @staticmethod
    def shard(team) -> tuple[int, int]:
        """(rank, ranks): this rank's part of each batch of the run."""
        raise NotImplementedError

    # All ranks call these together

    def attach(self) -> None:
        """Before the first step: give all ranks rank 0's weights, where the strategy needs them."""
        raise NotImplementedError

    def agree(self) -> None:
        """After a failure: give all ranks the same state again."""
        raise NotImplementedError

    def train(self, epochs: int, bar, signals) -> None:
        """Train for `epochs` more epochs.

        Args:
            epochs: Number of epochs.
            bar: The progress bar.
            signals: A list that becomes non-empty when the run must end (SIGTERM).
        """
        raise NotImplementedError

    # Checkpoints

    def saving(self, folder, every: int | None, keep: int) -> Saving:
        """What writes and reads this loop's checkpoints; see `Saving`."""
        raise NotImplementedError

    def load(self) -> bool:
        """Resume from the newest checkpoint; False if there is none. Collective."""
        raise NotImplementedError

    # What a run must have in common on all ranks, and with the run that it resumes

    def identity(self) -> str:
        """The strategy's options, besides `Run.settings`."""
        return ""

    @property
    def apart(self) -> bool:
        """Whether ranks do different things now, so that a callback must not wait for others."""
        return False

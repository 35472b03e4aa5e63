"""`Loop`: what a Trainer asks of the two training loops, InStepLoop and MasterLoop."""

from ..checkpoint.contents import Saving


class Loop:
    """Base class of the training loops; `run` is the state of the run, which the loop changes.

    A loop has also

        layout(strategy, team)   the role of each rank of the team; ValueError if they do not fit
        shard(team)              (rank, ranks): this rank's part of each batch of the run

    which are static, as there is no run yet, and these, which all ranks call together:

        attach()              before the first step: give all ranks rank 0's weights, if need be
        agree()               after a failure: give all ranks the same state again
        train(epochs, bar, signals)    `signals` becomes non-empty when the run must end (SIGTERM)
        load()                resume from the newest checkpoint; False if there is none
    """

    has_master = False  # whether a master hands out work
    identity = ""  # besides `Run.settings`, what must be equal on all ranks and in a resumed run
    apart = False  # whether ranks do different things now, so that callbacks must not wait for them

    def __init__(self, run):
        self.run = run

    def saving(self, folder, every: int | None, keep: int) -> Saving:
        """What writes and reads this loop's checkpoints; see `Saving`."""
        return Saving(self.run, folder, every, keep)

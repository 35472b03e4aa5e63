"""`Outlook`: what is to be trained, for those who show it; `Nothing`: what they can do."""

from ..data import Stream


class Outlook:
    """What is to be trained, and how far that is.

    Attributes:
        words: What trains.
        epochs: The number of epochs when all is done, those of before included.
        samples: In an epoch; None or 0 for a stream of unknown length.
    """

    def __init__(self, words: str, run, epochs: int):
        self.words, self.run = words, run
        self.before = len(run.history.epochs)
        self.epochs = self.before + epochs
        train = run.dataset.train
        self.samples = train.samples if isinstance(train, Stream) else len(train)

    @property
    def done(self) -> int:
        return len(self.run.history.epochs)

    @property
    def where(self) -> str:
        """The epoch that is being trained, or was the last."""
        return f"epoch {min(self.done + 1, self.epochs)} of {self.epochs}"


class Nothing:
    """Shows nothing."""

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, samples: int) -> None:
        pass

    def set_postfix(self, values: dict[str, str], refresh: bool = True) -> None:
        pass

"""The training loop: batches in, strategy step, validation, history."""

from .history import History
from .trainer import Trainer, TrainingError

__all__ = ["History", "Trainer", "TrainingError"]

"""Data sets, and how ranks share them.

dataset = data.load("digits")                           # or "my_file:load"
for inputs, targets in data.Batches(dataset.train, batch_size=32).epoch(0): ...
"""

from tutorial_dl.data.batches import Batches
from tutorial_dl.data.dataset import Data, Dataset, shard, share
from tutorial_dl.data.handwritten import digits
from tutorial_dl.data.loading import NAMES, check, dataset_of, load
from tutorial_dl.data.noisy_curve import cubic, curve

__all__ = [
    "NAMES",
    "Batches",
    "Data",
    "Dataset",
    "check",
    "cubic",
    "curve",
    "dataset_of",
    "digits",
    "load",
    "shard",
    "share",
]

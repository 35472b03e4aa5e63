"""Datasets, and how ranks share them.

dataset = data.load("digits")                           # or "my_file:load", or "events_*.h5"
for inputs, targets in data.Batches(dataset.train, batch_size=32).epoch(0): ...

dataset.py, batches.py     samples, and each rank's share of them; loading.py: by name
streams.py, sources.py     tf.data, PyDataset, generators; elements.py: their batches
arrays.py, weights.py      from what users have to arrays; weights of classes
characters.py              the text of Python's own source
built_in.py                data without files; collisions.py, particles.py: simulated events
showers.py                 simulated showers; calorimeter.py, shower_physics.py, shower_kernel.py
counted_random.py          random numbers by the number of a sample
files.py, hdf5_dataset.py  data in files; hdf5.py, hdf5_files.py read them; blocks.py: their order
ahead.py, local_copy.py    reading while ranks compute; copies on a node's own disk
"""

from tutorial_dl.data.batches import Batches
from tutorial_dl.data.built_in import cubic, curve, digits, events
from tutorial_dl.data.characters import text
from tutorial_dl.data.dataset import Data, Dataset, shard, share
from tutorial_dl.data.files import DataError
from tutorial_dl.data.hdf5 import Hdf5Data
from tutorial_dl.data.hdf5_dataset import hdf5, write_hdf5
from tutorial_dl.data.loading import NAMES, check, dataset_of, load
from tutorial_dl.data.streams import Stream, stream

__all__ = [
    "NAMES", "Batches", "Data", "DataError", "Dataset", "Hdf5Data", "Stream", "check", "cubic",
    "curve", "dataset_of", "digits", "events", "hdf5", "load", "shard", "share", "stream",
    "text", "write_hdf5",
]  # fmt: skip

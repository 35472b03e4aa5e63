"""Examples of tutorial_dl.data."""

# %% Built-in data
# shows: load, NAMES, curve, cubic, digits, events, text, Dataset
from tutorial_dl import data

print(sorted(data.NAMES))
print(data.cubic(1.0), data.curve(n=10).train.inputs.shape)
for made in (data.load("digits"), data.digits(), data.events(n=20), data.text(characters=5000)):
    print(made.name, made.train.inputs.shape, made.classes)  # each is a Dataset

# %% Each rank's share
# shows: Data, Batches, shard, share
import numpy as np

from tutorial_dl import data

samples = data.Data.of(np.arange(10), np.arange(10) % 2)
print(data.share(10, rank=1, ranks=4), data.shard(samples, 1, 4).inputs)
for rank in range(2):  # the global batches have 4 samples
    batches = data.Batches(samples, 4, seed=0, rank=rank, ranks=2).epoch(0)
    print(rank, [x.tolist() for x, _ in batches])

# %% From arrays, and from what gives batches
# shows: dataset_of, stream, Stream, check
import numpy as np

from tutorial_dl import data

x, y = np.random.default_rng(0).random((10, 3)), np.arange(10) % 2
print(len(data.dataset_of((x, y)).validation), "samples held out")


def batches():
    yield x[:5], y[:5]
    yield x[5:], y[5:]


print(data.stream(batches, steps=2).steps, "batches in a Stream")
try:
    data.check("digit")  # the options of a command, before anything is loaded
except ValueError as error:
    print(error)

# %% Files
# shows: write_hdf5, hdf5, Hdf5Data, DataError
from tutorial_dl import data

file = data.write_hdf5(data.curve(n=40).train, "curve.h5")
dataset = data.hdf5(file, validation=0.25)
print(type(dataset.train).__name__, len(dataset.train), len(dataset.validation))  # Hdf5Data
try:
    data.hdf5("none.h5")
except (data.DataError, ValueError) as error:
    print(error)

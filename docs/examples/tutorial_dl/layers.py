"""Examples of tutorial_dl.layers."""

# %% Batch normalisation over the samples of all ranks
# shows: SyncBatchNormalization, convert
import keras

from tutorial_dl import Team, layers

team = Team()
norm = layers.SyncBatchNormalization(team)
model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
print(type(norm).__name__, [type(one).__name__ for one in layers.convert(model, team).layers])

"""Keras layers that compute over all ranks of a Team.

layers.SyncBatchNormalization(team)     batch normalisation over the samples of all ranks
layers.convert(model, team)             convert a model's BatchNormalization layers to it
"""

import lazy_loader

# Lazily: TensorFlow takes several seconds to import.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    "tutorial_dl.interop.layers",
    submod_attrs={"sync_batch_normalization": ["SyncBatchNormalization", "convert"]},
)

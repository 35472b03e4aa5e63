"""Keras layers that work with all ranks of a Team.

layers.SyncBatchNormalization(team)     batch normalisation over the samples of all ranks
layers.convert(model, team)             a model's own BatchNormalization layers become such ones
"""

import lazy_loader

# Lazily: TensorFlow takes several seconds to import.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    "tutorial_dl.interop.layers",
    submod_attrs={"sync_batch_normalization": ["SyncBatchNormalization", "convert"]},
)

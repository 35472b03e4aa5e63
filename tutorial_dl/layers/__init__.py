"""Keras layers that compute over all ranks of a Team.

layers.SyncBatchNormalization(team)     batch normalisation over the samples of all ranks
layers.convert(model, team)             convert a model's BatchNormalization layers to it
"""

from __future__ import annotations

from importlib import import_module

# Imported at first use, because TensorFlow takes several seconds to import.
_LAZY = ("SyncBatchNormalization", "convert")

__all__ = [*_LAZY]


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".sync_batch_normalization", __name__), name)

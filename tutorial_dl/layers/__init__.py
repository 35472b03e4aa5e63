"""Keras layers that work with all ranks of a Team.

layers.SyncBatchNormalization(team)     batch normalisation over the samples of all ranks
layers.convert(model, team)             a model's own BatchNormalization layers become such ones
"""

from __future__ import annotations

from importlib import import_module

# Loaded at first use: TensorFlow takes several seconds to import.
_LAZY = ("SyncBatchNormalization", "convert")

__all__ = [*_LAZY]


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".sync_batch_normalization", __name__), name)

"""Keras layers that work with all ranks of a Team; users know them as `tutorial_dl.layers`."""


def synchronised(replica):
    """The replica with synchronised batch normalisation, for --sync-batch-norm."""
    from ... import replica as replicas
    from . import sync_batch_normalization as layers

    if replica.traits.library != "keras":
        raise ValueError("--sync-batch-norm needs a Keras model; this one has no layers of Keras")
    model = layers.convert(replica.model)
    if not any(isinstance(one, layers.SyncBatchNormalization) for one in model._flatten_layers()):
        raise ValueError(f"--sync-batch-norm: model '{model.name}' has no BatchNormalization layer")
    return replicas.of(model)

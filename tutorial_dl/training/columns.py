"""What a history will have, told from a few samples before anything is trained."""

from __future__ import annotations

import numpy as np


def columns(trainer) -> list[str]:
    """The columns of the rows that `trainer` will append to its history, but for "epoch".

    Each model is used on at most four samples.
    """
    run, data = trainer.run, trainer.dataset.train
    samples = getattr(data, "head", data)  # of a stream: its first ones
    batch = samples.take(telling_samples(samples))
    with_master = trainer.loop.has_master
    losses, trained, measured, rates = [], [], [], []
    for player in run.players:
        metrics = player.replica.evaluate([player.select(batch, run)])
        names = [run.label(player, name) for name in metrics if name != "samples"]
        losses.append(run.label(player, "loss"))
        if not with_master:  # workers don't tell the master what they have counted
            counts = player.replica.traits.counts_training
            trained += [n for n in names if counts and n not in losses]
        measured += [f"val_{name}" for name in names if run.dataset.validation is not None]
        rates += [run.label(player, "learning_rate")] * (player.schedule is not None)
    added = [name for one in run.callbacks for name in getattr(one, "columns", ())]
    if with_master:
        added.append("staleness")
    return [*losses, *trained, *measured, *added, "samples_per_second", "seconds", *rates]


def telling_samples(data) -> np.ndarray:
    """Indices of two samples, and of those with the smallest and the largest class label."""
    indices = [*range(min(2, len(data)))]
    labels = data.targets
    one = not isinstance(labels, tuple | dict)  # several targets are not checked
    if one and labels.dtype.kind in "iu" and labels.ndim == 1:
        indices += [int(labels.argmin()), int(labels.argmax())]
    return np.array(indices)

"""Keras models as Replicas.

replica.py                `KerasReplica`, which is made of what follows
weights.py                weights in two flat vectors, states and seeds
step.py, graphs.py        gradients, losses and metrics of a batch; as graphs of TensorFlow
xla.py                    compiled by XLA, where that is faster
metrics.py, sums.py       metrics as sums over samples
losses.py                 losses with masks, over ranks
own_step.py               a train_step of the user's
optimizers.py, saving.py  the optimizer that a model was compiled with; in its file
shape_errors.py           why a batch does not fit a model
collectives.py            collectives inside TensorFlow's graph; collective_layers.py: with them
"""

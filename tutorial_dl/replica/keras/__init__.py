"""Keras models as Replicas: `replica.py` says what each file here is for.

optimizers.py, saving.py    the optimizer that a model was compiled with; in its file
outputs.py                  loss and metrics from outputs, for layers that are computed elsewhere
shape_errors.py             why a batch does not fit a model
collectives.py              collectives inside TensorFlow's graph; collective_layers.py: with them
"""

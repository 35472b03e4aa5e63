"""Horovod's interface on Teams; scripts know it as `tutorial_dl.horovod`.

A collective, from top to bottom: collectives.py (tensors, gradients), tensorflow_graph.py (order
inside tf.function), wire.py (what ranks agree on), numba_kernels.team.
"""

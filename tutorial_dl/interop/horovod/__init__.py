"""Horovod's interface on Teams; scripts know it as `tutorial_dl.horovod`, which says more.

interface.py    all names; process_sets.py: parts of the ranks
basics.py       starting, launching.py and hosts.py too
collectives.py  on tensors; objects.py, pickles.py: on objects; wire.py, arrays.py: below them
optimizer.py    gradients.py, callbacks.py, sync_batch_norm.py: for training
elastic/        going on with the ranks that are left when some are lost
arguments.py    arguments that calls share; reductions.py, compression.py: two of them
"""

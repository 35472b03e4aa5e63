"""Horovod's interface on Teams; scripts know it as `tutorial_dl.horovod`, which says more.

basics.py       init, ranks and process sets; launching.py: starting ranks
collectives.py  on tensors; objects.py, pickles.py: on objects; wire.py: below them, on arrays
optimizer.py    gradients.py, callbacks.py, sync_batch_norm.py: for training
elastic/        going on with the ranks that are left when some are lost
arguments.py    arguments that calls share, compression among them
"""

"""Horovod's interface on Teams; scripts know it as `tutorial_dl.horovod`, which says more.

interface.py       all names; basics.py, launching.py: starting; process_sets.py: parts of the ranks
collectives.py     on tensors; objects.py, pickles.py: on objects; wire.py, arrays.py: how they travel
optimizer.py       what users wrap; gradients.py reduces for it; callbacks.py, sync_batch_norm.py
arguments.py       of all calls; reductions.py, compression.py: two of them; elastic.py refuses
"""

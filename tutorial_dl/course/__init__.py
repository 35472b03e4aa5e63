"""What only the notebooks need: the other rooms never import this one.

foundations/  curve fitting, descent, and the theory that notebooks compare measurements with
exercises/    the checks of the notebooks' exercises
plotting/     their figures
measure.py    latencies and bandwidths; traffic.py: how many bytes an algorithm moves
virtual_ranks.py  ranks for learners' functions: as threads, or with a limit on every wait
two_peaks.py  a small GAN, and how runs of it are judged
assembly.py   which vector instructions a compiled loop has
overlap.py    reducing gradients during the backward pass, which does not pay on one node
stand_ins.py, linked.py  devices and links that sleep as long as real ones would take
progress.py   which exercises a learner has solved; executing.py: runs notebooks
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules=["exercises", "foundations", "measure", "overlap", "plotting", "traffic"]
)

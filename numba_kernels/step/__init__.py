"""The synchronous step: gradients of all ranks reduced and weights updated, in one pass.

step.py     `Step`, which users call
kernels.py  the compiled passes over the ranks' shared memory
noise.py    the critical batch size, from the ranks' gradients
between.py  the compiled step between nodes, and whom each rank exchanges with
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"step": ["Step"]})

"""Tracing: which rank does what, and when.

recording.py  keeps the spans that this process announces (numba_kernels/spans.py)
clocks.py     compares the clocks of several nodes
"""

import lazy_loader

from ..spans import each, span

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["clocks", "recording"],
    submod_attrs={"recording": ["LIMIT", "Recording", "nested"]},
)
__all__ += ["each", "span"]

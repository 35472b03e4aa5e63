"""Star: one rank serves the others, a vector each way. A parameter server's data travels by it.

star.py            `Star`, which users call
hub.py, leaf.py    the serving rank, and each of the others
doorbell.py        requests and answers within a node: compiled waits on flags
helping.py         a waiting leaf does part of its own update
memory_layout.py   where everything lies in the shared memory
messages.py        the same between nodes; message_ends.py has the kernels of its two ends
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"star": ["Star"]})

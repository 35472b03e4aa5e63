"""%%px and %%mpi of a notebook that has no cluster yet: they say how to get one.

`Cluster` replaces them by its own (magics.py). Only IPython sessions have them; a notebook that has
imported nothing of this package does not.
"""

import sys

from ..tensorflow_chatter import hide_tensorflow_chatter

NAMES = {"line": ("px", "autopx", "pxconfig", "pxresult"), "cell": ("px", "mpi")}


def register() -> None:
    """Register the magics in this IPython session, if there is one, unless it has them."""
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return
    hide_tensorflow_chatter()  # of cells that import Keras first
    for kind, names in NAMES.items():
        for name in names:
            if name not in shell.magics_manager.magics[kind]:
                shell.register_magic_function(_no_cluster, kind, name)


def _no_cluster(line: str = "", cell: str | None = None) -> None:
    """Needs a cluster: c = cluster.start(n=4)."""
    from IPython.core.error import UsageError

    from . import registry

    running = [record.name for record in registry.load_all() if record.state() == "running"]
    join = f"; c = cluster.join({running[-1]!r}) joins the one that runs" if running else ""
    raise UsageError(f"no cluster yet: c = cluster.start(n=4){join}")

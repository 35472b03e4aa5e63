"""Python loads this file when it starts: here, in every process that a test starts.

Some libraries import another one only because it is installed. The tests start two thousand
processes, and never use what is hidden here:

    coverage          nbval has installed it, and Numba imports it: a sixth of the start of a rank
    debugpy           a kernel's debugger
    rfc3987_syntax    checks of addresses in JSON; it compiles a grammar when it is imported
    sklearn           Keras's wrappers for it

An engine's nanny, which passes signals on, needs few modules of ipyparallel and jupyter_client. It
gets these packages without what they import by themselves, which is half of a nanny's start.

Python looks for cycles of garbage while it imports, where it finds none. So it looks less often
here, which saves a tenth of a start.
"""

import gc
import sys

gc.set_threshold(50_000, 50, 100)

HIDDEN = {
    "coverage": ["numba.misc.coverage_support"],
    "debugpy": ["ipykernel.debugger"],
    "rfc3987_syntax": ["jsonschema._format"],
    "sklearn": ["keras.src.wrappers.fixes", "keras.src.wrappers.sklearn_wrapper"],
}


class Hidden:
    """Hides these modules while the given others are being imported, and from nobody else."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        for importer in HIDDEN.get(name, ()):
            module = sys.modules.get(importer)
            if module is not None and getattr(module.__spec__, "_initializing", False):
                raise ModuleNotFoundError("hidden by tests/support/startup", name=name)


sys.meta_path.insert(0, Hidden)

if sys.orig_argv[1:] == ["-m", "ipyparallel.engine.nanny"]:
    from importlib import util

    for spec in filter(None, map(util.find_spec, ("ipyparallel", "jupyter_client"))):
        sys.modules[spec.name] = util.module_from_spec(spec)

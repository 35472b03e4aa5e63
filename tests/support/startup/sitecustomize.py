"""Python loads this file when it starts: here, in every process that a test starts.

Numba imports `coverage` if it is installed, and nbval has installed it. That is a sixth of the
processor time that a rank takes to start, and the tests start two thousand processes.
"""

import sys


class NotForNumba:
    """Hides `coverage` from Numba, and from nobody else."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        importing = sys.modules.get("numba.misc.coverage_support")
        if name == "coverage" and importing and not hasattr(importing, "coverage_available"):
            raise ModuleNotFoundError("hidden by tests/support/startup", name=name)


sys.meta_path.insert(0, NotForNumba)

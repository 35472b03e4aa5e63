"""The command `python -m numba_kernels bench ...`; see bench/."""

import sys

from .bench import main

sys.exit(main())

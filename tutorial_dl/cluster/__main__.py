"""The programs of a cluster's processes: python -m tutorial_dl.cluster controller|engine ..."""

import sys

if __name__ == "__main__":
    which = sys.argv.pop(1)
    if which == "engine":
        from .engine import main
    else:
        from .controller import main
    main()

"""`python -m tutorial_dl`: threads are set and foreign ranks silenced before anything is loaded."""

import os
import sys

from . import launch


def main() -> None:
    if launch.under_mpi():
        launch.set_threads()
        if launch.rank() > 0:  # what is wrong with the command line is said once, by rank 0
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (for the process's life)
    from .cli import app

    app(prog_name="tutorial-dl")


if __name__ == "__main__":
    main()

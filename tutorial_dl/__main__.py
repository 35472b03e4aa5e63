"""`python -m tutorial_dl`: set threads and silence other ranks before anything is imported."""

import os
import sys
import time

from numba_kernels import launch

from .cli.ranks import ASKED, work
from .extras import missing

TO_SPEAK = 10.0  # seconds that rank 0 has to say what is wrong with the command line


def main() -> None:
    if launch.under_mpi():
        launch.set_threads()
        os.environ.update(launch.privacy.settings(os.environ, here=False))
        if launch.rank() > 0:  # only rank 0 reports what is wrong with the command line
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (until job.run_rank)
    try:
        if sys.argv[1:2] == [ASKED] and launch.under_mpi():
            status = work(*sys.argv[2:])
        else:
            from .cli.commands import app

            status = app(prog_name="tutorial-dl", standalone_mode=False)
    except ModuleNotFoundError as error:
        if (words := missing(error)) is None:
            raise
        print(f"error: {words}", file=sys.stderr)
        status = 1
    except Exception as error:
        if not hasattr(error, "format_message"):  # not an error of the command line, but a defect
            sys.stderr = sys.__stderr__
            raise
        from .cli.errors import in_one_line

        if text := in_one_line(error):  # without a command, help was shown
            print(f"error: {text}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        status = 130
    if status and "mpi4py.MPI" not in sys.modules:
        let_rank_0_speak()
    sys.exit(status or 0)


def let_rank_0_speak() -> None:
    """Wait on another rank of Open MPI, whose mpiexec kills all ranks as soon as one fails.

    Rank 0, which fails likewise, ends this wait.
    """
    found = launch.launched()
    if found is not None and found.rank > 0 and found.by == "mpiexec of Open MPI":
        time.sleep(TO_SPEAK)


if __name__ == "__main__":
    main()

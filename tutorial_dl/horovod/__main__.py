"""python -m tutorial_dl.horovod -np 4 python train.py ...: replaces horovodrun on one machine."""

import argparse
import re
import sys

from numba_kernels import launch


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tutorial_dl.horovod",
        description="Start a script on several ranks of this machine. On a cluster, use the site's "
        "mpiexec or srun.",
    )
    parser.add_argument("-np", "--num-proc", type=int, required=True, help="number of ranks")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="python train.py ...")
    given = parser.parse_args(words)
    command = given.command
    first = command[0] if command else ""
    if re.fullmatch(r"python(3(\.\d+)?)?", first.rsplit("/", 1)[-1]):
        command = command[1:]
    elif first and not first.startswith("-") and not first.endswith(".py"):
        parser.error(f"{first} is neither python nor a script (.py); expected python train.py ...")
    if not command:
        parser.error("the command is missing; expected python train.py ...")
    try:
        return launch.run_ranks(given.num_proc, command).returncode
    except (ValueError, launch.LaunchError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())

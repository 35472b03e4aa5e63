"""python -m tutorial_dl.horovod -np 4 python train.py ...: replaces horovodrun on one machine."""

import argparse
import importlib.util
import re
import sys

from numba_kernels import launch

from ..interop.horovod.launching import check_elastic, elastic_environment, ranks_on

FRAMEWORKS = {"TensorFlow": "tensorflow", "Keras": "keras", "PyTorch": "", "MXNet": ""}
CONTROLLERS = {"MPI": True, "Gloo": False}
OPERATIONS = {"shared memory": True, "MPI": True, "NCCL": False, "DDL": False, "CCL": False}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tutorial_dl.horovod",
        description="Start a script on several ranks of this machine. On a cluster, use the site's "
        "mpiexec or srun.",
    )
    parser.add_argument("-np", "--num-proc", type=int, help="number of ranks")
    parser.add_argument("-H", "--hosts", help="localhost:4, this machine and its number of slots")
    parser.add_argument(
        "--min-np", "--min-num-proc", type=int, dest="least", metavar="N",
        help="go on without ranks that are lost while N are left (scripts with hvd.elastic.run)",
    )  # fmt: skip
    parser.add_argument(
        "--max-np", "--max-num-proc", type=int, dest="most", metavar="N",
        help="accepted: no rank joins later",
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="show the command of the ranks")
    parser.add_argument(
        "-cb", "--check-build", action="store_true", help="show what scripts can use, and exit"
    )
    parser.add_argument("--mpi", action="store_true", help="accepted: ranks always use MPI")
    parser.add_argument("--gloo", action="store_true", help="refused: ranks always use MPI")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="python train.py ...")
    given = parser.parse_args(words)
    if given.check_build:
        print(build())
        return 0
    if given.gloo:
        parser.error("--gloo is not there: ranks use MPI; leave it out")
    command = given.command
    first = command[0] if command else ""
    if re.fullmatch(r"python(3(\.\d+)?)?", first.rsplit("/", 1)[-1]):
        command = command[1:]
    elif first and not first.startswith("-") and not first.endswith(".py"):
        parser.error(f"{first} is neither python nor a script (.py); expected python train.py ...")
    if not command:
        parser.error("the command is missing; expected python train.py ...")
    try:
        ranks = ranks_on(given.hosts, given.num_proc)
        if given.verbose:
            print(f"{ranks} ranks: {sys.executable} {' '.join(command)}", file=sys.stderr)
        launch.check_ranks(ranks)
        check_elastic(ranks, given.least, given.most)
        environment = elastic_environment(given.least)
        return launch.run_ranks(ranks, command, env=environment, least=given.least).returncode
    except (ValueError, launch.LaunchError) as error:
        parser.error(str(error))


def build() -> str:
    """What scripts can use, in the form of `horovodrun --check-build`."""
    there = {
        name: bool(module) and importlib.util.find_spec(module) is not None
        for name, module in FRAMEWORKS.items()
    }
    lines = ["tutorial_dl.horovod:"]
    tables = ("Frameworks", there), ("Controllers", CONTROLLERS), ("Tensor Operations", OPERATIONS)
    for title, table in tables:
        lines += ["", f"Available {title}:"]
        lines += [f"    [{'X' if found else ' '}] {name}" for name, found in table.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

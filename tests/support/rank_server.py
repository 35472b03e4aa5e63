"""One rank of a world that is kept (worlds.py): runs one function after the other on request.

    mpiexec -n 3 python -m rank_server FOLDER

Orders come through FOLDER/orders. The output of a call goes to FOLDER/<rank>.out and .err.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import signal
import socket
import sys
from pathlib import Path

import asleep
import remains
from light_pytest import instead_of_pytest
from modules import load_file

from numba_kernels import launch

RECOVER = "recover"  # the order to recover from the failure of the last call


def serve(folder: Path) -> None:
    """Run orders until the other end closes the socket. Between calls the rank sleeps in a read."""
    remains.note_what_is_loaded()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    rank = launch.rank()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(folder / "orders"))
    before = remains.Before()
    with connection, connection.makefile("rw") as stream:
        tell(stream, {"rank": rank, "pid": os.getpid()})
        for line in stream:
            order = json.loads(line)
            with written_to(folder / f"{rank}.out", folder / f"{rank}.err"):
                if order == RECOVER:
                    answer = recover(before)
                else:
                    before = remains.Before()
                    answer = call(before, **order)
            tell(stream, answer)


def tell(stream, what: dict) -> None:
    stream.write(json.dumps(what) + "\n")
    stream.flush()


def call(
    before: remains.Before, file: str, function: str, arguments: list, env: dict[str, str]
) -> dict:
    """Run the function; the answer has these fields:

    error    "" or its text
    remains  what the call changed
    failed   whether the world has failed; None if there is none
    heavy    TensorFlow is loaded
    """
    saved = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    error = run(file, function, arguments)
    for name, value in saved.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if error:
        return {"error": error}
    heavy = sys.modules.get("keras") is not None
    if heavy:
        sys.modules["keras"].utils.clear_session()  # layers are numbered from the start again
    gc.collect()  # teams that are no longer used report that they end
    gc.freeze()  # what is left is modules, mostly; the next collection passes over them
    children = remains.children()
    error = f"left running: {', '.join(children)}" if children else ""
    failed = remains.failed()
    return {"error": error, "remains": before.changes(), "failed": failed, "heavy": heavy}


def recover(before: remains.Before) -> dict:
    """What the last call changed, apart from a failure of the world, which recovers from it."""
    gc.unfreeze()
    try:
        remains.recover()
    except Exception as error:
        return {"error": f"no recovery: {error}"}
    gc.collect()
    gc.freeze()
    return {"error": "", "remains": before.changes()}


def run(file: str, function: str, arguments: list) -> str:
    """The error that the function raised, in one line; its output has the traceback."""
    asleep.runs(file)
    try:
        getattr(load_file(file), function)(*arguments)
    except BaseException as error:
        sys.excepthook(*sys.exc_info())  # as at the end of a program, so that its teams hear of it
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


@contextlib.contextmanager
def written_to(out: Path, err: Path):
    """Redirect what this process writes, also from compiled code, to these files."""
    kept = []
    for number, file in ((1, out), (2, err)):
        kept.append(os.dup(number))
        opened = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


if __name__ == "__main__":
    instead_of_pytest()
    serve(Path(sys.argv[1]))

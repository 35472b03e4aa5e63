"""One rank of a world that stays (worlds.py): runs what it is asked to, again and again.

    mpiexec -n 3 python rank_server.py FOLDER

FOLDER/socket is where the orders come from; what a call prints goes to FOLDER/<rank>.out and .err.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib.util
import json
import os
import signal
import socket
import sys
from pathlib import Path

import remains

from numba_kernels import launch


def serve(folder: Path) -> None:
    """Until the other end is closed. Asleep in a read between calls: no processor time."""
    remains.note_what_is_loaded()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    rank = launch.rank()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(folder / "socket"))
    with connection, connection.makefile("rw") as stream:
        tell(stream, {"rank": rank, "pid": os.getpid()})
        for line in stream:
            with written_to(folder / f"{rank}.out", folder / f"{rank}.err"):
                answer = call(**json.loads(line))
            tell(stream, answer)


def tell(stream, what: dict) -> None:
    stream.write(json.dumps(what) + "\n")
    stream.flush()


def call(file: str, function: str, arguments: list, env: dict[str, str], keras: bool) -> dict:
    """{"error": "" or what it was, "remains": what is no more as before, "heavy": TensorFlow}"""
    before = remains.Before()
    saved = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    error = run(file, function, arguments)
    for name, value in saved.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if error:
        return {"error": error, "remains": []}
    heavy = sys.modules.get("keras") is not None
    if heavy:
        sys.modules["keras"].utils.clear_session()  # names of layers count from the start again
    if keras and "numba_kernels.team.world" in sys.modules:
        # One that has failed, on whatever rank, and recovered is not as before; the next team makes
        # a new one. That costs two communicators, and to load TensorFlow again 5 to 10 s a rank.
        sys.modules["numba_kernels.team.world"]._world = None
    gc.collect()  # teams that nobody holds any more say so
    gc.freeze()  # what is left are modules, above all; the next collection need not go through them
    children = remains.children()
    error = f"left running: {', '.join(children)}" if children else ""
    return {"error": error, "remains": before.changes(), "heavy": heavy}


def run(file: str, function: str, arguments: list) -> str:
    """What it raised, in a word; the whole of it is in its output."""
    try:
        spec = importlib.util.spec_from_file_location("of_the_test", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        getattr(module, function)(*arguments)
    except BaseException as error:
        sys.excepthook(*sys.exc_info())  # as at the end of a program: its teams hear of it
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


@contextlib.contextmanager
def written_to(out: Path, err: Path):
    """What this process writes, compiled code included, goes to these files."""
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
    serve(Path(sys.argv[1]))

"""Runs on every engine: evaluates, assigns, calls, records what the notebook asks for.

A request is a cell with a parcel (parcels.py); the rank publishes the parcel of the result. As it
is a cell, its output is shown, and a failure reaches the other ranks.
"""

import contextlib
import functools
import linecache
from types import CodeType

from . import parcels
from .protocol import VALUE

# The cell of a request. An import statement would leave a name among the user's variables.
CODE = f'__import__("{__name__}", fromlist=["_"]).answer()'
SENT = "_tutorial_dl_sent"  # holds a value while it is assigned

_recording = None  # the recording in progress, of %%mpi --trace
_texts: set[str] = set()  # names of what was compiled here


def answer() -> None:
    """Do what the request that this engine is executing asks for."""
    from ipykernel.ipkernel import IPythonKernel

    kernel = IPythonKernel.instance()
    request, shell = kernel.get_parent("shell"), kernel.shell
    try:
        sources, *buffers = request["buffers"]
        # Let tracebacks and the cluster's table show cells of the notebook that define functions.
        for file, (name, text) in parcels.unpack([sources]).items():
            lines = text.splitlines(keepends=True)
            linecache.cache[file] = len(text), None, lines, file  # None: keep it, there is no file
            shell.compile.labels[file] = name
        kernel.publish(VALUE, _result(shell, *parcels.unpack(buffers)))
    except BaseException as error:
        _shorten(shell, error)
        raise


def _result(shell, what: str, text: str, *values) -> list:
    """The parcel of an expression's value ("get"), of a function's result ("run"), or of None."""
    if what == "do":
        shell.user_ns[SENT] = values[0]
        try:
            exec(_compiled(shell, text, "exec"), shell.user_ns)
        finally:
            shell.user_ns.pop(SENT, None)
        return parcels.pack(None)[0]
    if what == "get":
        value = eval(_compiled(shell, text, "eval"), shell.user_ns)
        told = f"{text} is"
        plain = bool | int | float | str | list | dict
        own = getattr(value, "__dict__", {}).items()  # which runs no code of the value's
        names = (name for name, each in own if name[0] != "_" and isinstance(each, plain))
        part = next((f'c["{text}.{name}"]' for name in names), "an attribute")
        advice = f"ask for a part of it, such as {part}, or compute in a %%px cell"
    else:
        function, args, kwargs = values
        inner = function.func if isinstance(function, functools.partial) else function
        if getattr(inner, "__module__", "") == "__main__":  # pickled by value, with its own globals
            for name, value in shell.user_ns.items():  # what the notebook does not have
                getattr(inner, "__globals__", {}).setdefault(name, value)
        call = _compiled(shell, f"{text}(*args, **kwargs)", "eval")
        value = eval(call, {"args": args, "kwargs": kwargs, text: function})
        told, advice = f"{text} returned", "return a part of it"
    try:
        return parcels.pack(value, on_rank=True)[0]
    except parcels.CannotSend as error:
        kind = parcels.kind(value)
        raise parcels.CannotSend(
            f"{told} {kind}, which can't be sent to the notebook ({error}): {advice}"
        ) from None


def _compiled(shell, text: str, mode: str) -> CodeType:
    """Compile `text` as a cell, so that it is shown as what the rank does."""
    file = shell.compile.cache(text, 0, text)
    _texts.add(file)
    return compile(text, file, mode)


def _shorten(shell, error: BaseException) -> None:
    """Let IPython show the frames of the user's function only; none if it is not in one."""
    trace = error.__traceback__
    ours = {__file__, parcels.__file__, *_texts}
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    lines = []
    if trace is not None:
        lines = shell.InteractiveTB.structured_traceback(type(error), error, trace, tb_offset=0)
    with contextlib.suppress(AttributeError, TypeError):  # an exception without a __dict__
        error._render_traceback_ = lambda: lines


def begin_recording() -> None:
    """Begin to record what the rank does."""
    global _recording
    from tutorial_dl.training import timeline

    end_recording()  # a recording left by a cell that never ended
    _recording = timeline.record().start()


def end_recording() -> dict | None:
    """End and return the recording."""
    global _recording
    running, _recording = _recording, None
    return None if running is None else running.stop().taken

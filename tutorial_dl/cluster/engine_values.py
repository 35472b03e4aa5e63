"""Runs on every engine: evaluates, assigns and calls what the notebook asks for (variables.py).

A request is a cell with a parcel (parcels.py); the rank publishes the parcel of the result. As it
is a cell, its output is shown, and a failure reaches the other ranks.
"""

import contextlib
import functools
import linecache
from collections.abc import Callable
from types import CodeType

from . import parcels
from .protocol import VALUE

# The cell of a request. An import statement would leave a name among the user's variables.
CODE = f'__import__("{__name__}", fromlist=["_"]).answer()'
SENT = "_tutorial_dl_sent"  # holds a value while it is assigned

_texts: set[str] = set()  # names of what was compiled here


def answer() -> None:
    """Do what the request that this engine is executing asks for."""
    from ipykernel.ipkernel import IPythonKernel

    kernel = IPythonKernel.instance()
    request, shell = kernel.get_parent("shell"), kernel.shell
    try:
        sources, *buffers = request["buffers"]
        _show_sources(shell, parcels.unpack([sources]))
        what, *rest = parcels.unpack(buffers)
        result = {"get": _get, "set": _set, "delete": _delete, "run": _run}[what](shell, *rest)
        kernel.publish(VALUE, result)
    except BaseException as error:
        _shorten(shell, error)
        raise


def _get(shell, expression: str) -> list:
    value = eval(_compiled(shell, expression, "eval"), shell.user_ns)
    advice = "ask for a part of it, such as an attribute, or compute in a %%px cell"
    return _packed(value, f"{expression} is", advice)


def _packed(value: object, what: str, advice: str) -> list:
    try:
        return parcels.pack(value, on_rank=True)[0]
    except parcels.CannotSend as error:
        kind = parcels.kind(value)
        raise parcels.CannotSend(
            f"{what} {kind}, which can't be sent to the notebook ({error}): {advice}"
        ) from None


def _set(shell, target: str, value: object) -> list:
    shell.user_ns[SENT] = value
    try:
        exec(_compiled(shell, f"{target} = {SENT}", "exec"), shell.user_ns)
    finally:
        shell.user_ns.pop(SENT, None)
    return parcels.pack(None)[0]


def _delete(shell, target: str) -> list:
    exec(_compiled(shell, f"del {target}", "exec"), shell.user_ns)
    return parcels.pack(None)[0]


def _run(shell, function: Callable, args: tuple, kwargs: dict) -> list:
    inner = function.func if isinstance(function, functools.partial) else function
    if getattr(inner, "__module__", "") == "__main__":  # pickled by value, with globals of its own
        for name, value in shell.user_ns.items():  # what the notebook does not have
            getattr(inner, "__globals__", {}).setdefault(name, value)
    name = getattr(function, "__name__", "")
    name = name if name.isidentifier() else "function"
    call = _compiled(shell, f"{name}(*args, **kwargs)", "eval")
    value = eval(call, {"args": args, "kwargs": kwargs, name: function})
    return _packed(value, f"{name} returned", "return a part of it")


def _compiled(shell, text: str, mode: str) -> CodeType:
    """Compile `text` as a cell, so that it is shown as what the rank does."""
    file = shell.compile.cache(text, 0, text)
    _texts.add(file)
    return compile(text, file, mode)


def _show_sources(shell, sources: dict[str, tuple[str, str]]) -> None:
    """Let tracebacks and the cluster's table show cells of the notebook that define functions.

    `sources`: {file: (name of the cell such as "In[12]", its text)}.
    """
    for file, (name, text) in sources.items():
        lines = text.splitlines(keepends=True)
        linecache.cache[file] = len(text), None, lines, file  # None: keep it, there is no file
        shell.compile.labels[file] = name


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

"""Acts at each place of a function where Python may handle a signal.

Python handles a signal before its next instruction after a call, or when a function or the next
turn of a loop begins. So an exception, or another function, comes at each of these places in turn.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import CodeType


def interrupt():
    raise KeyboardInterrupt


def all_of(code: CodeType) -> Iterator[CodeType]:
    """The code, and that of what is defined in it, such as comprehensions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from all_of(constant)


def at_place(number: int, call: Callable, functions: list, act: Callable = interrupt) -> int:
    """Call `call`, and `act` at place `number` of `functions`; how many it came through."""
    passed, before = 0, {}
    codes = {code for function in functions for code in all_of(function.__code__)}

    def trace(frame, event, _):
        nonlocal passed
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            last = before.get(frame, "")
            before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if last.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
                passed += 1
                if passed == number:
                    sys.settrace(None)
                    act()
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return passed

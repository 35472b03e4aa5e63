"""What tests of kernels ask of their machine code, by numba_kernels/assembly.py."""

from __future__ import annotations

import inspect
import platform

import numpy as np

from numba_kernels import assembly

UPDATES = 15  # loops behind the switch over all optimizers: one a rule, SGD 3, RMSprop 4
# Narrow vectors in an x86 kernel may be two neighbours that met by chance, not a loop on vectors.
LEAST_BITS = 128 if platform.machine() in ("aarch64", "arm64") else 256


def fresh(dispatcher, arguments) -> str:
    """The assembler of a kernel compiled anew for `arguments`."""
    return assembly.assembler(dispatcher, *arguments)


def vector_loops(text: str) -> list[assembly.Loop]:
    """The innermost loops that do floating-point arithmetic on vectors."""
    return [loop for loop in assembly.loops_of(text) if loop.bits >= LEAST_BITS]


def source_loops(dispatcher) -> int:
    """Loops over elements in a kernel's source."""
    return inspect.getsource(dispatcher.py_func).count("for i in range(")


def arguments_for(dispatcher, n: int = 8) -> list:
    """Something of the right type for every argument of a kernel, by its name."""
    special = {
        "slots": np.zeros((3, n), np.float32),
        "start": 0,
        "hyper": np.zeros(8),
        "squares": np.zeros(2),
    }
    vectors = ("parameters", "gradient", "x", "g", "row", "v", "s", "a", "m", "d")
    return [
        special.get(name, np.zeros(n, np.float32) if name in vectors else np.float32(0.5))
        for name in inspect.signature(dispatcher.py_func).parameters
    ]

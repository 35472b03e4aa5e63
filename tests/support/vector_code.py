"""Looks into compiled kernels: which loops of the machine code work on vectors?"""

from __future__ import annotations

import inspect
import platform
import re

import numba
import numpy as np

ARM = r"\bf\w+\s+(v\d+\.\d[sd]|z\d+\.[sd])|\bf\w+\.[248][sd]\s"  # NEON and SVE, as ELF or Mach-O
WIDE = r"\bv(f?n?m?(add|sub|mul)\w*|div|sqrt|rsqrt\w*)p[sd]\s.*%[yz]mm"  # AVX, AVX-512
PATTERNS = {"x86_64": WIDE, "AMD64": WIDE, "aarch64": ARM, "arm64": ARM}

UPDATES = 15  # loops behind the switch over all optimizers: one a rule, SGD 3, RMSprop 4


def fresh(dispatcher, arguments) -> str:
    """The assembler of a kernel compiled anew for `arguments`: Numba keeps none in its cache."""
    options = {k: dispatcher.targetoptions[k] for k in ("nogil", "fastmath", "error_model")}
    function = numba.njit(**options)(dispatcher.py_func)
    function.compile(tuple(numba.typeof(a) for a in arguments))
    return function.inspect_asm(function.signatures[0])


def vector_loops(assembler: str) -> list[str]:
    """The bodies of innermost loops that do floating-point arithmetic on vectors."""
    found, labels, lines = [], {}, assembler.splitlines()
    for i, line in enumerate(lines):
        if label := re.match(r"(\.?L\w+):", line):
            labels[label[1]] = i
        jump = re.match(r"\s+(?:j\w+|b\.\w+|c?b\w*|tbn?z)\s.*?(\.?L\w+)\s*$", line)
        if jump and jump[1] in labels:
            found.append((labels[jump[1]], i))
    inner = [
        (a, b)
        for a, b in found
        if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in found)
    ]
    bodies = ["\n".join(lines[a : b + 1]) for a, b in inner]
    return [body for body in bodies if re.search(PATTERNS[platform.machine()], body)]


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

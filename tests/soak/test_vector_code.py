"""The loops of the ten hot kernels are on vectors: their machine code has packed arithmetic.

Compilers say nothing when a loop falls back to one element at a time, which takes 4 to 16 times as
long (an index that may wrap around, a float64 constant, too many arrays).
"""

import platform
import re

import numpy as np
import pytest

# {kernel: packed instructions that its loops need, for float32}
HOT = {
    "allreduce.elementwise.combine": "add mul min|cmp",
    "allreduce.elementwise.divide": "mul",
    "allreduce.shared_memory.add_two": "add mul",
    "step.kernels.add_weighted": "add|fmadd mul|fmadd",
    "optimizers.sgd.momentum": "mul sub|fmadd|fmsub|fnmadd",
    "optimizers.adam.kernel": "mul div sqrt",
    "optimizers.adamw.kernel": "mul div sqrt",
    "optimizers.clipping.sum_of_squares": "mul|fmadd",
    "compression.top_k.accumulate": "add and",
    "compression.adasum.products": "mul|fmadd",
}


def packed(dtypes):
    """Print {kernel: what its code lacks}."""
    from importlib import import_module

    for dtype in dtypes:
        x, one = np.ones(8, dtype), np.dtype(dtype).type(0.5)
        slots, hyper = np.ones((2, 8), dtype), np.ones(8)
        arguments = {
            "combine": (0, x, x), "divide": (x, 2), "add_two": (x, x, 2),
            "add_weighted": (x, 0.5, x), "momentum": (x, x, x, one, one, None),
            "kernel": (x, x, slots, 0, hyper, None), "sum_of_squares": (x,),
            "accumulate": (x, x, x), "products": (x, x),
        }  # fmt: skip
        for name, needed in HOT.items():
            module, _, function = name.rpartition(".")
            kernel = getattr(import_module(f"numba_kernels.{module}"), function)
            fresh = type(kernel)(kernel.py_func, targetoptions=kernel.targetoptions)
            fresh(*arguments[function])
            (code,) = fresh.inspect_asm().values()
            end = "p[sd]" if dtype == "float32" else "pd"  # sums of squares are in float64
            for each in needed.split():
                one_of = "|".join(f"v?f?[a-z]*{part}[a-z0-9]*?" for part in each.split("|"))
                if not re.search(rf"^\s+(?:{one_of}){end}\b", code, re.MULTILINE):
                    print(f"{name}, {dtype}: no packed {each}")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names are those of x86-64")
def test_hot_loops_are_on_vectors(on_ranks, record):
    found = on_ranks(1, packed, ["float32", "float64"], fresh=True)
    record("hot kernels on vectors", str(len(HOT)), found.strip() or str(len(HOT)), not found)

"""Atomic loads, stores and additions on shared memory, for nopython code.

Two ranks that share memory use a flag to agree on when data is ready. Every store that the writer
does before `store_release` is visible to a reader that sees the new flag with `load_acquire`. A
barrier needs no other ordering, and on x86-64 this costs nothing extra.

Addresses are plain integers (`array.ctypes.data + 8 * i`) of 8-byte aligned 64-bit words.
"""

import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_WORD = ir.IntType(64).as_pointer()


@intrinsic
def load_acquire(typingctx, address):
    """Return the int64 at `address`; later reads see what its writer wrote before releasing it."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _WORD)
        return builder.load_atomic(pointer, ordering="acquire", align=8)

    return types.int64(types.intp), generate


@intrinsic
def store_release(typingctx, address, value):
    """Write the int64 `value` to `address`, after everything that this thread wrote before."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _WORD)
        builder.store_atomic(arguments[1], pointer, ordering="release", align=8)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), generate


@intrinsic
def fetch_add(typingctx, address, value):
    """Atomically add `value` to the int64 at `address`, and return the value before (seq_cst)."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _WORD)
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.intp, types.int64), generate


@intrinsic
def fence(typingctx):
    """A full memory barrier: no later load is done before all ranks can see every earlier store."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


_RELAX = {"x86_64": ("llvm.x86.sse2.pause", []), "aarch64": ("llvm.aarch64.hint", [1])}


@intrinsic
def relax(typingctx):
    """Tell the core that this is a spin loop, so that it saves power and lets its sibling run."""

    def generate(context, builder, signature, arguments):
        name, values = _RELAX.get(platform.machine(), (None, []))
        if name:
            int32 = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [int32] * len(values))
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            builder.call(function, [int32(value) for value in values])
        return context.get_dummy_value()

    return types.void(), generate

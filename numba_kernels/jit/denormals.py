"""Flush denormal numbers to zero while a kernel runs.

When gradients become zero, a running average shrinks until it is *denormal* (below 1.2e-38 in
float32) and then stays so: 0.9 times the smallest number is rounded back to it. x86 processors
handle such operands in microcode, at some hundred cycles each, so an update would stay ten times
slower. Two bits of the control word make them zero at no cost. (TensorFlow's threads set them too.)

On other processors nothing is done; Arm processors handle denormals in hardware.
"""

import llvmlite.ir as ir
from llvmlite import binding
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compile import compiled

X86 = binding.get_default_triple().startswith(("x86_64", "i686"))
FLUSH = 1 << 15 | 1 << 6  # MXCSR: denormal results and operands are taken as zero
I32, POINTER = ir.IntType(32), ir.IntType(8).as_pointer()


def _declare(builder, name):
    kind = ir.FunctionType(ir.VoidType(), [POINTER])
    return cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.sse.{name}")


@intrinsic
def _control_word(typingctx):
    def generate(context, builder, signature, arguments):
        if not X86:
            return I32(0)
        place = cgutils.alloca_once(builder, I32)
        builder.call(_declare(builder, "stmxcsr"), [builder.bitcast(place, POINTER)])
        return builder.load(place)

    return types.int32(), generate


@intrinsic
def _set_control_word(typingctx, word):
    def generate(context, builder, signature, arguments):
        if X86:
            place = cgutils.alloca_once(builder, I32)
            builder.store(arguments[0], place)
            builder.call(_declare(builder, "ldmxcsr"), [builder.bitcast(place, POINTER)])
        return context.get_dummy_value()

    return types.void(types.int32), generate


@compiled
def flush_denormals():
    """Treat denormals as zero on this thread from now on; return the argument for `restore`."""
    before = _control_word()
    _set_control_word(before | FLUSH)
    return before


@compiled
def restore(before):
    _set_control_word(before)

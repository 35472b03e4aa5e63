"""Half precision in compiled code: float16 and bfloat16 in, float32 inside, halves out.

Numba does not support halves on CPUs. So an array of halves is passed as integers with the same
bits; each format has its own integer type, which tells a kernel the format:

    float16   sign, 5 bits of exponent, 10 of fraction     passed as uint16
    bfloat16  sign, 8 bits of exponent,  7 of fraction     passed as int16

`widen` converts an element to float32, exactly; `narrow` converts it back, rounding to nearest,
ties to even, as NumPy and ml_dtypes do. Both leave elements of other types unchanged, so one kernel
works for all types. A bfloat16 is the upper half of a float32, so its conversion is a shift.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

FLOAT16, BFLOAT16 = types.uint16, types.int16
_CARRIERS = {"float16": np.dtype("uint16"), "bfloat16": np.dtype("int16")}
_int16, _int32, _single = ir.IntType(16), ir.IntType(32), ir.FloatType()


def is_half(dtype: np.dtype) -> bool:
    return dtype.itemsize == 2 and dtype.name in _CARRIERS


def carried(x: np.ndarray) -> np.ndarray:
    """Return `x` as kernels take it: the same memory, with halves viewed as integers."""
    return x.view(_CARRIERS[x.dtype.name]) if is_half(x.dtype) else x


@intrinsic
def widen(typingctx, element):
    """Convert an element for arithmetic: a half to float32; other types are unchanged."""

    def of_float16(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), _single)

    def of_bfloat16(context, builder, signature, arguments):
        wide = builder.shl(builder.zext(arguments[0], _int32), _int32(16))
        return builder.bitcast(wide, _single)

    def of_others(context, builder, signature, arguments):
        return arguments[0]

    if element in (FLOAT16, BFLOAT16):
        return types.float32(element), of_float16 if element == FLOAT16 else of_bfloat16
    return element(element), of_others


@intrinsic
def narrow(typingctx, array, number):
    """Convert `number` to the element type of `array`; it is rounded if they are halves."""

    def to_float16(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[1], ir.HalfType()), _int16)

    def to_bfloat16(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[1], _int32)
        upper = builder.lshr(bits, _int32(16))
        # Add just under half of the last place, and one more if the last place is odd: ties to even
        half = builder.add(_int32(0x7FFF), builder.and_(upper, _int32(1)))
        rounded = builder.lshr(builder.add(bits, half), _int32(16))
        # Rounding could turn a NaN into infinity; so it keeps its upper half, as a quiet NaN.
        is_nan = builder.fcmp_unordered("uno", arguments[1], arguments[1])
        kept = builder.or_(upper, _int32(0x40))
        return builder.trunc(builder.select(is_nan, kept, rounded), _int16)

    def to_others(context, builder, signature, arguments):
        return context.cast(builder, arguments[1], signature.args[1], signature.return_type)

    if array.dtype in (FLOAT16, BFLOAT16):
        write = to_float16 if array.dtype == FLOAT16 else to_bfloat16
        return array.dtype(array, types.float32), write
    return array.dtype(array, number), to_others

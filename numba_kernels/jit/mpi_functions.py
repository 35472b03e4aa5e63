"""MPI's C functions, callable in nopython code, with MPICH and Open MPI.

mpi4py has loaded an MPI library. The symbols are looked up in that library and passed to LLVM by
name, so compiled code calls `MPI_Isend` as C would, and can be cached (code that contains an
address could not).

A handle is an int in one family of MPI libraries (MPICH and its ABI) and a pointer in the other
(Open MPI). `HANDLE` is the NumPy dtype for the loaded library. Every compiled function that calls
MPI takes an array of that dtype, so the two families never share a cache entry. Handles and
constants are passed at run time and never compiled in: with Open MPI, the address of `MPI_FLOAT`
differs between processes.
"""

import ctypes
from functools import cache

import numpy as np
from llvmlite.binding import add_symbol
from mpi4py import MPI
from numba import types

HANDLE = np.dtype(f"i{MPI._sizeof(MPI.Comm)}")
STATUS_BYTES = MPI._sizeof(MPI.Status)
SUCCESS = MPI.SUCCESS

_h = types.Integer.from_bitwidth(8 * HANDLE.itemsize)
_i = types.int32
_p = types.intp  # every pointer is passed as an address: `array.ctypes.data`


def _bind(name: str, *arguments, returns=types.int32):
    address = ctypes.cast(getattr(_library, name), ctypes.c_void_p).value
    add_symbol(name, address)
    return types.ExternalFunction(name, returns(*arguments))


_library = ctypes.CDLL(MPI.__file__)

#                     buffer count type  to/from tag comm request
Isend = _bind("MPI_Isend", _p, _i, _h, _i, _i, _h, _p)
Irecv = _bind("MPI_Irecv", _p, _i, _h, _i, _i, _h, _p)
#                  from tag comm flag status
Iprobe = _bind("MPI_Iprobe", _i, _i, _h, _p, _p)
#                    request flag status
Test = _bind("MPI_Test", _p, _p, _p)
Cancel = _bind("MPI_Cancel", _p)
#                                  status flag
Test_cancelled = _bind("MPI_Test_cancelled", _p, _p)
#                       count requests flag statuses
Testall = _bind("MPI_Testall", _i, _p, _p, _p)
#                                send receive count type operation comm request
Iallreduce = _bind("MPI_Iallreduce", _p, _p, _i, _h, _h, _h, _p)
Wtime = _bind("MPI_Wtime", returns=types.float64)

sched_yield = types.ExternalFunction("sched_yield", types.int32())


def handle(thing) -> int:
    """Return the C handle of an mpi4py object as a signed integer that fits `HANDLE`."""
    bits = 8 * HANDLE.itemsize
    value = MPI._handleof(thing) & ((1 << bits) - 1)  # mpi4py extends the sign to 64 bits
    return value - (1 << bits) if value >= 1 << (bits - 1) else value


@cache
def datatype(dtype) -> int:
    return handle(MPI._typedict[np.dtype(dtype).char])


def _tag_position() -> int:
    """Return the offset of the tag in an MPI_Status, in 4-byte words; it depends on the library."""
    status = MPI.Status()
    words = (ctypes.c_int32 * (STATUS_BYTES // 4)).from_address(MPI._addressof(status))
    seen = []
    for probe in (0x1234567, 0x0ABCDEF):
        status.Set_tag(probe)
        seen.append({i for i, word in enumerate(words) if word == probe})
    (position,) = seen[0] & seen[1]
    return position


STATUS_TAG = _tag_position()

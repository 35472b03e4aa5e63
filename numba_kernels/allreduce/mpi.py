"""Allreduce by the MPI library: its MPI_Iallreduce, polled so that the wait can be interrupted.

    all ranks:  MPI_Iallreduce --> the algorithm that the library chooses --> MPI_Test until done

Cost: unknown, as the library chooses the algorithm. If a rank makes a different call, no message
tag or board shows it here; stall.py detects it after a quarter of a second of waiting.
"""

import ctypes
from functools import cache

import numba
import numpy as np
from mpi4py import MPI
from numba import carray, types

from ..jit.compile import c_function, compiled
from ..jit.mpi_functions import HANDLE, SUCCESS, Iallreduce, Test, Wtime, handle
from ..jit.yielding import nap, yielded
from ..shared.board import READY, WAIT
from ..spans import MESSAGE, began, ended
from .elementwise import MAX, MIN, PRODUCT, SUM, combine, divide
from .messages import AT, COMM, DATATYPE, HELD, IN_PLACE, OP, SEND, SPINS

FAILED = 3  # returned if the library reports an error


@compiled
def allreduce(link, rank, ranks, x, incoming, op, divisor):
    """Reduce `x` over the ranks in place, by the operation in `link`. Resumable."""
    handles, words, _, status, flag, patience = link
    request = handles.ctypes.data + SEND * handles.itemsize
    if words[AT] == 0:
        words[AT] = 1
        done = Iallreduce(
            words[IN_PLACE], x.ctypes.data, x.size, handles[DATATYPE], handles[OP],
            handles[COMM], request,
        )  # fmt: skip
        if done != SUCCESS:
            return FAILED
    started = Wtime()
    tries = 0
    while True:
        if Test(request, flag.ctypes.data, status.ctypes.data) != SUCCESS:
            return FAILED
        if flag[0]:
            ended(MESSAGE)
            divide(x, divisor)
            return READY
        tries += 1
        if tries == 1:
            began()
        waited = Wtime() - started
        if waited > patience[0]:
            return WAIT
        if tries > words[SPINS] and not yielded(words, HELD):
            nap(waited)


@cache
def operation(op: int, dtype: np.dtype) -> int:
    """Return the handle of MPI's operation, or of one of ours where a NaN must stay a NaN."""
    if op in (MIN, MAX) and dtype.kind == "f":
        elements = types.CPointer(numba.from_dtype(dtype))
        kinds = elements, elements, types.CPointer(types.int32), types.voidptr
        function = c_function(least if op == MIN else greatest, *kinds)
        made = np.zeros(1, HANDLE)
        create = ctypes.CDLL(MPI.__file__).MPI_Op_create
        create(ctypes.c_void_p(function), 1, ctypes.c_void_p(made.ctypes.data))
        return int(made[0])
    return handle({SUM: MPI.SUM, MIN: MPI.MIN, MAX: MPI.MAX, PRODUCT: MPI.PROD}[op])


@compiled(no_cfunc_wrapper=False)
def least(incoming, into, count, datatype):
    """An MPI_User_function: the minimum, which keeps NaN."""
    n = count[0]
    combine(MIN, carray(into, (n,)), carray(incoming, (n,)))


@compiled(no_cfunc_wrapper=False)
def greatest(incoming, into, count, datatype):
    """An MPI_User_function: the maximum, which keeps NaN."""
    n = count[0]
    combine(MAX, carray(into, (n,)), carray(incoming, (n,)))

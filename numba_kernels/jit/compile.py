"""The decorator `compiled`, which compiles every kernel of this package; cache.py stores them."""

import weakref

import numba
from numba.core import types

from .cache import KernelCache, cache_folder

__all__ = ["FASTMATH", "REASSOCIATE", "c_function", "cache_folder", "compiled"]

# Flags that keep NaN and infinity meaningful: a loss that became NaN must be seen as NaN.
FASTMATH = {"contract", "nsz", "arcp"}
# For loops that only add up: sums may be reordered, which vectorisation needs.
REASSOCIATE = {*FASTMATH, "reassoc"}

OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": FASTMATH,
    "no_cfunc_wrapper": True,  # a form that C can call, which takes 6% of compiling
}


def compiled(function=None, /, *, cache=True, **options):
    """Decorate `function` as a nopython kernel that runs without the GIL and is cached on disk."""
    if function is None:
        return lambda f: compiled(f, cache=cache, **options)
    kernel = numba.njit(**(OPTIONS | options))(function)
    if numba.config.DISABLE_JIT:
        return kernel
    kernel.get_call_template = _for_any_integer(kernel)
    if cache:
        kernel._cache = KernelCache(function)
        kernel.compile = kernel._cache.in_turn(kernel)
    return kernel


def _for_any_integer(kernel):
    """Return a `get_call_template` of `kernel` that compiles it once for all integers.

    Numba would compile it again for each constant with which another kernel calls it: a seventh of
    all kernels. LLVM knows constants anyway, where it inlines a call.
    """
    right, kernel = type(kernel).get_call_template, weakref.ref(kernel)  # so that it can be freed

    def get_call_template(args, kws):
        args, kws = tuple(map(_general, args)), {name: _general(one) for name, one in kws.items()}
        return right(kernel(), args, kws)

    return get_call_template


def _general(kind: types.Type) -> types.Type:
    return types.unliteral(kind) if isinstance(kind, types.IntegerLiteral) else kind


def c_function(kernel, *arguments: numba.types.Type) -> int:
    """Return the address of `kernel` as a C function. (`numba.cfunc` would compile every time.)

    The kernel needs the option `no_cfunc_wrapper=False`.
    """
    kernel.compile(arguments)
    found = kernel.overloads[arguments]
    return found.library.get_pointer_to_function(found.fndesc.llvm_cfunc_wrapper_name)

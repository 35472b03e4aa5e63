"""Compiling kernels, and what they need that Numba does not have.

compile.py        the decorator of every kernel
cache.py          compiled kernels on disk; turns.py lets one rank compile while others wait
compiling.py      the seconds that compiling has taken
mpi_functions.py  MPI's C functions, callable from kernels
atomics.py        acquire, release, fetch-and-add; futex.py sleeps until a word changes
yielding.py       yields the core while that is of use
halves.py         float16 and bfloat16; denormals.py flushes denormal numbers to zero
copying.py        copies of vectors
"""

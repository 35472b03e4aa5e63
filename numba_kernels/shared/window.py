"""Memory that the ranks of a node share.

The memory is an anonymous file (memfd). It has no name, so nothing is left behind in /dev/shm,
however the ranks end; and its size is limited by the node's memory only, not by the size of
/dev/shm (64 MiB in many containers). The other ranks open it through /proc/<pid>/fd while its
creator holds it open. Two ranks share memory, as this package defines it, if that works.
"""

import errno
import mmap
import os
import secrets
import socket
import weakref
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np

PAGE = mmap.PAGESIZE


def node_token() -> int:
    """Return a number that differs between machines, containers and users."""
    boot, processes = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    machine = boot.read_text() if boot.exists() else ""
    container = processes.stat().st_ino if processes.exists() else 0
    return zlib.crc32(f"{socket.gethostname()} {machine} {container} {os.getuid()}".encode())


def create(nbytes: int) -> tuple[int, int]:
    """Create zeroed anonymous memory; return (file descriptor, random name). May raise OSError."""
    name = secrets.randbits(62)
    descriptor = os.memfd_create(f"numba_kernels-{name:x}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, nbytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, name


def _open(pid: int, descriptor: int, name: int):
    """Open memory that process `pid` created, as a file of this process, or raise OSError.

    The name protects against a `pid` that is a different process here, as in another container:
    its descriptors are other files.
    """
    path = f"/proc/{pid}/fd/{descriptor}"
    if os.readlink(path) != f"/memfd:numba_kernels-{name:x} (deleted)":
        raise FileNotFoundError(path)
    return open(path, "r+b", buffering=0)


def attach(pid: int, descriptor: int, name: int, nbytes: int) -> np.ndarray | None:
    """Return the memory that process `pid` created, as uint8; None if it can't be opened here.

    OSError: this process, or the system, has no further file.
    """
    try:
        with _open(pid, descriptor, name) as own:
            return np.frombuffer(mmap.mmap(own.fileno(), nbytes), np.uint8)  # .base is the mmap
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None


def reserve(pid: int, descriptor: int, name: int, offset: int, nbytes: int) -> bool:
    """Have the operating system allocate the pages now, near this rank; False if it can't.

    Otherwise pages of an anonymous file are allocated on first touch. If memory has run out by
    then, the system kills some process, not always ours; so check `available` first.
    """
    try:
        with _open(pid, descriptor, name) as own:
            os.posix_fallocate(own.fileno(), offset, nbytes)
        return True
    except OSError:
        return False


def available() -> int:
    """Return the bytes of memory still available on the machine and in this process's cgroup."""
    free = None
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        table = dict(line.split(":") for line in lines)
        free = int(table["MemAvailable"].split()[0]) * 1024
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),  # cgroup v2
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        folder = Path("/sys/fs/cgroup")
        with suppress(OSError, ValueError):  # ValueError: the limit is "max"
            most = int((folder / limit).read_text())
            stat = (folder / limit).with_name("memory.stat").read_text().split()
            reclaimable = int(stat[stat.index(cache) + 1])
            left = most - int((folder / used).read_text()) + reclaimable
            free = left if free is None else min(free, left)
    return 2**63 if free is None else max(0, free)


# Columns of a window's table: addresses, bytes, and the number of the team's call of `empty`.
MINE, FIRST, STRIDE, NBYTES, NUMBER = range(5)
MOST = 256  # regions of a team at the same time


class Window:
    """The shared allocations of one team, in a table that compiled code searches by address.

    A region has one row of bytes per rank of the node, one after the other; or, with a stride of 0,
    one row for all ranks. When the last array that refers to a region is gone, the region is
    unmapped and its line of the table cleared.
    """

    def __init__(self, rank: int, ranks: int):
        self.rank, self.ranks = rank, ranks
        # The last line holds the number of lines to search.
        self.table = np.zeros((MOST + 1, 5), np.int64)
        self.made = 0
        # Weak references: strong ones would keep all memory for ever.
        self._memory: dict[int, weakref.ref] = {}

    def add(self, memory: np.ndarray, stride: int, row: int, dtype: np.dtype) -> np.ndarray:
        """Add `memory` (uint8, all rows of `row` bytes each); return this rank's row."""
        line = int(np.flatnonzero(self.table[:MOST, NBYTES] == 0)[0])
        start = memory.ctypes.data
        self.made += 1
        self.table[line] = (start + self.rank * stride, start, stride, row, self.made)
        self._memory[line] = weakref.ref(memory.base)
        self.table[MOST, NUMBER] = 1 + max(self._memory.copy())
        weakref.finalize(memory.base, self._forget, line).atexit = False
        return memory[self.rank * stride :][:row].view(dtype)

    @property
    def full(self) -> bool:
        return bool(self.table[:MOST, NBYTES].all())

    def _forget(self, line: int) -> None:
        self.table[line] = 0
        del self._memory[line]
        self.table[MOST, NUMBER] = 1 + max(self._memory, default=-1)

    def peers(self, x: np.ndarray) -> list[np.ndarray] | None:
        """Return each rank's array that corresponds to `x`, as a view; None outside all windows."""
        # Loop over a copy: garbage collection may run at any time and call `_forget`.
        for line, memory in self._memory.copy().items():
            mine, _, stride, nbytes, _ = map(int, self.table[line])
            offset = x.ctypes.data - mine
            if offset >= 0 and offset < nbytes >= offset + x.nbytes:
                whole = np.frombuffer(memory(), np.uint8)
                starts = (offset + rank * stride for rank in range(self.ranks))
                return [whole[s : s + x.nbytes].view(x.dtype).reshape(x.shape) for s in starts]
        return None


def row_bytes(n: int, dtype: np.dtype) -> int:
    """Return the bytes of a row of `n` elements: an odd number of pages."""
    pages = -(-max(n, 1) * np.dtype(dtype).itemsize // PAGE)
    return (pages | 1) * PAGE  # rows a power of two apart would share sets of the caches


def aligned(n: int, dtype=np.float32) -> np.ndarray:
    """Return `n` zeroed elements of private memory, aligned to 64 bytes."""
    nbytes = n * np.dtype(dtype).itemsize
    memory = np.zeros(nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + nbytes].view(dtype)


def cpu_mask() -> list[int]:
    """Return the processors that this process may run on, as 16 words of 63 bits."""
    words = [0] * 16
    for cpu in os.sched_getaffinity(0):
        words[cpu // 63 % 16] |= 1 << cpu % 63
    return words

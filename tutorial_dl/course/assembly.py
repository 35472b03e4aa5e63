"""Find out from a kernel's machine code which of its loops are vectorised.

A vector (SIMD) instruction does one operation on several elements at once: 8 float32 in a 256-bit
register. LLVM, which compiles for Numba, uses such instructions in a loop if it can prove that the
result stays the same; otherwise it gives no message. So look at the code:

    for loop in assembly.loops(kernel, x, y):     # as compiled for arguments like x and y
        print(loop)          # 17 instructions; arithmetic: 4 on 8 float32 at once, 0 on single ones

Only innermost loops are listed. A vectorised loop is often followed by one that processes the
remaining elements one by one. The instruction sets known here are those of x86-64 (SSE, AVX,
AVX-512) and of 64-bit Arm (NEON and SVE).
"""

import re
from dataclasses import dataclass

import numba

# SSE and AVX: vaddps %ymm1, ... works on packed singles, vaddsd on one double.
X86 = re.compile(
    r"v?(?:add|sub|mul|div|sqrt|rsqrt\w*?|rcp\w*?|min|max|cmp\w*?|fn?m(?:add|sub)\d*)"
    r"(?P<packed>[ps])(?P<kind>[sd])\s(?P<operands>.*)"
)
# NEON and SVE in ELF (fadd v0.4s, ... and z0.s) and Mach-O syntax (fadd.4s v0, ...); fadd s0 is
# scalar.
ARM = re.compile(
    r"f(?:n?m)?(?:add|sub|mul|mla|mls|mad|msb|div|sqrt|rsqrte|min\w*|max\w*|cm\w\w)"
    r"(?:\.(?P<mach>[24][sd])\s|\s+(?P<register>[vzsd])\d+(?:\.(?P<elf>\d?[sd]))?)"
)
LABEL = re.compile(r"(\.?L\w+):")
JUMP = re.compile(r"(?:j\w+|b\.\w+|c?b\w*|tbn?z)\s.*?(\.?L\w+)\s*$")
BITS = {"x": 128, "y": 256, "z": 512}  # of an x86 register, by the first letter of its name
NAMES = {"s": "float32", "d": "float64"}


@dataclass(frozen=True)
class Loop:
    """An innermost loop and its floating-point arithmetic."""

    instructions: tuple[str, ...]  # its machine code, in order
    packed: int  # how many of them are arithmetic on vectors
    scalar: int  # how many are arithmetic on a single element
    lanes: int  # the most elements that one processes at once (of SVE, whose width the code does
    # not show, the minimum that every processor has)
    dtype: str  # of these elements, "float32" or "float64"; "" without arithmetic

    @property
    def vectorised(self) -> bool:
        return self.packed > 0

    @property
    def bits(self) -> int:
        """Bits of the widest vectors; 0 if there are none."""
        return self.lanes * {"float32": 32, "float64": 64}[self.dtype] if self.packed else 0

    def __str__(self) -> str:
        what = f"{len(self.instructions)} instructions"
        if not self.packed + self.scalar:
            return f"{what}; no arithmetic"
        vectors = f"{self.packed} on {self.lanes} {self.dtype} at once, " if self.packed else ""
        return f"{what}; arithmetic: {vectors}{self.scalar} on single ones"


def loops(kernel, *arguments) -> list[Loop]:
    """Return the innermost loops of `kernel`, compiled for arguments of these types, in order."""
    return loops_of(assembler(kernel, *arguments))


def vectorised(kernel, *arguments) -> bool:
    """Return whether any loop of `kernel` does arithmetic on vectors."""
    return any(loop.vectorised for loop in loops(kernel, *arguments))


def assembler(kernel, *arguments) -> str:
    """Return the assembler text of `kernel`, compiled again, since the cache stores no text."""
    if not hasattr(kernel, "py_func"):
        raise TypeError(f"{kernel!r} is not compiled by Numba; decorate it with numba.njit")
    options = {
        name: kernel.targetoptions[name]
        for name in ("nogil", "fastmath", "error_model", "boundscheck")
        if name in kernel.targetoptions
    }
    fresh = numba.njit(**options)(kernel.py_func)
    fresh.compile(tuple(numba.typeof(argument) for argument in arguments))
    return fresh.inspect_asm(fresh.signatures[0])


def loops_of(text: str) -> list[Loop]:
    """Return the innermost loops in assembler `text`: code from a label to a jump back to it."""
    found, labels, lines = [], {}, [line.strip() for line in text.splitlines()]
    for at, line in enumerate(lines):
        if label := LABEL.match(line):
            labels[label[1]] = at
        jump = JUMP.match(line)
        if jump and jump[1] in labels:
            found.append((labels[jump[1]], at))
    inner = [
        (first, last)
        for first, last in found
        if not any(first <= a and b <= last and (first, last) != (a, b) for a, b in found)
    ]
    return [_loop(lines[first : last + 1]) for first, last in inner]


def _loop(lines: list[str]) -> Loop:
    code = tuple(line for line in lines if line and not line.startswith((".", "#", "//", ";", "L")))
    found = [each for each in map(_arithmetic, code) if each]
    packed = [(lanes, dtype) for lanes, dtype in found if lanes > 1]
    lanes, dtype = max(packed or found, default=(1, ""))
    return Loop(code, len(packed), len(found) - len(packed), lanes, dtype)


def _arithmetic(instruction: str) -> tuple[int, str] | None:
    """Return (elements at once, dtype) of a floating-point operation; None if it is not one."""
    if x86 := X86.match(instruction):
        kind = NAMES[x86["kind"]]
        if x86["packed"] == "s":
            return 1, kind
        widest = max(BITS[register] for register in re.findall("%([xyz])mm", x86["operands"]))
        return widest // (32 if kind == "float32" else 64), kind
    if arm := ARM.match(instruction):
        vector = arm["mach"] or arm["elf"]
        if not vector:
            return 1, NAMES[arm["register"]]
        kind = NAMES[vector[-1]]
        return int(vector[:-1] or (4 if kind == "float32" else 2)), kind
    return None

"""Tells which loops over elements are vector code at each place where they are compiled.

LLVM decides this anew at each place where a kernel is inlined. So the kernels that Python calls
are compiled with the source line of each instruction (a test shows that this changes none), and
the arithmetic of a loop in the source is looked for in the machine code of its lines:

    elements(kernel)            the loops over elements in a kernel's source
    reached(entry)              the kernels that `entry` calls, itself included
    located(entry, arguments)   the innermost loops of the machine code, with lines
    missing(loop, ..., dtype)   a source's arithmetic that isn't on vectors of this dtype
"""

from __future__ import annotations

import ast
import inspect
import platform
import re
import textwrap
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numba
from numba.core.cpu import CPUContext, CPUTargetOptions
from numba.core.debuginfo import DIBuilder, DummyDIBuilder
from numba.core.dispatcher import Dispatcher

from numba_kernels.jit.cache import KernelCache
from tutorial_dl.course import assembly

# Sources ---------------------------------------------------------------------------------------


class Elements(NamedTuple):
    """A loop over elements in a source file."""

    file: str
    first: int  # line
    last: int
    kinds: frozenset[str]  # add multiply divide root compare half quotient, or COPY alone
    in_float64: bool  # part of it, whatever the arrays' dtype


KINDS = {
    ast.Add: "add", ast.Sub: "add", ast.Mult: "multiply", ast.Div: "divide", ast.Compare: "compare",
}  # fmt: skip
COPY = "copy"  # the kind of a loop without arithmetic
CALLS = {
    "sqrt": "root", "min": "compare", "max": "compare", "sign": "compare",
    "widen": "half", "narrow": "half", "quotient": "quotient",  # of this package
}  # fmt: skip


def decorated(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions of a module that `compiled` decorates, with or without options."""

    def name(decorator):
        return getattr(decorator.func if isinstance(decorator, ast.Call) else decorator, "id", "")

    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and "compiled" in map(name, node.decorator_list)
    ]


@cache
def elements(kernel: Dispatcher) -> list[Elements]:
    """The innermost loops whose variable is an array's index, or the last one of several."""
    found = []
    for node in ast.walk(parsed(kernel)):
        if not isinstance(node, ast.For) or any(loops_in(node)):
            continue
        indices = [n.slice for n in ast.walk(node) if isinstance(n, ast.Subscript)]
        last = [index.elts[-1] if isinstance(index, ast.Tuple) else index for index in indices]
        if node.target.id in [getattr(index, "id", "") for index in last]:
            file, in_float64 = inspect.getfile(kernel.py_func), "np.float64(" in ast.unparse(node)
            kinds = arithmetic(node)
            found.append(Elements(file, node.lineno, node.end_lineno, kinds, in_float64))
    return found


def assigned_slices(kernel: Dispatcher) -> list[int]:
    """Lines of `x[a:b] = y`, of which Numba makes no vector code unless y is a number."""
    return [
        node.lineno
        for node in ast.walk(parsed(kernel))
        if isinstance(node, ast.Assign | ast.AugAssign) and not isinstance(node.value, ast.Constant)
        for target in getattr(node, "targets", [getattr(node, "target", None)])
        if isinstance(target, ast.Subscript)
        and any(isinstance(n, ast.Slice) for n in ast.walk(target.slice))
    ]


def parsed(kernel: Dispatcher) -> ast.Module:
    """The source of a kernel, with the line numbers of its file."""
    lines, start = inspect.getsourcelines(kernel.py_func)
    return ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), start - 1)


def loops_in(node: ast.For):
    return (n for n in ast.walk(node) if n is not node and isinstance(n, ast.For | ast.While))


def arithmetic(loop: ast.For) -> frozenset[str]:
    """Kinds of arithmetic in a loop's body, indices apart."""
    kinds, left = set(), list(loop.body)
    while left:
        at = left.pop()
        if isinstance(at, ast.Compare) and isinstance(at.ops[0], ast.Is | ast.IsNot):
            continue  # decided when the loop is compiled
        kind = at.op if isinstance(at, ast.BinOp | ast.AugAssign) else at
        kinds |= {KINDS[type(kind)]} if type(kind) in KINDS else set()
        if isinstance(at, ast.Call):
            called = getattr(at.func, "id", getattr(at.func, "attr", ""))
            kinds |= {CALLS[called]} if called in CALLS else set()
        left += [child for child in ast.iter_child_nodes(at) if not is_index(at, child)]
    return frozenset(kinds or {COPY})


def is_index(node: ast.AST, child: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and child is node.slice


def name_of(kernel: Dispatcher) -> str:
    return f"{kernel.__module__}.{kernel.__name__}".removeprefix("numba_kernels.")


def reached(entry: Dispatcher, known: dict | None = None) -> dict[str, Dispatcher]:
    """{name: kernel} of `entry` and of all that it calls, directly or not."""
    known = {} if known is None else known
    known[name_of(entry)] = entry
    function = entry.py_func
    for name in function.__code__.co_names:
        called = function.__globals__.get(name)
        if isinstance(called, Dispatcher) and name_of(called) not in known:
            reached(called, known)
    return known


# Machine code ----------------------------------------------------------------------------------


class Instruction(NamedTuple):
    text: str
    file: str
    line: int


@contextmanager
def with_lines():
    """Compile with the source line of each instruction, and keep nothing on disk.

    This is Numba's debug option without its checks of bounds and its variables in memory. Numba's
    own functions get the line from which they are called.
    """
    finalize = CPUTargetOptions.finalize

    def lines_only(self, flags, options):
        flags.debuginfo = flags.dbg_directives_only = True
        flags.boundscheck = flags.dbg_extend_lifetimes = False
        finalize(self, flags, options)

    def of_kernels(module, filepath, cgctx, directives_only):
        ours = not Path(filepath).is_relative_to(Path(numba.__file__).parent)
        builder = DIBuilder if ours else DummyDIBuilder
        return builder(module, filepath, cgctx, directives_only)

    builder = CPUContext.DIBuilder
    load, save = KernelCache.load_overload, KernelCache.save_overload
    CPUTargetOptions.finalize, CPUContext.DIBuilder = lines_only, staticmethod(of_kernels)
    KernelCache.load_overload = KernelCache.save_overload = lambda *_: None
    try:
        yield
    finally:
        CPUTargetOptions.finalize, CPUContext.DIBuilder = finalize, builder
        KernelCache.load_overload, KernelCache.save_overload = load, save


def assembler(entry: Dispatcher, arguments: tuple) -> str:
    types = tuple(a if isinstance(a, numba.types.Type) else numba.typeof(a) for a in arguments)
    entry.compile(types)
    return entry.inspect_asm(types)


def located(text: str) -> list[list[Instruction]]:
    """The innermost loops of assembler `text` compiled `with_lines`, and all calls."""
    files, at, lines = {}, "", []
    for line in text.splitlines():
        code = line.strip()
        if file := re.match(r'\.file\s+(\d+) "([^"]*)"(?: "([^"]*)")?', code):
            files[file[1]] = "/".join(filter(None, file.groups()[1:]))
        elif place := re.match(r"\.loc\s+(\d+) (\d+)", code):
            at = f" # at {files[place[1]]}:{place[2]}"
        elif re.match(r"[a-z]", code) and not assembly.JUMP.match(code):
            line += at
        lines.append(line)
    found = [loop.instructions for loop in assembly.loops_of("\n".join(lines))]
    calls = [line.strip() for line in lines if re.match(r"\s+(call|bl)", line)]
    return [[instruction(text) for text in texts] for texts in (*found, calls)]


def instruction(text: str) -> Instruction:
    code, file, line = re.match(r"(.*?)(?: # at (.*):(\d+))?$", text).groups("0")
    return Instruction(code, file, int(line))


INTEGERS = ("int32", "int64")
HALVES = ("float16", "bfloat16")  # to and from float32, in which halves are computed


def x86(dtype: str, narrow: bool = False) -> dict[str, str]:
    """AVX: vaddps %ymm1, ... adds 8 float32, vpaddq %ymm1, ... adds 4 int64.

    `narrow`: accept %xmm1, too. Otherwise it proves nothing: LLVM may join two scalars into one.
    """
    if dtype in INTEGERS:
        kind = {"int32": "d", "int64": "q"}[dtype]
        operations = {
            "add": f"vp(add|sub){kind}",
            "multiply": f"vpmul(l{kind}|udq)",  # of int64, also composed of narrower ones
            "compare": f"vp(cmp\\w*|min[su]|max[su]){kind}",
        }
    else:
        # AVX512-FP16 computes in float16, with the same result for one operation on two float16.
        kind = {"float64": "pd", "float16": "p[sh]"}.get(dtype, "ps")
        fused = r"fn?m(add|sub)\d*"
        operations = {
            "add": f"v(add|sub|{fused}){kind}",
            "multiply": f"v(mul|{fused}){kind}",
            "divide": f"v(div|rcp\\w*|rsqrt\\w*){kind}",
            "root": f"v(sqrt|rsqrt\\w*){kind}",
            "compare": f"v(cmp\\w*|min|max){kind}",
            "half": "vps[lr]ld" if dtype == "bfloat16" else r"v\w+ph|vcvt(ph2ps|ps2ph)\w*",
        }
    of_kind = {kind: rf"{name}\s.*%[{'x' * narrow}yz]mm" for kind, name in operations.items()}
    of_kind[COPY] = r"vmov\w*\s.*%[yz]mm|call"  # a call of memcpy
    of_kind["half"] = of_kind.get("half", "") + r"|vcvtps2phx?y\s"  # y: ymm's size in memory
    return of_kind


def arm(dtype: str, narrow: bool = False) -> dict[str, str]:
    """NEON and SVE: fadd v0.4s, ... and fadd z0.s, ...; in Mach-O fadd.4s v0, ..."""
    kind = "d" if dtype in ("float64", "int64") else "s"
    f, which = ("", "su") if dtype in INTEGERS else ("f", "f")
    operations = {
        "add": f"{f}(add|sub|ml[as]|n?m(add|sub|la|ls))",
        "multiply": f"{f}(mul|ml[as]|n?m(add|sub|la|ls))",
        "divide": "f(div|recpe|rsqrte)",
        "root": "f(sqrt|rsqrte)",
        "compare": f"({f}cm\\w\\w|[{which}](min|max)\\w*)",
        "half": r"(fcvtn?l?|u?shll|shrn)2?",
    }
    on_vectors = rf"(\.[24]{kind}\s|\s+([vz])\d+\.\d?{kind})"
    of_kind = {kind: name + on_vectors for kind, name in operations.items()}
    return {**of_kind, COPY: r"(ldp?|stp?|ld1|st1)\w*\s+{?\s*[qvz]\d|bl"}


PATTERNS = {"x86_64": x86, "AMD64": x86, "aarch64": arm, "arm64": arm}[platform.machine()]


def touches(instructions: list[Instruction], loop: Elements) -> bool:
    """Whether any of `instructions` has a line of `loop`."""
    return any(
        file == loop.file and loop.first <= line <= loop.last for _, file, line in instructions
    )


def missing(loop: Elements, code: list[list[Instruction]], dtype: str) -> set[str]:
    """Kinds of arithmetic of `loop` that no machine loop of its lines does on `dtype` vectors.

    One loop of the machine code has to contain all of them.
    """
    kinds = set(loop.kinds)
    if "quotient" in kinds:
        if dtype in INTEGERS:
            return set()  # no processor divides vectors of integers
        kinds = kinds - {"quotient"} | {"multiply"}
    kinds = kinds if dtype in HALVES else kinds - {"half"}
    patterns = [PATTERNS(dtype)]
    if loop.in_float64:  # float32 beside float64 fill half a vector
        patterns = [PATTERNS("float64"), PATTERNS(dtype, narrow=True)]
    least = kinds = kinds or {COPY}
    for instructions in code:
        if not touches(instructions, loop):
            continue
        found = {
            kind
            for kind in kinds
            for of_kind in patterns
            if any(re.match(of_kind[kind], text) for text, _, _ in instructions)
        }
        least = min(least, kinds - found, key=len)
    return set(least)

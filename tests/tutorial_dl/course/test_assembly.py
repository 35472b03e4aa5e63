"""assembly.py reports the known properties of loops, also for another processor."""

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest

from tutorial_dl.course import assembly

FASTMATH = {"contract", "nsz", "arcp"}
X, G, ETA = np.ones(64, "float32"), np.ones(64, "float32"), np.float32(0.5)


@numba.njit(fastmath=FASTMATH)
def whole(w, g, eta):
    for i in range(w.size):
        w[i] -= eta * g[i]


@numba.njit
def part(w, g, eta, low, high):
    for i in range(low, high):
        w[i] -= eta * g[i]


@numba.njit
def chain(x, decay):
    for i in range(1, x.size):
        x[i] += decay * x[i - 1]


def total(x):
    s = x.dtype.type(0)
    for i in range(x.size):
        s += x[i]
    return s


@numba.njit
def table(x):
    for t in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[t, i] += x[t, i] * x[t, i]


@numba.njit
def count(x):
    n = 0
    while n * n < x:
        n += 1
    return n


def test_which_loops_are_on_vectors():
    assert assembly.vectorised(whole, X, G, ETA)
    assert not assembly.vectorised(part, X, G, ETA, 3, 40)
    assert not assembly.vectorised(chain, X, ETA)
    assert not assembly.vectorised(numba.njit(total), X)
    assert assembly.vectorised(numba.njit(fastmath={"reassoc"})(total), X)
    assert assembly.vectorised(table, np.ones((4, 64), "float32"))


def test_scalar_loops_have_scalar_arithmetic():
    found = [loop for loop in assembly.loops(chain, X, ETA) if loop.scalar]
    assert found
    for loop in found:
        assert (loop.packed, loop.lanes, loop.bits, loop.dtype) == (0, 1, 0, "float32")
    assert all(loop.dtype == "" for loop in assembly.loops(count, 3))


def test_lanes_and_dtype():
    def widest(*arguments):
        return max(assembly.loops(whole, *arguments), key=lambda loop: loop.bits)

    single, double = widest(X, G, ETA), widest(X.astype(float), G.astype(float), 0.5)
    assert single.dtype == "float32" and double.dtype == "float64"
    assert single.lanes == 2 * double.lanes >= 4 and single.bits == double.bits
    # One float64 operand makes the arithmetic float64.
    assert widest(X, G, 0.5).dtype == "float64"


def test_the_text_of_a_loop():
    loop = max(assembly.loops(whole, X, G, ETA), key=lambda loop: loop.bits)
    assert str(loop).startswith(f"{len(loop.instructions)} instructions; arithmetic: {loop.packed}")
    assert f"on {loop.lanes} float32 at once" in str(loop)
    assert str(assembly.loops(count, 3)[0]).endswith("; no arithmetic")


ADDITION = """
define void @add(ptr %w, ptr %g, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr {kind}, ptr %w, i64 %i
  %q = getelementptr {kind}, ptr %g, i64 %i
  %a = load {kind}, ptr %p
  %b = load {kind}, ptr %q
  %c = fadd {kind} %a, %b
  store {kind} %c, ptr %p
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}}
"""


@pytest.mark.parametrize(
    ("kind", "lanes", "dtype"),
    [
        ("float", 1, "float32"),
        ("double", 1, "float64"),
        ("<4 x float>", 4, "float32"),
        ("<2 x double>", 2, "float64"),
        ("<vscale x 4 x float>", 4, "float32"),
        ("<vscale x 2 x double>", 2, "float64"),
    ],
)
@pytest.mark.parametrize(
    "triple", ["aarch64-unknown-linux-gnu", "arm64-apple-macosx14.0.0", "x86_64-unknown-linux-gnu"]
)
def test_what_llvm_writes_for_other_processors(triple, kind, lanes, dtype):
    scalable, x86 = "vscale" in kind, triple.startswith("x86")
    if scalable and x86:
        kind, lanes = kind.replace("vscale x 4", "16").replace("vscale x 2", "8"), 4 * lanes
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    features = {True: "+avx512f", False: "+sve"}[x86] if scalable else ""
    machine = llvm.Target.from_triple(triple).create_target_machine(features=features)
    text = machine.emit_assembly(llvm.parse_assembly(ADDITION.format(kind=kind)))
    (loop,) = assembly.loops_of(text)
    assert (loop.lanes, loop.dtype, loop.vectorised) == (lanes, dtype, lanes > 1)
    assert (loop.packed, loop.scalar) == ((1, 0) if lanes > 1 else (0, 1))
    assert loop.bits == (lanes * int(dtype[-2:]) if lanes > 1 else 0)


@pytest.mark.parametrize(
    ("instruction", "lanes", "dtype"),
    [
        ("vfmadd231ps\t(%rax,%r9,4), %ymm1, %ymm6", 8, "float32"),
        ("vaddpd\t%zmm1, %zmm2, %zmm3", 8, "float64"),
        ("mulps\t%xmm1, %xmm2", 4, "float32"),
        ("vsqrtss\t%xmm1, %xmm2, %xmm2", 1, "float32"),
        ("vfnmadd213sd\t%xmm1, %xmm2, %xmm3", 1, "float64"),
        ("fmla\tv0.4s, v1.4s, v2.4s", 4, "float32"),
        ("fadd.2d\tv0, v1, v2", 2, "float64"),  # as on a Mac
        ("fmul\tz0.s, z1.s, z2.s", 4, "float32"),  # at least
        ("fmadd\ts0, s1, s2, s3", 1, "float32"),
    ],
)
def test_instructions(instruction, lanes, dtype):
    (loop,) = assembly.loops_of(f".L1:\n\t{instruction}\n\tjne\t.L1")
    assert (loop.lanes, loop.dtype, loop.packed + loop.scalar) == (lanes, dtype, 1)
    assert loop.vectorised == (lanes > 1)


@pytest.mark.parametrize(
    "instruction", ["vmovups\t%ymm2, (%rcx)", "vcvtps2pd\t(%rax), %zmm2", "addq\t$8, %rax",
                    "vpaddd\t%ymm1, %ymm2, %ymm3", "ldr\tq0, [x0]", "add\tx0, x0, #16"],
)  # fmt: skip
def test_what_is_no_arithmetic(instruction):
    (loop,) = assembly.loops_of(f".L1:\n\t{instruction}\n\tjne\t.L1")
    assert loop.packed == loop.scalar == 0


def test_inner_loops_only():
    text = ".L1:\n\tnop\n.L2:\n\tvaddss %xmm0, %xmm1, %xmm2\n\tjne .L2\n\tjne .L1\n.L3:\n\tb.ne .L3"
    assert [loop.scalar for loop in assembly.loops_of(text)] == [1, 0]


def test_a_function_that_is_not_compiled():
    with pytest.raises(TypeError, match="is not compiled by Numba"):
        assembly.loops(total, X)

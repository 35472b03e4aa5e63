"""Every loop over elements is vector code, for each dtype and wherever it is compiled."""

import ast
import hashlib
import json
import re
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
import vector_code
from numba import types

from numba_kernels import compiled
from numba_kernels.jit import cache

PACKAGE = Path(sys.modules["numba_kernels"].__file__).parent

# A new kernel belongs in one of the lists; one that Python calls belongs in `entries`, too.
HOT = """
allreduce.elementwise: combine convert divide scale
allreduce.shared_memory: add_two
compression.adasum: products mix
compression.cast: round_to
compression.powersgd: dot add_scaled
compression.top_k: accumulate
jit.copying: copy
step.kernels: add_weighted
optimizers.adadelta: kernel
optimizers.adagrad: kernel
optimizers.adam: kernel
optimizers.adamw: kernel
optimizers.clipping: sum_of_squares
optimizers.lamb: kernel norms
optimizers.lars: kernel norms
optimizers.lion: kernel
optimizers.nadam: kernel
optimizers.rmsprop: plain momentum centered centered_momentum
optimizers.sgd: plain momentum nesterov
"""
NO_VECTORS = {
    "a loop over ranks": """
        allreduce.ring: slices
        shared.stage: count_pieces
        star.message_ends: look_into
        star.doorbell: earliest
    """,
    "a loop over the pieces of a message": "star.message_ends: ask",
    "where one element goes, only the others say": "compression.top_k: pick add_at",
    "a bench's stand-in for a worker's own work": "bench.parameter_server: read write",
}
NO_ELEMENTS = {
    "one number, or a few": """
        allreduce.elementwise: bounds
        allreduce.fold: group_of place_of rank_of
        allreduce.rabenseifner: held
        allreduce.tree: rounds
        optimizers.lamb: rate
        optimizers.lars: rate
        optimizers.rmsprop: positive
        shared.stage: piece
        step.between: piece_of
    """,
    "a table, a board or an address, a few words for each rank": """
        allreduce.messages: link_at
        allreduce.pairwise: part
        shared.board: arrive publish all_arrived meet release released reached alike
        step.between: one_of arriving add_up_nodes
        step.kernels: all_there add_up floats_of rows_for_weights meet part
        shared.node_array: row_of elements_at board_of tile_like locate
        shared.stage: on_stage short_stage lead_stage
        star.helping: offset
        star.doorbell: ask answer next_leaf rest
    """,
    "exchanges messages, and leaves elements to others": """
        allreduce.fold: fold unfold
        allreduce.gather: pairwise from_root
        allreduce.leaders: allreduce on_node lead
        allreduce.measure: around back_and_forth
        allreduce.mpi: allreduce least greatest
        allreduce.naive: allreduce
        allreduce.pairwise: allreduce add_up
        allreduce.rabenseifner: allreduce
        allreduce.recursive_doubling: allreduce farthest_first _double
        allreduce.ring: allreduce reduce_scatter allgather
        allreduce.tree: allreduce down
        allreduce.messages: exchange post foreign cancelled _test _cancel
        step.between: between exchange_all
        team.exchange: start complete
        star.message_ends: receive send send_piece stream expect
    """,
    "goes from tile to tile or from layer to layer, and leaves elements to others": """
        allreduce.gather: allgather alltoall scatter
        allreduce.shared_memory: allreduce reduce_scatter allgather reduce_rows
        allreduce.short: allreduce
        allreduce.staged: allreduce put_out reduce_piece take_in
        compression.adasum: measure join
        compression.powersgd: project lift add_product orthonormalise
        step.between: sum_on_node use to_node
        step.kernels: step reduce hand_out average add_own layer_of to_all weigh
        optimizers.clipping: squared_length
        optimizers.switch: apply begin finish measure set_rate
        optimizers.rmsprop: kernel
        optimizers.sgd: kernel
        optimizers.serve: update_and_answer
        star.helping: ask together work
    """,
    "asks the processor or the operating system": """
        jit.denormals: flush_denormals restore
        jit.futex: wait wake
        jit.yielding: nap yielded
        spans: began ended now
    """,
}
OF_ONE_OP = ("allreduce.mpi.least", "allreduce.mpi.greatest")  # `combine` without its other loops
FLOATS = ("float32", "float64")
DTYPES = (*FLOATS, *vector_code.INTEGERS, *vector_code.HALVES)
CARRIERS = {"float16": "uint16", "bfloat16": "int16"}


def names(text):
    lines = [line.split(":") for line in text.strip().splitlines()]
    return [f"{file.strip()}.{name}" for file, of_file in lines for name in of_file.split()]


class FirstOfTwo:
    """What a plan of the step between nodes needs to know of a team of two ranks."""

    rank, size = 0, 2

    def __init__(self, route):
        self.routes = [route]

    def slice_of(self, n, rank):
        return (0, n) if rank == 0 else (n, n)


def entries(dtype):
    """The kernels that Python calls, with arguments of `dtype`; tests search their code."""
    from mpi4py import MPI

    from numba_kernels.allreduce import (
        elementwise,
        gather,
        kernel,
        leaders,
        messages,
        mpi,
        pairwise,
        shared_memory,
        short,
        staged,
    )
    from numba_kernels.compression import adasum, cast, powersgd, top_k
    from numba_kernels.optimizers import clipping
    from numba_kernels.optimizers import switch as kernels
    from numba_kernels.shared import node_array
    from numba_kernels.step import between
    from numba_kernels.step import kernels as fused_kernels

    x, edges = np.zeros(8, CARRIERS.get(dtype, dtype)), np.zeros(2, np.int64)
    of_node, own = np.zeros(node_array.WORDS, np.int64), np.zeros((3, 0), np.int64)
    route = messages.route(MPI.COMM_SELF, [0], 1, 0.0)
    link = route.link
    yield shared_memory.allreduce, (of_node, 0, x, 0, 1)
    yield shared_memory.reduce_scatter, (of_node, 0, x, edges, 0, 1)
    yield short.allreduce, (of_node, 0, x, 0, 1)
    yield staged.allreduce, (of_node, 0, x, edges, 0, 1, True)
    if dtype == "float32":  # the other ops have the same loops; leaving them out saves time
        yield mpi.allreduce, (link, 0, 2, x, x, 0, 1)
        there, count = types.CPointer(types.float32), types.CPointer(types.int32)
        yield mpi.least, (there, there, count, types.voidptr)
        yield mpi.greatest, (there, there, count, types.voidptr)
        yield shared_memory.allgather, (of_node, 0, x, edges)
        yield gather.allgather, (of_node, 0, x, edges)
        yield gather.alltoall, (of_node, 0, x, edges, x, edges, 0, 0)
        yield pairwise.allreduce, (link, 0, 2, x, x, 0, 1)
        wire = messages.addresses(route)
        yield leaders.allreduce, (of_node, link.handles, wire, 0, x, x, 0, 1, kernel.NOTHING)
    if dtype in vector_code.HALVES:
        wide = np.zeros(8, np.float32)
        yield elementwise.convert, (x, wide)
        yield elementwise.convert, (wide, x)
        yield cast.round_to, (x, wide)
        return
    yield kernel.carry_out, (link, 0, 2, x, x, x, 0, 1, kernel.NOTHING)
    if dtype in vector_code.INTEGERS:
        return
    slots, hyper = np.zeros((2, 8), dtype), np.zeros(8)
    pieces, squares = np.zeros((1, 3), np.int64), np.zeros((1, 2))
    yield kernels.begin, (0, x, x, slots, pieces, hyper, squares)
    yield kernels.finish, (0, x, x, slots, pieces, hyper, squares)
    yield kernels.apply, (0, x, x, slots, 0, hyper, True)
    yield clipping.squared_length, (x,)
    matrix, sums = np.zeros((8, 8), dtype), np.zeros((1, 3))
    yield adasum.measure, (x, x, pieces, sums)
    yield adasum.join, (x, x, pieces, sums)
    for carrier in CARRIERS.values():
        yield cast.round_to, (np.zeros(8, carrier), x)
    yield powersgd.project, (matrix, slots, slots)
    yield powersgd.lift, (matrix, slots, slots)
    yield powersgd.add_product, (matrix, slots, slots, 1.0)
    yield powersgd.orthonormalise, (slots,)
    yield top_k.accumulate, (x, x, x)
    yield fused_kernels.step, (of_node, 0, x, x, slots, 0, hyper, hyper, own, 1.0)
    yield fused_kernels.reduce, (of_node, 0, x, x, hyper, own)
    yield fused_kernels.hand_out, (of_node, 0, x, x, True)
    yield fused_kernels.weigh, (x, 0.5)
    plan, how = between.plan(FirstOfTwo(route), [(0,), (1,)], 8, x.dtype), (slots, 0, hyper, 1.0)
    yield between.between, (link, 0, 2, 0, plan, of_node, x, x, x, how, hyper, own)


# The lists are complete


def every_kernel():
    """{name: kernel} of all functions of the package that `compiled` decorates."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        functions = vector_code.decorated(ast.parse(file.read_text()))
        place = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        for function in functions:
            module = import_module(f"numba_kernels.{place}")
            found[f"{place}.{function.name}"] = getattr(module, function.name)
    return found


def lists_are_complete():
    kernels, hot = every_kernel(), names(HOT)
    no_vectors, others = (
        [name for text in table.values() for name in names(text)]
        for table in (NO_VECTORS, NO_ELEMENTS)
    )
    assert len(kernels) > 60
    listed = [*hot, *no_vectors, *others]
    assert len(set(listed)) == len(listed), "no kernel twice"
    wrong = set(listed) ^ set(kernels)
    assert not wrong, f"each kernel belongs into one of the lists: {wrong}"
    for name, kernel in kernels.items():
        assert vector_code.name_of(kernel) == name
        assert bool(vector_code.elements(kernel)) == (name not in others), name
        assert not vector_code.assigned_slices(kernel), f"{name}: elementwise.copy, or a loop"
    called = {
        name
        for dtype in ("float32", "float16")
        for entry, _ in entries(dtype)
        for name in vector_code.reached(entry)
    }
    assert set(hot) <= called, f"called by none of `entries`: {set(hot) - called}"


def test_lists_are_complete(on_ranks):
    on_ranks(1, lists_are_complete, fresh=True)


# Their loops are on vectors


def loops_without_vectors(dtypes):
    """Each rank takes its share of the dtypes: compiling all takes a minute and a half.

    (The entries of one dtype share many functions, which are compiled once per process.)
    """
    from mpi4py import MPI

    problems, seen, hot = [], 0, names(HOT)
    mine = dtypes[MPI.COMM_WORLD.rank :: MPI.COMM_WORLD.size]
    with vector_code.with_lines():
        for dtype, entry, arguments in ((of, *e) for of in mine for e in entries(of)):
            code = vector_code.located(vector_code.assembler(entry, arguments))
            for name, kernel in vector_code.reached(entry).items():
                for loop in vector_code.elements(kernel) if name in hot else ():
                    there = any(vector_code.touches(each, loop) for each in code)
                    if vector_code.name_of(entry) in OF_ONE_OP and not there:
                        continue
                    seen += 1
                    if missing := vector_code.missing(loop, code, dtype):
                        place = f"{name}, lines {loop.first} to {loop.last}, of {dtype}"
                        problems.append(f"{place} in {vector_code.name_of(entry)}: {missing}")
    print(json.dumps([problems, seen]))


def kept_answer() -> Path:
    """A file in the cache of kernels; its name depends on sources, versions and the processor.

    So the loops are examined again after a change of anything that the answer depends on.
    """
    of = hashlib.sha256(cache.VERSIONS.encode())
    of.update(f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}".encode())
    for file in (__file__, vector_code.__file__):
        of.update(Path(file).read_bytes())
    return cache.folders()[0] / f"vector_code-{of.hexdigest()[:32]}"


@pytest.mark.thorough
def test_every_loop_is_on_vectors(on_ranks, dtypes=("float32",)):
    """`make soak` examines all dtypes."""
    examined = cache.read(kept_answer()) or b""
    if set(dtypes) <= set(examined.decode().split()):
        return
    printed = on_ranks(min(2, len(dtypes)), loops_without_vectors, list(dtypes), fresh=True)
    found = [json.loads(line) for line in printed.splitlines()]
    assert not [problem for problems, _ in found for problem in problems]
    assert sum(seen for _, seen in found) > 50 * len(dtypes)
    cache.write(kept_answer(), " ".join(dtypes).encode())


# The test itself


@compiled(cache=False)
def good(x, y, factor):
    for i in range(x.size):
        x[i] += factor * y[i]


@compiled(cache=False)
def chain(x, y, factor):
    for i in range(x.size):
        x[i] += factor * x[i - 1]


@compiled(cache=False)
def of_a_number(x, y, factor):
    for i in range(x.size):
        x[i] += 0.3 * y[i]  # 0.3 is a float64, and so is the product


@compiled(cache=False)
def from_the_middle(x, y, factor):
    for i in range(x.size // 2, x.size):
        x[i] += factor * y[i]


@compiled(cache=False)
def one_of_two(x, y, factor):
    for i in range(x.size):
        x[i] += y[i]
    for i in range(x.size):
        x[i] *= x[i - 1]


@compiled(cache=False)
def caller(x, y, factor):
    good(x, y, factor)
    chain(x, y, factor)


def what_is_missing():
    """{kernel: arithmetic that each of its loops lacks}, also for two kernels in one caller."""
    both, found = {"add", "multiply"}, {}
    with vector_code.with_lines():
        for entry in (caller, good, chain, of_a_number, from_the_middle, one_of_two):
            code = vector_code.located(
                vector_code.assembler(entry, (np.ones(8, "f4"), np.ones(8, "f4"), np.float32(2)))
            )
            for kernel in vector_code.reached(entry).values():
                loops = vector_code.elements(kernel)
                missing = [vector_code.missing(loop, code, "float32") for loop in loops]
                found[f"{kernel.__name__} in {entry.__name__}"] = missing
    assert found == {
        "caller in caller": [],
        "good in caller": [set()],
        "chain in caller": [both],
        "good in good": [set()],
        "chain in chain": [both],
        "of_a_number in of_a_number": [both],
        "from_the_middle in from_the_middle": [both],
        "one_of_two in one_of_two": [set(), {"multiply"}],
    }


def test_what_is_missing_is_seen(on_ranks):
    on_ranks(1, what_is_missing, fresh=True)


def instructions(lines):
    from numba_kernels.compression import powersgd  # it inlines four kernels, two of them hot

    ((entry, arguments),) = (e for e in entries("float32") if e[0] is powersgd.orthonormalise)
    with vector_code.with_lines() if lines else nullcontext():
        text = vector_code.assembler(entry, arguments)
    assert not sum(entry.stats.cache_hits.values()), "compiled here and now"
    print(*(line.split()[0] for line in text.splitlines() if re.match(r"\s+[a-z]", line)))


def test_lines_change_no_code(on_ranks, tmp_path):
    plain, with_lines = (
        on_ranks(1, instructions, lines, env={"NUMBA_CACHE_DIR": str(tmp_path / str(lines))})
        for lines in (False, True)
    )
    assert plain == with_lines and len(plain.split()) > 500

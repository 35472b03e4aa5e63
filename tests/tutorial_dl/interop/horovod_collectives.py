"""Checks of tutorial_dl.horovod's collectives; horovod_checks.py calls them on every rank.

numpy computes the expected values: each rank knows the values of all ranks.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tutorial_dl.horovod.keras as hvd_keras
import tutorial_dl.horovod.tensorflow as hvd
from numba_kernels.errors import MismatchError

DTYPES = ["float32", "float64", "int32", "int64", "float16", "bfloat16", "uint8", "int8"]


def values(shape, dtype="float32", seed=0):
    """The values of each rank: whole numbers, so that sums are exact in every dtype."""
    return [
        np.random.default_rng([seed, r]).integers(1, 5, shape).astype(np.float64)
        for r in range(hvd.size())
    ]


def mine(all_of_them, dtype="float32"):
    return tf.cast(all_of_them[hvd.rank()], dtype)


def same(tensor, expected, **error):
    got = tf.cast(tensor, tf.float64) if tensor.dtype.is_floating else tensor
    assert tuple(got.shape) == np.shape(expected), (got.shape, np.shape(expected))
    np.testing.assert_allclose(got, expected, **{"rtol": 1e-6, "atol": 1e-6} | error)


def both_ways(function):
    """The function itself, and the function as a graph."""
    return [function, tf.function(function)]


def who_is_where():
    assert hvd.is_initialized() and hvd.is_homogeneous()
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.mpi_built() and hvd.mpi_enabled() and hvd.mpi_threads_supported()
    assert not (hvd.nccl_built() or hvd.gloo_built() or hvd.gloo_enabled() or hvd.ddl_built())
    assert not (hvd.ccl_built() or hvd.cuda_built() or hvd.rocm_built())
    assert int(hvd.size_op()) == hvd.size() and int(hvd.rank_op()) == hvd.rank()
    assert int(hvd.local_size_op()) == hvd.size() and int(hvd.local_rank_op()) == hvd.rank()
    assert int(hvd.process_set_included_op()) == 1
    # These are the first lines of most scripts.
    for gpu in tf.config.experimental.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    with pytest.raises(NotImplementedError, match="timeline"):
        hvd.start_timeline("file")
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def reductions_of_every_dtype():
    x = values((3, 5))
    ops = {hvd.Sum: np.sum, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}

    def one_by_one():
        return [hvd.allreduce(mine(x, dtype), op=op) for dtype in DTYPES for op in ops]

    def together():
        return [t for op in ops for t in hvd.grouped_allreduce([mine(x, d) for d in DTYPES], op=op)]

    for i, got in enumerate(one_by_one()):
        assert got.dtype == DTYPES[i // 4]
        same(got, list(ops.values())[i % 4](x, 0))
    for i, got in enumerate(tf.function(together)()):
        assert got.dtype == DTYPES[i % 8]
        same(got, list(ops.values())[i // 8](x, 0))
    for reduce in both_ways(hvd.allreduce):
        same(reduce(mine(x)), np.mean(x, 0))
    same(hvd.allreduce(mine(x), average=False), np.sum(x, 0))
    same(hvd.allreduce(mine(x), average=True), np.mean(x, 0))
    same(hvd.allreduce(float(hvd.rank())), (hvd.size() - 1) / 2)  # a scalar
    same(hvd.allreduce(tf.Variable(mine(x)), op=1), np.sum(x, 0))
    with pytest.raises(ValueError, match="not both"):
        hvd.allreduce(mine(x), average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="unknown op 17"):
        hvd.allreduce(mine(x), op=17)
    with pytest.raises(TypeError, match="no collectives of complex64"):
        hvd.allreduce(tf.zeros(2, tf.complex64))


def factors_before_and_after():
    x = values((7,))
    same(hvd.allreduce(mine(x), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
         1.5 * np.sum(x, 0))  # fmt: skip
    same(hvd.allreduce(mine(x), prescale_factor=0.5), 0.5 * np.mean(x, 0))
    # A factor before and one after differ if numbers overflow.
    large = tf.constant([60000.0], tf.float16)
    assert np.isinf(hvd.allreduce(large, op=hvd.Sum, postscale_factor=0.1))
    same(hvd.allreduce(large, op=hvd.Sum, prescale_factor=0.1), [6000.0 * hvd.size()], rtol=1e-3)
    same(hvd.allreduce(mine(x, "int32"), op=hvd.Sum, postscale_factor=0.5), np.sum(x, 0) // 2)


def halves_on_the_wire():
    x = [np.full(3, 1 + r / 1000, np.float64) for r in range(hvd.size())]
    kinds = (hvd.Compression.fp16, tf.float16), (hvd.Compression.bf16, tf.bfloat16)
    for compression, half in kinds:
        rounded = [tf.cast(tf.cast(v, half), tf.float64).numpy() for v in x]
        expected = tf.cast(tf.cast(np.mean(rounded, 0), half), tf.float64)
        got = hvd.allreduce(mine(x), compression=compression)
        assert got.dtype == tf.float32
        same(got, expected)
        whole = hvd.allreduce(mine(x, "int32"), op=hvd.Sum, compression=compression)
        assert whole.dtype == tf.int32  # only floating-point numbers are compressed
    same(hvd.allreduce(mine(x), compression=hvd.Compression.none), np.mean(x, 0))


def groups_of_tensors():
    shapes = [(3,), (), (2, 17), (0, 4), (5,)]
    dtypes = ["float32", "float64", "float32", "float32", "int32"]
    all_of_them = [values(s, seed=i) for i, s in enumerate(shapes)]
    tensors = [mine(x, d) for x, d in zip(all_of_them, dtypes, strict=True)]
    for reduce in both_ways(lambda *t: hvd.grouped_allreduce(list(t), op=hvd.Sum)):
        for got, x, d in zip(reduce(*tensors), all_of_them, dtypes, strict=True):
            assert got.dtype == d
            same(got, np.sum(x, 0))
    for gather in both_ways(lambda *t: hvd.grouped_allgather(list(t))):
        for got, x in zip(gather(tensors[0], tensors[2]), all_of_them[:3:2], strict=True):
            same(got, np.concatenate(x))
    for scatter in both_ways(lambda *t: hvd.grouped_reducescatter(list(t), op=hvd.Sum)):
        for got, x in zip(scatter(tensors[2], tensors[4]), all_of_them[2::2], strict=True):
            same(got, np.array_split(np.sum(x, 0), hvd.size())[hvd.rank()])


def adasum_is_its_equation():
    """a (1 - ab / 2aa) + b (1 - ab / 2bb), up a tree of ranks, for each tensor by itself."""

    def adasum(a, b):
        ab, aa, bb = a @ b, a @ a, b @ b
        return a * (1 - ab / (2 * aa)) + b * (1 - ab / (2 * bb))

    def tree(rows):
        while len(rows) > 1:
            pairs = [adasum(*rows[i : i + 2]) for i in range(0, len(rows) - 1, 2)]
            rows = pairs + rows[len(rows) - len(rows) % 2 :]
        return rows[0]

    x, y = values((6,)), values((33,), seed=1)
    got = hvd.grouped_allreduce([mine(x), mine(y)], op=hvd.Adasum)
    same(got[0], tree(x), rtol=1e-5)
    same(got[1], tree(y), rtol=1e-5)
    equal = hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Adasum)  # the mean of equal vectors
    same(equal, [1.0, 2.0])


def rows_of_all_ranks():
    rank, size = hvd.rank(), hvd.size()
    for dtype in [*DTYPES, "bool", "uint32"]:
        # Rank r has r rows, so rank 0 has none.
        x = [np.full((r, 2, 3), r % 2 if dtype == "bool" else r) for r in range(size)]
        for gather in both_ways(hvd.allgather):
            got = gather(tf.cast(x[rank], dtype))
            assert got.dtype == dtype
            same(got, np.concatenate(x))
    same(hvd.allgather(tf.zeros((0, 2))), np.zeros((0, 2)))
    traced = tf.function(hvd.allgather).get_concrete_function(tf.TensorSpec((4, 3)))
    assert traced.output_shapes.as_list() == [None, 3]
    with pytest.raises(ValueError, match="scalar has no rows"):
        hvd.allgather(1.0)


def what_the_root_has():
    size = hvd.size()
    for dtype in [*DTYPES, "bool"]:
        x = values((2, 3)) if dtype != "bool" else [np.full(2, r == 1) for r in range(size)]
        for send in both_ways(lambda t: [hvd.broadcast(t, root) for root in range(size)]):
            for root, got in enumerate(send(mine(x, dtype))):
                same(got, x[root])
    with pytest.raises(ValueError, match=f"root_rank must be one of .*, got {size}"):
        hvd.broadcast(mine(x), size)


def rows_to_all_ranks():
    rank, size = hvd.rank(), hvd.size()
    # Rank r sends r + t rows to rank t, so rank 0 sends itself nothing.
    rows = [np.arange(sum(r + t for t in range(size))) * 10 + r for r in range(size)]
    starts = [np.cumsum([0] + [r + t for t in range(size)]) for r in range(size)]
    expected = np.concatenate([rows[r][starts[r][rank] : starts[r][rank + 1]] for r in range(size)])
    splits = [rank + t for t in range(size)]
    for send in both_ways(lambda t, s: hvd.alltoall(t, splits=s)):
        got, received = send(tf.constant(rows[rank], tf.int32), tf.constant(splits))
        same(got, expected)
        same(received, [r + rank for r in range(size)])
    pair = tf.reshape(tf.range(4.0 * size), (2 * size, 2)) + 100 * rank
    got = hvd.alltoall(pair)  # without splits, shares are equal, and only rows come back
    same(
        got, np.concatenate([np.arange(4).reshape(2, 2) + 4 * rank + 100 * r for r in range(size)])
    )
    with pytest.raises(ValueError, match="add up to the rows"):
        hvd.alltoall(pair, splits=[1] * size)
    with pytest.raises(ValueError, match="give splits"):
        hvd.alltoall(tf.zeros(size + 1))


def shares_of_a_reduction():
    lengths = 1, 7, 2 * hvd.size(), 100  # with 1 row, most ranks get none
    tables = [values((n, 3)) for n in lengths]
    for dtype in ("float32", "int64", "float16"):
        for scatter in both_ways(lambda *t: [hvd.reducescatter(x, op=hvd.Sum) for x in t]):
            for got, x in zip(scatter(*[mine(x, dtype) for x in tables]), tables, strict=True):
                assert got.dtype == dtype
                same(got, np.array_split(np.sum(x, 0), hvd.size())[hvd.rank()])
    share = np.array_split(np.mean(x, 0), hvd.size())[hvd.rank()]
    same(hvd.reducescatter(mine(x)), share)
    same(hvd.reducescatter(mine(x), prescale_factor=2.0, postscale_factor=3.0), 6 * share)
    same(hvd.reducescatter(mine(x), compression=hvd.Compression.fp16), share, rtol=1e-3)
    # The functions of the Keras modules have another order of arguments.
    same(hvd_keras.reducescatter(mine(x), "rows", hvd.Sum), hvd.size() * share)
    factors = {"prescale_factor": 2.0, "postscale_factor": 3.0}
    same(hvd_keras.reducescatter(mine(x), **factors), 6 * share)


def gradients_of(functions):
    """Gradients of (r + 1) sum(f(x)) on rank r, for every pair (f, x); eagerly and in one graph."""

    def gradients():
        out = []
        for function, x in functions:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = (hvd.rank() + 1.0) * tf.reduce_sum(function(x))
            out.append(tape.gradient(loss, x))
        return out

    eager, graph = (way() for way in both_ways(gradients))
    for a, b in zip(eager, graph, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    return eager


def gradients_are_horovod_s():
    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) // 2  # the ranks' own gradients are r + 1
    x, ones, rows = values((3, 2)), np.ones((3, 2)), tf.ones((rank + 1, 2))  # ragged
    most, least = np.array(x) == np.max(x, 0), np.array(x) == np.min(x, 0)
    others = np.prod([v for r, v in enumerate(x) if r != rank], 0)
    splits = [rank + to for to in range(size)]
    to = np.repeat(np.arange(size), splits)  # each row's target rank t; its gradient is t + 1
    owner = np.repeat(np.arange(size), [len(a) for a in np.array_split(np.arange(7), size)])
    place = np.arange(total, dtype="float32")[:, None]  # ranks' rows in all results
    own_place = place[rank * (rank + 1) // 2 :][: rank + 1]
    x, fp16 = mine(x), hvd.Compression.fp16
    expected = [
        (lambda t: hvd.allreduce(t, op=hvd.Sum), x, total * ones),
        (hvd.allreduce, x, total / size * ones),
        (lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=3.0), x, 3 * total * ones),
        (lambda t: hvd.allreduce(t, compression=fp16), x, total / size * ones),
        (lambda t: hvd.grouped_allreduce([t, 2 * t], op=hvd.Sum)[1], x, 2 * total * ones),
        # True derivatives: 1 for the rank with the extreme; for a product, the others' product.
        (lambda t: hvd.allreduce(t, op=hvd.Max), x, total * (most / most.sum(0))[rank]),
        (lambda t: hvd.allreduce(t, op=hvd.Min), x, total * (least / least.sum(0))[rank]),
        (lambda t: hvd.allreduce(t, op=hvd.Product, postscale_factor=0.5), x,
         0.5 * total * others),
        (lambda t: place * hvd.allgather(t), rows, total / size * np.repeat(own_place, 2, 1)),
        (lambda t: place * hvd.grouped_allgather([t[:1], t])[1], rows,
         total / size * np.repeat(own_place, 2, 1)),
        (lambda t: hvd.broadcast(t, 1), x, (total / size if rank == 1 else 0) * ones),
        (lambda t: hvd.alltoall(t, splits=splits)[0], tf.ones(len(to)), to + 1.0),
        (lambda t: hvd.reducescatter(t, op=hvd.Sum), tf.ones(7), size * (owner + 1.0)),
        (hvd.reducescatter, tf.ones(7), owner + 1.0),
    ]  # fmt: skip
    got = gradients_of([(function, x) for function, x, _ in expected])
    for g, (_, _, e) in zip(got, expected, strict=True):
        same(g, e)


def sparse_gradients():
    rank, size = hvd.rank(), hvd.size()
    slices = tf.IndexedSlices(
        tf.fill((rank + 1, 2), rank + 1.0), tf.range(rank + 1, dtype=tf.int64), (4, 2)
    )
    expected = np.zeros((4, 2))
    for r in range(size):
        expected[: r + 1] += r + 1
    for op, factor in ((hvd.Sum, 1), (hvd.Average, 1 / size)):
        got = hvd.allreduce(slices, op=op)
        assert isinstance(got, tf.IndexedSlices) and got.values.shape[0] == size * (size + 1) // 2
        same(tf.convert_to_tensor(got), factor * expected)
    got = hvd.grouped_allreduce([tf.ones(3), slices], op=hvd.Sum)
    same(got[0], np.full(3, size))
    same(tf.convert_to_tensor(got[1]), expected)
    with pytest.raises(NotImplementedError, match="sparse_as_dense"):
        hvd.allreduce(slices, op=hvd.Max)


def many_in_one_graph_keep_their_order():
    """Collectives of a graph become ready in different orders on ranks, and still match."""
    variable = tf.Variable(1.0)

    def slow(t):
        return tf.linalg.matmul(t, t)[0, 0] * 0

    @tf.function
    def inner(t):
        return hvd.allreduce(t * variable, op=hvd.Sum)

    @tf.function
    def graph(t, big):
        a = hvd.allreduce(t + slow(big), op=hvd.Sum)
        b = hvd.allreduce(10 * t, op=hvd.Sum)
        c = inner(100 * t)
        d = tf.cond(variable > 0, lambda: hvd.allreduce(1000 * t, op=hvd.Sum), lambda: t)
        e = tf.constant(0.0)
        for _ in tf.range(3):
            e += hvd.allreduce(t, op=hvd.Sum)
        return a, b, c, d, e, hvd.allreduce(7 * t, op=hvd.Sum)

    big = tf.ones([400 if hvd.rank() == 0 else 2] * 2)
    total = hvd.size() * (hvd.size() + 1) / 2
    for _ in range(5):
        got = graph(tf.constant(hvd.rank() + 1.0), big)
        same(tf.stack(got), total * np.array([1, 10, 100, 1000, 3, 7]))


def calls_that_differ_are_named():
    rank = hvd.rank()
    calls = {
        r"allreduce\(float32\[2\], op=Sum\), but rank 1 called allreduce\(float32\[3\], op=Sum\)":
            lambda: hvd.allreduce(tf.zeros(2 + min(rank, 1)), op=hvd.Sum),
        r"op=Sum\), but rank 1 called allreduce\(float32\[2\], op=Average":
            lambda: hvd.allreduce(tf.zeros(2), op=hvd.Average if rank == 1 else hvd.Sum),
        r"name='a'\), but rank 1 called .*name='b'":
            lambda: hvd.allreduce(tf.zeros(2), name="b" if rank == 1 else "a"),
        r"broadcast\(float32\[2\], root=0\), but rank 1 called barrier\(\); if their numbers of "
        r"steps differ, give all ranks equally many.*drop_remainder=True.*hvd.join\(\)":
            lambda: hvd.barrier() if rank == 1 else hvd.broadcast(tf.zeros(2), 0),
        r"allgather\(float32\[\?, 2\]\), but rank 1 called allgather\(float32\[\?, 3\]\)":
            lambda: hvd.allgather(tf.zeros((1, 3 if rank == 1 else 2))),
        r"root=0\), but rank 1 called broadcast\(float32\[2\], root=1\)":
            lambda: hvd.broadcast(tf.zeros(2), int(rank == 1)),
    }  # fmt: skip
    for message, call in calls.items():
        with pytest.raises(MismatchError, match=message):
            call()
    for call in (lambda: hvd.broadcast("text", 0), lambda: hvd.allgather(np.array(["a"]))):
        with pytest.raises(TypeError, match=r"takes numbers, got text: hvd.broadcast_object\(obj"):
            call()
    same(hvd.allreduce(1.0, op=hvd.Sum), hvd.size())  # and later calls work
    hvd.barrier()


def uneven_batches_and_join():
    """Rank r has 3 r batches. A rank without batches adds zeros to averages over all ranks."""
    rank, size = hvd.rank(), hvd.size()
    for batch in range(3 * rank):
        present = [r for r in range(size) if batch < 3 * r]
        same(
            hvd.allreduce(tf.fill(5, rank + 1.0), op=hvd.Sum),
            np.full(5, sum(r + 1 for r in present)),
        )
        same(hvd.allreduce(tf.fill(5, rank + 1.0)), np.full(5, sum(r + 1 for r in present) / size))
        got = hvd.grouped_allreduce([tf.ones(3), tf.ones(2, tf.float64)], op=hvd.Sum)
        same(got[1], np.full(2, len(present)))
    last = hvd.join()
    assert last.dtype == tf.int32 and int(last) == size - 1
    same(hvd.allreduce(1.0, op=hvd.Sum), size)
    # Inside a graph it is the other way round: rank 0 joins last.
    steps = tf.function(lambda: hvd.allreduce(1.0, op=hvd.Sum))
    for _ in range(2 * (size - rank)):
        steps()
    assert int(tf.function(hvd.join)()) == 0
    # Calls that need every rank raise an error on all ranks.
    with pytest.raises(MismatchError, match=r"broadcast\(.*while rank 0 has joined"):
        hvd.join() if rank == 0 else hvd.broadcast(tf.zeros(2), 1)
    hvd.barrier()


def some_of_the_ranks():
    rank, size = hvd.rank(), hvd.size()
    assert hvd.global_process_set.included() and hvd.global_process_set.size() == size
    with pytest.raises(ValueError, match="exists already"):
        hvd.add_process_set(hvd.ProcessSet(reversed(range(size))))
    if size == 2:
        return
    ends = hvd.add_process_set([0, size - 1])
    middle = hvd.add_process_set(hvd.ProcessSet([1]))
    own = middle if rank == 1 else ends
    assert own.included() and (ends.included(), middle.included()) == (rank != 1, rank == 1)
    assert (ends.size(), middle.size()) == (2, 1)
    if rank != 1:
        assert ends.rank() == (0 if rank == 0 else 1)
        same(hvd.allreduce(float(rank), op=hvd.Sum, process_set=ends), size - 1.0)
        same(hvd.broadcast(float(rank), size - 1, process_set=ends), size - 1.0)
        same(hvd.allgather([rank], process_set=ends), [0, size - 1])
        with pytest.raises(ValueError, match=r"root_rank must be one of \[0, 2\], got 1"):
            hvd.broadcast(1.0, 1, process_set=ends)
        assert hvd.broadcast_object(rank, 2, process_set=ends) == 2
    else:
        with pytest.raises(ValueError, match="this rank is not in ProcessSet"):
            hvd.allreduce(1.0, process_set=ends)
    with pytest.raises(ValueError, match="must have ranks from 0 to 2"):
        hvd.add_process_set([0, 3])
    with pytest.raises(MismatchError, match="process set"):
        hvd.add_process_set([0, 1] if rank == 0 else [1, 2])
    assert hvd.remove_process_set(ends) and not hvd.remove_process_set(ends)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="not in use"):
        ends.size()
    again = hvd.add_process_set([0, 2])
    assert again.process_set_id not in (None, 0, middle.process_set_id)


def objects_and_variables():
    rank, size = hvd.rank(), hvd.size()
    got = hvd.broadcast_object({"rank": rank, "f": lambda x: x + rank}, root_rank=1)
    assert got["rank"] == 1 and got["f"](1) == 2
    assert hvd.broadcast_object_fn(root_rank=0)("x" * rank + "y") == "y"
    assert hvd.allgather_object((rank, "x" * 1000 * rank)) == [
        (r, "x" * 1000 * r) for r in range(size)
    ]
    numbers = tf.Variable(tf.fill((3, 2), float(rank)))
    count = tf.Variable(rank, dtype=tf.int64)
    flag = tf.Variable(rank == 1)
    hvd.broadcast_variables([numbers, count, flag], root_rank=1)
    same(numbers, np.ones((3, 2)))
    assert int(count) == 1 and bool(flag)
    numbers.assign(tf.fill((3, 2), float(rank)))
    tf.function(lambda: hvd.broadcast_variables([numbers], root_rank=0))()
    same(numbers, np.zeros((3, 2)))
    count.assign(rank)
    assert int(hvd.broadcast_([count], 0)[0]) == 0


def over_again():
    """After shutdown, init works with a communicator, and with some of the ranks."""
    from mpi4py import MPI

    rank, size = hvd.rank(), hvd.size()
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match=r"call hvd.init\(\) first"):
        hvd.rank()
    with pytest.raises(ValueError, match=r"call hvd.init\(\) first"):
        hvd.allreduce(1.0)
    hvd.init(comm=[size - 1, 0], process_sets="dynamic")  # in this order
    if rank in (0, size - 1):
        assert (hvd.rank(), hvd.size()) == (int(rank == 0), 2)
        same(hvd.allgather([rank]), [size - 1, 0])
    else:
        assert (hvd.rank(), hvd.size()) == (0, 1)
        same(hvd.allreduce(5.0), 5.0)
    hvd.shutdown()
    hvd.init(comm=MPI.COMM_WORLD, process_sets=[hvd.ProcessSet([0])])
    hvd.init()  # does nothing
    assert (hvd.rank(), hvd.size()) == (rank, size)
    same(hvd.allreduce(1.0, op=hvd.Sum), size)


CHECKS = [
    who_is_where, reductions_of_every_dtype, factors_before_and_after, halves_on_the_wire,
    groups_of_tensors, adasum_is_its_equation, rows_of_all_ranks, what_the_root_has,
    rows_to_all_ranks, shares_of_a_reduction, gradients_are_horovod_s, sparse_gradients,
    many_in_one_graph_keep_their_order, calls_that_differ_are_named, uneven_batches_and_join,
    some_of_the_ranks, objects_and_variables, over_again,
]  # fmt: skip

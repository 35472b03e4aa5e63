"""Schedules: they leave the sum on every rank, the kernels follow them, the formulas count them."""

import numpy as np
import pytest

from numba_kernels.allreduce.schedules import SCHEDULES, rounds


@pytest.mark.parametrize("algorithm", SCHEDULES)
@pytest.mark.parametrize("ranks", range(1, 10))
def test_the_messages_leave_the_sum_on_every_rank(algorithm, ranks):
    # One decimal digit per rank: the sum is 11...1 only if it has each rank's number exactly once.
    plan = rounds(algorithm, ranks)
    chunks = max([m.chunks for messages in plan for m in messages], default=1)
    held = np.tile(10.0 ** np.arange(ranks)[:, None], chunks)  # (ranks, chunks)
    for messages in plan:
        before = held.copy()
        for source, target, first, last, of, adds in messages:
            assert of in (1, chunks) and 0 <= first < last <= of and source != target
            part = slice(first * chunks // of, last * chunks // of)
            held[target, part] = before[source, part] + (before[target, part] if adds else 0)
        # A rank sends at most one message in a round, and receives at most one.
        assert len({m.source for m in messages}) == len({m.target for m in messages})
        assert len({m.source for m in messages}) == len(messages)
    assert (held == (10**ranks - 1) // 9).all()


def costs_of_the_messages():
    from numba_kernels.allreduce import costs

    for algorithm in SCHEDULES:
        for ranks in range(1, 18):
            for alpha, beta, gamma in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
                total = sum(
                    max(alpha + 10 * m.part * (beta + m.adds * gamma) for m in messages)
                    for messages in rounds(algorithm, ranks)
                )
                machine = costs.straight(alpha, beta, gamma)
                formula = costs.predict(algorithm, 10, ranks, machine)
                assert total == pytest.approx(formula), (algorithm, ranks)


def test_the_messages_cost_what_the_formulas_say(on_ranks):
    on_ranks(1, costs_of_the_messages)


def messages_of_the_kernels():
    """Run the kernels uncompiled, on threads that exchange messages through queues."""
    import importlib
    from queue import Queue
    from threading import Thread
    from types import FunctionType, SimpleNamespace

    from numba_kernels.allreduce import fold
    from numba_kernels.allreduce.elementwise import SUM, bounds
    from numba_kernels.shared.board import READY

    def sent(algorithm, ranks, n):
        """(source, target, first element, last element, number among the source's messages)"""
        module = importlib.import_module(f"numba_kernels.allreduce.{algorithm}")
        doors = {(a, b): Queue() for a in range(ranks) for b in range(ranks)}
        log, vectors = [], np.tile(10.0 ** np.arange(ranks)[:, None], n)  # (ranks, n)

        def run(rank):
            x, number = vectors[rank], iter(range(100))

            def exchange(link, outgoing, to, incoming, source):
                if to >= 0:
                    first = (outgoing.ctypes.data - x.ctypes.data) // x.itemsize
                    log.append((rank, to, first, first + outgoing.size, next(number)))
                    doors[rank, to].put(outgoing.copy())
                if source >= 0:
                    incoming[:] = doors[source, rank].get(timeout=600)
                return READY

            names = vars(fold) | vars(module)
            for name, item in list(names.items()):  # with functions the kernel calls
                if getattr(item, "__module__", "") in (module.__name__, fold.__name__):
                    names[name] = FunctionType(item.py_func.__code__, names)
            names["exchange"] = exchange
            link = SimpleNamespace(words=np.zeros(8, np.int64))
            names["allreduce"](link, rank, ranks, x, np.empty(n), SUM, 1.0)

        threads = [Thread(target=run, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (vectors == (10**ranks - 1) // 9).all()
        return sorted(log)

    for algorithm in SCHEDULES:
        for ranks in range(2, 10):
            n = 16 * ranks + 5  # the last chunk ends within a cache line
            planned, numbers = [], [0] * ranks
            for messages in rounds(algorithm, ranks):
                for m in messages:
                    first = bounds.py_func(n, m.chunks, m.first)[0]
                    last = bounds.py_func(n, m.chunks, m.last - 1)[1]
                    planned.append((m.source, m.target, first, last, numbers[m.source]))
                    numbers[m.source] += 1
            assert sent(algorithm, ranks, n) == sorted(planned), (algorithm, ranks)


def test_the_kernels_send_the_messages_of_the_schedules(on_ranks):
    on_ranks(1, messages_of_the_kernels)


@pytest.mark.parametrize(
    ("algorithm", "ranks", "message"),
    [
        ("star", 4, "unknown algorithm 'star'; choose one of naive, tree, ring"),
        ("ring", 0, "ranks must be at least 1, got 0"),
    ],
)
def test_wrong_input_is_named(algorithm, ranks, message):
    with pytest.raises(ValueError, match=message):
        rounds(algorithm, ranks)

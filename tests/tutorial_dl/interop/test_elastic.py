"""hvd.elastic: ranks are lost or fail, and training goes on with those that are left."""

import json

import pytest

from tutorial_dl.horovod.__main__ import main
from tutorial_dl.interop.horovod.launching import run


def job(killed=(), raised=(), before_a_team=(), after_a_team=()):
    """Ten steps that count the ranks; a commit after every second one.

    Args:
        killed: [(step, rank at the start)] of ranks that end at the begin of this step.
        raised: [(step, rank, error)], each raised once.
        before_a_team: ranks that end when they begin to make the next team.
        after_a_team: (the rank that ends when it has made it, the rank that hears of it just then).
    """

    def function():
        import os
        import signal

        import numpy as np

        from numba_kernels.errors import PeerError
        from numba_kernels.team.team import Team
        from tutorial_dl.interop.horovod import basics, elastic
        from tutorial_dl.interop.horovod.basics import global_process_set
        from tutorial_dl.interop.horovod.wire import Sum

        def end(*_, **__):
            os.kill(os.getpid(), signal.SIGKILL)

        basics.init()
        me, outer = basics.rank(), basics.add_process_set([0, basics.size() - 1])
        state = elastic.ObjectState(step=0, log=[])
        to_come, resets, in_set = list(raised), [], []
        state.register_reset_callbacks(
            [lambda: resets.append((state.step, basics.rank(), basics.size()))]
        )

        def add_up(process_set):
            return int(process_set.wire().allreduce([np.ones(3)], Sum)[0][0])

        def last_step(team, whole=Team._agree):
            Team._agree = whole
            whole(team)
            if me == after_a_team[0]:
                end()
            raise PeerError(0, "it was killed")

        @elastic.run
        def train(state):
            while state.step < 10:
                if (state.step, me) in killed:
                    end()
                for error in [e for e in to_come if e[:2] == (state.step, me)]:
                    to_come.remove(error)
                    raise error[2]
                if me in before_a_team and state.step == 3:
                    Team.subteam = end
                if me in after_a_team and state.step == 3:
                    Team._agree = last_step
                in_set[:] = [add_up(outer) if outer.included() else None]
                state.log.append((state.step, add_up(global_process_set)))
                state.step += 1
                if state.step % 2 == 0:
                    state.commit()
            return state.log

        log = train(state)
        return me, basics.rank(), basics.size(), log, resets, outer.ranks, in_set[0]

    return function


def sizes(*parts):
    """[(step, ranks)] for all ten steps, of [(first step, ranks)]."""
    return [(step, [ranks for first, ranks in parts if first <= step][-1]) for step in range(10)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "killed, left, steps, outer",
    [
        # The step before the killed rank's last one was not committed, and is done again.
        ([(3, 0)], [1, 2, 3], [(0, 4), (2, 3)], [2]),
        ([(3, 1), (6, 0)], [2, 3], [(0, 4), (2, 3), (6, 2)], [1]),
        ([(4, 0), (4, 3)], [1, 2], [(0, 4), (4, 2)], []),
        ([(3, 1), (3, 2), (7, 3)], [0], [(0, 4), (2, 2), (6, 1)], [0]),
    ],
    ids=["rank_0", "two_in_turn", "two_at_once", "one_is_left"],
)
def test_ranks_are_killed(killed, left, steps, outer):
    results = run(job(killed), num_proc=4, min_num_proc=1)
    assert [r[0] for r in results] == left
    assert [r[1:3] for r in results] == [(new, len(left)) for new in range(len(left))]
    for _, new, size, log, resets, ranks, in_set in results:
        assert log == sizes(*steps)
        assert [(step, count) for step, _, count in resets] == steps[1:]
        assert resets[-1][1:] == (new, size) and ranks == outer
        assert in_set == (len(outer) if new in outer else None)


@pytest.mark.thorough
def test_ranks_raise():
    """HorovodInternalError, by one rank and by all: all go on. Another error: the rank is lost."""
    from tutorial_dl.interop.horovod.elastic import HorovodInternalError, HostsUpdatedInterrupt

    device = HorovodInternalError("a device is lost")
    plan = [(3, 1, device), *((5, r, device) for r in range(3)), (7, 2, ValueError("no such file"))]
    results = run(job(raised=plan), num_proc=3, min_num_proc=2)
    assert [r[:3] for r in results] == [(0, 0, 2), (1, 1, 2)]
    for _, _, _, log, resets, _, _ in results:
        assert log == sizes((0, 3), (6, 2))
        assert [(step, size) for step, _, size in resets] == [(2, 3), (4, 3), (6, 2)]
    # All ranks regroup without going back.
    plan = [(5, r, HostsUpdatedInterrupt(skip_sync=False)) for r in range(3)]
    for _, _, _, log, resets, _, _ in run(job(raised=plan), num_proc=3):
        assert log == sizes((0, 3))
        assert [step for step, _, _ in resets] == [5]


@pytest.mark.thorough
def test_a_rank_that_has_failed_lives_on(tmp_path):
    """Rank 1 catches its own error; the others do not wait for it to end."""
    file = tmp_path / "done"

    def function():
        import time

        from tutorial_dl.interop.horovod import basics, elastic
        from tutorial_dl.interop.horovod.basics import global_process_set

        basics.init()

        @elastic.run
        def train(state):
            if state.step == 0 and basics.rank() == 1 and basics.size() == 3:
                raise ValueError("no such file")
            global_process_set.wire().barrier()
            state.step += 1

        try:
            train(elastic.ObjectState(step=0))
            file.touch()
            return basics.rank(), basics.size()
        except ValueError:
            while not file.exists():
                time.sleep(0.01)

    assert run(function, num_proc=3, min_num_proc=2, timeout=300) == [(0, 2), None, (1, 2)]


def test_failures_that_return():
    """Ranks do not regroup for ever."""

    def function():
        from tutorial_dl.interop.horovod import basics, elastic
        from tutorial_dl.interop.horovod.basics import global_process_set

        basics.init()
        calls = []

        @elastic.run
        def train(state):
            calls.append(len(calls))
            if len(calls) == 5 and basics.rank() == 0:
                state.commit()
            global_process_set.wire().barrier()
            if basics.rank() == 1:
                raise elastic.HorovodInternalError(f"call {calls[-1]}")
            global_process_set.wire().barrier()

        train(elastic.ObjectState())

    with pytest.raises(RuntimeError, match=r"call 1[0-9]"):
        run(function, num_proc=2, timeout=300)


@pytest.mark.thorough(but="when1")
@pytest.mark.parametrize("when", [{"before_a_team": [2]}, {"after_a_team": (2, 3)}])
def test_a_rank_is_killed_while_the_others_make_a_team(when):
    """In the second case, rank 1 has the new team, and comes back because rank 3 has not."""
    results = run(job([(3, 0)], **when), num_proc=4, min_num_proc=2)
    assert [r[:3] for r in results] == [(1, 0, 2), (3, 1, 2)]
    for _, _, _, log, resets, _, _ in results:
        assert log == sizes((0, 4), (2, 2))
        assert len(resets) == 1


@pytest.mark.thorough
def test_too_few_ranks_are_left(tmp_path, capfd):
    """One line says so, and the launcher fails. Without a number, all ranks must be left."""
    message = "elastic: ranks 0 and 2 were lost; 1 of 3 ranks left, but at least 2 must be"
    with pytest.raises(RuntimeError, match=message):
        run(job([(3, 0), (3, 2)]), num_proc=3, min_num_proc=2)
    script = tmp_path / "script.py"
    script.write_text(f"""
import os, signal
import numpy as np
from tutorial_dl.interop.horovod import basics, elastic
from tutorial_dl.interop.horovod.basics import global_process_set

basics.init()
me, state = basics.rank(), elastic.ObjectState(step=0)
to_kill = {json.dumps([0, 2])}

@elastic.run
def train(state):
    while state.step < 4:
        if state.step == 1 and me in to_kill:
            os.kill(os.getpid(), signal.SIGKILL)
        global_process_set.wire().barrier()
        state.step += 1
        state.commit()
    print(f"done by {{me}}", flush=True)

train(state)
""")
    capfd.readouterr()
    assert main(["-np", "3", "--min-np", "2", "python", str(script)]) == 1
    said = capfd.readouterr()
    assert said.err.strip().splitlines() == [f"{message} (--min-np): start again from a checkpoint"]
    assert not said.out
    script.write_text(script.read_text().replace("[0, 2]", "[0]"))
    assert main(["-np", "3", "--min-np", "2", "--max-np", "4", "python", str(script)]) == 0
    said = capfd.readouterr()
    assert sorted(said.out.splitlines()) == ["done by 1", "done by 2"]
    assert said.err == "elastic: rank 0 was lost; going on with 2 of 3 ranks\n"
    for words in (["--min-np", "4"], ["--min-np", "0"], ["--max-np", "2"]):
        with pytest.raises(SystemExit) as stop:
            main(["-np", "3", *words, str(script)])
        assert stop.value.code == 2 and "--min-np" in capfd.readouterr().err


def keras_job():
    """Rank 0 is killed during `fit`; the new rank 0 replays alone what the ranks have done."""
    import os
    import signal

    import keras
    import numpy as np
    import tensorflow as tf

    import tutorial_dl.horovod.tensorflow.keras as hvd

    BATCH, STEPS, EPOCHS, RATE = 4, 6, 3, 0.02

    def samples(epoch, step, size):
        random = np.random.default_rng([epoch, step])
        x = random.standard_normal((size * BATCH, 5)).astype("float32")
        return x, (x[:, :2] ** 2).astype("float32")

    def network(seed):
        keras.utils.set_random_seed(seed)
        inputs = keras.Input((5,))
        return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(8, "tanh")(inputs)))

    hvd.init()
    me, model = hvd.rank(), network(hvd.rank())
    optimizer = keras.optimizers.SGD(RATE * hvd.size(), momentum=0.9)
    model.compile(hvd.DistributedOptimizer(optimizer), "mse")
    state = hvd.elastic.KerasState(model, batch=0, epoch=0, log=[])
    state.register_reset_callbacks(
        [lambda: model.optimizer.learning_rate.assign(RATE * hvd.size())]
    )

    def batches():
        epoch, step = state.epoch, state.batch
        while True:
            x, y = samples(epoch, step, hvd.size())
            mine = slice(hvd.rank() * BATCH, (hvd.rank() + 1) * BATCH)
            yield x[mine], y[mine]
            epoch, step = (epoch, step + 1) if step + 1 < STEPS else (epoch + 1, 0)

    class Log(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if me == 0 and (state.epoch, state.batch) == (1, 3):
                os.kill(os.getpid(), signal.SIGKILL)

        def on_train_batch_end(self, batch, logs=None):
            state.log.append((state.epoch, state.batch - 1, hvd.size()))

    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        Log(),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
    ]

    @hvd.elastic.run
    def train(state):
        model.fit(
            batches(), steps_per_epoch=STEPS, epochs=EPOCHS - state.epoch, callbacks=callbacks,
            verbose=0,
        )  # fmt: skip

    @tf.function
    def who_and_how_many():
        """(rank, size) as ops, as a gradient says, and as rows and their mean say."""
        x = tf.ones([1, 2])
        with tf.GradientTape() as tape:
            tape.watch(x)
            rows = hvd.allgather(x)
            numbers = tf.cast(tf.range(tf.shape(rows)[0]), tf.float32)
            loss = tf.reduce_sum(rows[:, 0] * numbers)
        slices = hvd.allreduce(tf.IndexedSlices(x, tf.constant([1]), tf.constant([3, 2])))
        at_root = hvd.broadcast(tf.cast(hvd.rank_op(), tf.float32), 0)
        return [hvd.rank_op(), hvd.size_op(), tape.gradient(loss, x)[0, 0], tf.shape(rows)[0],
                tf.reduce_sum(slices.values), at_root]  # fmt: skip

    before = [int(number) for number in who_and_how_many()]
    train(state)
    after = [int(number) for number in who_and_how_many()]
    replay, plain = network(0), keras.optimizers.SGD(RATE, momentum=0.9)
    replay.compile(plain, "mse")
    if hvd.rank() == 0:
        for epoch, step, size in state.log:
            plain.learning_rate = RATE * size
            replay.train_on_batch(*samples(epoch, step, size))
    return me, state.log, model.get_weights(), replay.get_weights(), before, after


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")
def test_a_rank_is_killed_during_fit():
    import numpy as np

    one, two = run(keras_job, num_proc=3, min_num_proc=2)
    (first, log, weights, replayed), (second, log_2, weights_2) = one[:4], two[:3]
    assert (first, second) == (1, 2) and log == log_2
    # A graph that was traced with three ranks knows that there are two.
    assert [r[4] for r in (one, two)] == [[rank, 3, rank, 3, 2, 0] for rank in (1, 2)]
    assert [r[5] for r in (one, two)] == [[rank, 2, rank, 2, 2, 0] for rank in (0, 1)]
    # The last commit was after batch 1 of epoch 1.
    assert log == [(e, s, 3 if (e, s) < (1, 2) else 2) for e in range(3) for s in range(6)]
    for mine, other, alone in zip(weights, weights_2, replayed, strict=True):
        np.testing.assert_array_equal(mine, other)
        np.testing.assert_allclose(mine, alone, rtol=1e-4, atol=1e-6)

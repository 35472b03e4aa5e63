"""The predicted speed-up against its closed forms, and its measurements with a fake clock."""

import subprocess
import sys

import numpy as np
import pytest
from rank_tests import with_ranks

from tutorial_dl import Trainer, data, models, strategies
from tutorial_dl.data import Data, Dataset
from tutorial_dl.simulate import steps
from tutorial_dl.simulate.steps import median_seconds, profile, speed_up, step_seconds

FREE = {"update_seconds": 0.0, "parameters": 1000, "cores": 64, "bytes_per_second": np.inf}
F = 0.2  # the share that every rank spends in full


def shared(fixed: float, whole: float) -> dict[int, float]:
    """Seconds of a gradient on p ranks: `fixed`, and a p-th of `whole`."""
    return {p: fixed + whole / p for p in (1, 2, 3, 4, 8)}


@pytest.mark.parametrize(
    ("gradients", "cores", "faster"),
    [
        (shared(0, 2.56e-3), 64, {1: 1, 2: 2, 3: 3, 4: 4, 8: 8}),
        # Amdahl's law: 1 / (f + (1 - f)/p)
        (shared(F, 1 - F), 64, {p: 1 / (F + (1 - F) / p) for p in (2, 4, 8)}),
        (shared(0, 2.56e-3), 2, {2: 2, 4: 2, 8: 2}),
        (shared(0, 2.56e-3), 1, {3: 1}),
        # On a busy machine, a half of the batch seemed to take a tenth of the time.
        ({1: 1e-3, 2: 1e-4, 4: 1e-5}, 2, {2: 2, 4: 2}),
        ({1: 1e-3, 2: 1e-4, 4: 1e-5}, 8, {4: 4}),
    ],
)
def test_speed_ups_have_their_closed_form(gradients, cores, faster):
    found = {p: speed_up(p, gradient_seconds=gradients, **FREE | {"cores": cores}) for p in faster}
    assert found == pytest.approx(faster)


def test_a_step_in_numbers():
    none = dict.fromkeys((1, 4), 0.0)
    # The update is cut among the ranks.
    assert step_seconds(4, none, 1.0, 1000, cores=4, bytes_per_second=np.inf) == 0.25
    assert step_seconds(4, none, 1.0, 1000, cores=2, bytes_per_second=np.inf) == 0.5
    # 2 p n b: 4 ranks, 1e6 parameters, 1 GB/s: 2 x 4 x 1e6 x 4 bytes take 32 ms; one moves none.
    for itemsize, seconds in ((4, 0.032), (8, 0.064)):
        arguments = {"parameters": 10**6, "cores": 1, "bytes_per_second": 1e9, "itemsize": itemsize}
        assert step_seconds(4, none, 0.0, **arguments) == pytest.approx(seconds)
        assert step_seconds(1, none, 0.0, **arguments) == 0
    # 3 ms + 1 ms / 2, and 1 ms for 2 x 2 x 1000 x 4 bytes at 16 MB/s: 4.5 ms in place of 7 ms
    measured = {
        "gradient_seconds": {1: 6e-3, 2: 3e-3}, "update_seconds": 1e-3, "parameters": 1000,
        "cores": 2, "bytes_per_second": 16e6,
    }  # fmt: skip
    assert step_seconds(2, **measured) == pytest.approx(4.5e-3)
    assert speed_up(2, **measured) == pytest.approx(7 / 4.5)


# What is measured ------------------------------------------------------------------------------


class Clock:
    """Stands for the module `time`; time passes only when a test advances it."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(steps, "time", clock)
    return clock


def calls(clock, durations):
    """A function whose successive calls take these seconds."""
    durations = iter(durations)

    def call():
        clock.now += next(durations)

    return call


def test_the_median_leaves_out_the_first_call_and_is_not_moved_by_a_slow_one(clock):
    assert median_seconds(calls(clock, [0, 1, 2, 3, 4, 1000]), 5, 0) == 3
    assert median_seconds(calls(clock, [0, 1, 2, 4, 1000]), 4, 0) == 3  # an even number of times


def test_it_is_repeated_for_the_time_given(clock):
    assert median_seconds(calls(clock, [1, 1, 1, 2, 2, 2, 2]), least=2, seconds=10) == 2
    assert clock.now == 11  # the first call ends at 1, so six calls from 1 to 11 count


class Model:
    """A replica and an optimizer that take 1 s per sample and 7 s per update."""

    def __init__(self, clock, samples, batch_size):
        x = np.zeros((samples, 2))
        part = Data.of(x, x)
        self.clock, self.dataset = clock, Dataset("zeros", part, part)
        self.replica = self.optimizer = self.batches = self
        self.batch_size = batch_size
        self.parameters, self.gradient, self.segments = np.arange(3.0), np.ones(3), (0, 1)

    def compute_gradient(self, batch):
        self.clock.now += len(batch[0])

    def init(self, n, dtype, segments):
        assert (n, dtype, segments) == (3, np.float64, (0, 1))

    def update(self, parameters, gradient, state):
        self.clock.now += 7
        parameters += 1


def test_the_profile_times_the_largest_share_of_each_number_of_ranks(clock):
    model = Model(clock, samples=100, batch_size=30)
    assert profile(model, (1, 2, 4)) == {
        "gradient_seconds": {1: 30, 2: 15, 4: 8},
        "update_seconds": 7,
    }
    assert (model.parameters == [0, 1, 2]).all()  # the weights are as before


def test_a_batch_has_no_more_samples_than_there_are(clock):
    assert profile(Model(clock, 10, 30), (1, 5))["gradient_seconds"] == {1: 10, 5: 2}


@with_ranks(1)
def test_the_profile_of_a_model_of_ours():
    """It does not change the weights, and `speed_up` accepts it."""
    digits = data.digits()
    trainer = Trainer(models.dense(digits), digits, strategies.Serial(), progress=False)
    before = trainer.replica.parameters.copy()
    measured = profile(trainer, (1, 4))
    assert (trainer.replica.parameters == before).all()
    c, u = measured["gradient_seconds"], measured["update_seconds"]
    faster = speed_up(4, **measured, parameters=before.size, cores=4, bytes_per_second=np.inf)
    quarter = max(c[4], c[1] / 4)  # it may have been measured as less, on a busy machine
    assert faster == pytest.approx((c[1] + u) / (quarter + u / 4)) and min(*c.values(), u) > 0


def test_predicting_needs_no_mpi():
    """`run` predicts in the process that starts the ranks, which must be no rank itself."""
    code = (
        "import sys, tutorial_dl.cli.run, tutorial_dl.simulate.steps;"
        "assert 'mpi4py.MPI' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_copying_counts_bytes_read_and_written(monkeypatch):
    """If every copy of 1 MiB takes 2 s, the result is 2 MiB / 2 s."""
    ticks = iter(range(0, 1000, 2))
    monkeypatch.setattr(steps.time, "perf_counter", lambda: next(ticks))
    assert steps.copy_bandwidth(1, repeats=3) == 2**20

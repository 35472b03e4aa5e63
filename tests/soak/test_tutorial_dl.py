"""Bounds and repetition for training, its faults, timelines and data."""

from __future__ import annotations

import subprocess
import sys
import time

import clock
import pytest

from numba_kernels import launch
from tutorial_dl import bench
from tutorial_dl.cli.notebooks import notebook_files

MESSAGES = {"NUMBA_KERNELS_WINDOW": "0"}
NODES = {"NUMBA_KERNELS_NODE": "2"}


# Models ----------------------------------------------------------------------------------------


def test_500_random_models(tests, record, on_ranks):
    of = tests("test_random_models")
    on_ranks(3, of.several, list(range(500)), keras=True, timeout=1800)
    record("random Keras models on 3 ranks, on 1, and by Keras", "500 alike", "500 alike", True)


# Faults and signals ----------------------------------------------------------------------------


def test_killed_20_times(tests, record, tmp_path):
    runs = tests("test_resumed_runs").killed_again_and_again(tmp_path, 20)
    record("20 times killed and resumed, the same bits", "all", f"20, in {runs} runs", True)


@pytest.mark.parametrize(
    ("n", "window", "times"),
    [(2, "1", 11), (2, "0", 11), (3, "1", 50), (3, "0", 11), (4, "1", 11), (4, "0", 11)],
)
def test_fault_after_fault(tests, record, bound, tmp_path, monkeypatch, n, window, times):
    """The cells of one cluster meet one fault after the other."""
    import random

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("NUMBA_KERNELS_WINDOW", window)
    of, chance = tests("test_cell_faults"), random.Random(n)
    names = [*of.FAULTS, *chance.choices([*of.FAULTS], k=times - len(of.FAULTS))]
    chance.shuffle(names)
    of.fault_after_fault(n, names, seed=n)
    where = f"{n} engines, {'window' if window == '1' else 'messages'}"
    record(f"{times} faults in a row, {where}", "trains on", "trained on", True)
    bound("a cell ends after a fault", 5, of=where)


def test_workers_that_are_killed(tests, record, tmp_path):
    of = tests("test_worker_faults")
    for number, form in enumerate(of.FORMS):
        for how in (of.test_workers_that_are_killed, of.test_workers_that_are_killed_over_messages,
                    of.test_all_workers_of_a_sub_master_are_killed):  # fmt: skip
            folder = tmp_path / f"{number} {how.__name__}"
            folder.mkdir()
            how(folder, form)
    record("runs whose workers are killed, of 5 rules on 3 layouts", "15 end well", "15", True)


def test_train(tests, bound, tmp_path):
    of = tests("test_train_faults")
    (tmp_path / "mine.py").write_text(of.MODELS.format(support=str(of.Path(of.ONE_CALL).parent)))
    of.test_a_master_is_lost(tmp_path, "die", 0, 1)
    bound("a run ends with its master", 60)
    of.test_signals(tmp_path)
    bound("Ctrl-C ends a run that has lost a worker", 20)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_strategies_learn(on_ranks, tests, record, ranks):
    on_ranks(ranks, tests("test_parameter_server").learn, ["softmax", "dense"])
    what = f"all strategies learn, five runs of both models, {ranks} ranks"
    record(what, "as descent", "as descent", True)


@pytest.mark.parametrize("env", [MESSAGES, NODES], ids=["messages", "nodes"])
def test_masters_over_messages(on_ranks, tests, record, env):
    of = tests("test_parameter_server")
    on_ranks(7, of.every_sample, of.DEEP[:1], of.SIZES[1:2], of.WITH_MASTER, env=env)
    record("every sample once, 2 sub-masters with 2 workers each", "once", "once", True)


def test_runs_of_groups_that_are_interrupted(on_ranks, tests, record, tmp_path):
    of = tests("test_group_checkpoints")
    on_ranks(5, of.cut_groups, str(tmp_path / "window"), [7, 40])
    on_ranks(5, of.cut_groups, str(tmp_path / "messages"), [30], env=MESSAGES)
    record("runs of groups, interrupted and resumed 18 times", "every sample once", "once", True)


@pytest.mark.parametrize("one_copy", [False, True], ids=["copies", "one copy"])
def test_every_rule_over_messages(on_ranks, tests, record, one_copy):
    on_ranks(3, tests("test_synchronous").numpy_replicas, "fused", one_copy, env=MESSAGES)
    record("3 ranks are one process, 5 optimizers over messages", "1e-12", "1e-12", True)


def test_batch_normalisation(on_ranks, tests, record):
    on_ranks(3, tests("test_sync_batch_normalization").each_rank, True, keras=True)
    record(
        "batch normalisation over 3 ranks and over 2, in both precisions", "right", "right", True
    )


def test_keras_models_learn_under_a_master(on_ranks, tests, record):
    on_ranks(3, tests("test_keras_masters").each_rank, True, keras=True)
    record("Keras under a master, each precision with each rule", "learns", "learns", True)


def test_the_full_gan_leaves_no_memory_behind(on_ranks, tests, record):
    on_ranks(2, tests("test_keras_gan").many_steps, 300, 20e6, keras=True, timeout=1800)
    record(
        "memory of the GAN of 25^3 showers, steps 100 to 300", "under 20 MB", "under 20 MB", True
    )


def test_games_under_sub_masters(on_ranks, tests, record):
    on_ranks(5, tests("training/test_gan").under_sub_masters, 25)
    what = "a GAN by four rules under two sub-masters, 5 ranks"
    record(what, "nearer to the data", "nearer to the data", True)


def test_networks_of_the_bench(on_ranks, tests, record):
    on_ranks(2, tests("test_bench_networks").each_rank, ["lstm"], keras=True)
    record("all programs of the bench train the LSTM alike", "the same weights", "the same", True)


def test_bubbles_of_pipelines(record):
    from benchmarks.__main__ import PIPELINES
    from benchmarks.pipelines import merged
    from numba_kernels.bench import one_run

    rows = merged([one_run(PIPELINES, 2, 20.0, full=False) for _ in range(bench.STARTS)])
    bubbles = {one["algorithm"]: (one["bubble"], one["predicted_bubble"]) for one in rows}
    for name, (found, right) in bubbles.items():
        if not name.startswith("zb_h1"):
            near = abs(found / right - 1) < 0.2
            record(f"bubble of {name}, 2 ranks", f"{right:.3f} +- 20%", f"{found:.3f}", near)
    ratio = bubbles["zb_h1, m = 2"][0] / bubbles["1f1b, m = 2"][0]
    record("bubble of zb_h1, of 1f1b's, m = S = 2", "< 0.67", f"{ratio:.2f}", ratio < 2 / 3)


@pytest.mark.parametrize("case", [("cnn", "digits", 10), ("lstm", "events", 3)])
def test_every_strategy_trains_at_its_defaults(on_ranks, tests, record, tmp_path, case):
    tests("test_cli").train_at_defaults(on_ranks, tmp_path, *case)
    record(f"{case[0]} by each strategy at its defaults", "trains", "trains", True)


@pytest.mark.parametrize("part", ["pipeline_throughput", "tensor_throughput"])
def test_throughput_of_divided_models(record, part):
    from numba_kernels.bench import one_run
    from numba_kernels.bench.rows import merge

    for one in merge(
        [one_run(f"benchmarks.{part}", 2, 30.0, full=False) for _ in range(bench.STARTS)]
    ):
        found = one["fraction_of_limit"]
        name = f"{one['what']}, {one['algorithm']}, 2 ranks; {one['peer']}"
        record(name, "0.85 of ideal", f"{found:.2f}", found >= 0.85)


def test_the_main_job_on_four_ranks(tests, record, tmp_path):
    def command(*words, timeout):
        call = [sys.executable, "-m", "tutorial_dl", *words]
        return subprocess.run(call, cwd=tmp_path, timeout=timeout, capture_output=True, text=True)

    printed, gan = tests("test_cli").main_job(command, tmp_path, 4)
    assert gan["accuracy_asked"] >= 0.85 and "no class is missing" in printed
    record("`tutorial_dl run` on 1 to 4 ranks", "10 results, a report", "10, a report", True)


def test_horovod_on_two_ranks(on_ranks, tests, record):
    tests("test_horovod").test_every_function(on_ranks, 2)
    record("Horovod's functions on 2 ranks", "right", "right", True)


def test_horovods_script_is_started_on_two_ranks(tests, record, tmp_path):
    """It has no `shutdown`, and must end all the same."""
    of = tests("test_horovod")

    def start(ranks, *words):
        if ranks == 1:  # without mpiexec
            command = [sys.executable, of.SCRIPT, *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        else:
            call = [str(of.SCRIPT), *words]
            done = launch.run_ranks(ranks, call, timeout=600, capture=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    of.trains_as_one_process(tmp_path, start)
    record("a script of Horovod, started on 2 ranks", "as one process", "as one process", True)


def test_a_killed_rank_of_a_keras_model(tests, record, tmp_path):
    tests("model_parallel/test_cuts").a_rank_dies(tmp_path)
    record("a killed rank of a Keras model by tensor parallelism", "ends all", "ends all", True)


# Timelines -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "algorithm", "env"), [(2, "fused", None), (3, "auto", None), (3, "fused", NODES)]
)
def test_a_straggler(on_ranks, tests, bound, ranks, algorithm, env):
    of = tests("test_timeline_training")
    on_ranks(ranks, of.straggler, ranks - 1, 4, algorithm, env=env)
    where = f"{ranks} ranks"
    bound(of.WAITS, 0.2, of=where)
    bound(of.OFF, 0.2, of=where)
    bound("who begins to wait after the straggler is there", 1, "ranks")


@pytest.mark.parametrize("ranks", [1, 2])
def test_sums_of_spans(on_ranks, tests, bound, ranks):
    on_ranks(ranks, tests("test_timeline_training").sums)
    bound("the first epoch is not covered by", 0.5, "of it")
    bound("an epoch is not covered by", 0.03, "of it")
    bound("spans and seconds of an epoch differ by", 0.05, "of it")


@pytest.mark.parametrize("ranks", [1, 2])
def test_overhead(on_ranks, tests, bound, ranks):
    on_ranks(ranks, tests("test_timeline_training").overhead)
    bound("recording costs of a step", 1, "%", f"{ranks} ranks")


@pytest.mark.parametrize("window", ["1", "0"])
def test_a_slow_worker(on_ranks, tests, bound, window):
    of = tests("test_master_checkpoints")
    on_ranks(3, of.spans, window, env={"NUMBA_KERNELS_WINDOW": window})
    missing = "a worker that waits for a slow one is shown to wait, of the time missing"
    bound(missing, 0.2, "of it")
    bound(f"{missing} in its push", 0.3, "of it")


def test_a_figure_of_many_spans(tests, bound):
    tests("test_timeline").test_figure_of_everything_at_once()
    bound("a figure of 25 000 spans", 20)


# The rest --------------------------------------------------------------------------------------

MEASURING = [path for path in notebook_files() if "measure.expect" in path.read_text()]


@pytest.mark.parametrize("path", MEASURING, ids=lambda path: path.stem)
def test_what_notebooks_expect_is_measured(tests, record, tmp_path, monkeypatch, path):
    monkeypatch.setenv("TUTORIAL_DL_QUIET_MACHINE", "1")
    tests("test_notebooks").test_notebook(path, tmp_path)
    record(f"times that notebook {path.name[:2]} predicts", "as expected", "as expected", True)


def test_help_at_once(tests, bound, tmp_path, monkeypatch):
    import subprocess
    import sys

    for words in (["--help"], ["train", "--help"], ["run", "--help"], ["doctor", "--help"]):
        with clock.seconds("--help"):
            subprocess.run([sys.executable, "-m", "tutorial_dl", *words], capture_output=True)
    bound("--help", 3)


def test_showers_per_second(bound):
    """One thread; the kernel is compiled, or loaded, before."""
    from tutorial_dl.data import showers

    showers.simulate(range(2))
    with clock.seconds("1000 showers of 25^3 voxels"):
        showers.simulate(range(1000))
    bound("1000 showers of 25^3 voxels", 2)


def test_events_per_second(record):
    """The rate was 3000 to 4000 events per second when this test was written."""
    from tutorial_dl import data

    data.events(10)
    started = time.perf_counter()
    data.events(1000)
    rate = 1250 / (time.perf_counter() - started)
    record("events per second", "> 300", f"{rate:.0f}", rate > 300)


@pytest.mark.parametrize("exercise", ["07", "08"])
def test_wrong_answers_of_exercises_hang_nobody(tests, on_ranks, bound, capsys, exercise):
    with clock.seconds(f"a wrong answer of notebook {exercise} is told"):
        if exercise == "07":
            wrong = (
                "    p, rank",
                "    raise NotImplementedError\n    p, rank",
                "still to be written",
            )
            tests("test_07_exercises").test_wrong_rings(capsys, *wrong)
        else:
            tests("test_answers_on_ranks").test_wrong_answers(on_ranks, "08.sums")
    bound(f"a wrong answer of notebook {exercise} is told", 10 if exercise == "07" else 40)

"""All tests in two lanes, side by side: `make test`. (`pytest` alone runs one after the other.)

Tests of clusters, failures and notebooks wait half of the time: for processes to start, to end, or
to be found gone. What is in BESIDE computes, measures no time, and need not be answered soon. It
runs meanwhile on what the others leave of the cores, at the lowest priority that there is.

What is in TIMED asserts seconds of a clock ("within 2 s, all ranks know"). Such a bound is for a
machine with nothing else to do, and no program keeps it where a busy host takes the cores away for
a second. So a few of them that fail are asked once more when both lanes have ended, and are named;
what then fails has failed. Nothing else is asked twice.

    python tests/two_lanes.py [options of pytest]

Ctrl-C ends both. What the lane beside said is shown at the end.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS.parent))

from numba_kernels import launch  # noqa: E402
from numba_kernels.launch import guard

# What is named after "::" is one test of a file.
BESIDE = """
numba_kernels: vector_code allreduce allreduce_properties assembly compile compression
numba_kernels: compression_methods fused bench::step_prints_json
tutorial_dl: bench_networks horovod keras_checkpoints keras_masters keras_replica keras_memory
tutorial_dl: keras_refused keras_chatter mixed_precision user_errors
tutorial_dl: sync_batch_normalization synchronous models
tutorial_dl: checkpoints data descent foundations hdf5_training
tutorial_dl: plotting_allreduce plotting_batch_norm
tutorial_dl: plotting_curves plotting_kernels plotting_large_batches plotting_training replicas
tutorial_dl: resumed_runs trainer_options training
tutorial_dl: parameter_server::every_sample_once_in_layouts
tutorial_dl: parameter_server::every_sample_once_an_epoch
tutorial_dl: parameter_server::every_sample_once_over_messages
tutorial_dl: parameter_server::synchronous_forms_are_exact
tutorial_dl: parameter_server::synchronous_forms_are_exact_in_layouts
tutorial_dl: master_checkpoints::every_sample_once_whoever_resumes
tutorial_dl: group_checkpoints
tutorial_dl: master_checkpoints::resumed_runs_end_with_the_same_bits
tutorial_dl: cli::the_main_job cli::results_and_every_option
tutorial_dl: cli::a_users_own_keras_model_of_two_inputs
notebooks: 01_02_exercises 03_exercises 09_exercises notebooks::notebook[01_curve_fitting]
notebooks: notebooks::notebook[02_gradient_descent] notebooks::notebook[03_neural_network]
notebooks: notebooks::notebook[09_large_batches] notebooks::notebook[10_batch_norm_and_friends]
"""
TIMED = """
tests: worlds
numba_kernels: bench costs failures keeper launch recovery running star star_faults team trace turns
tutorial_dl: cells cli cluster cluster_list doctor faults hdf5 hdf5_cache hogwild
tutorial_dl: master_checkpoints master_errors measure profiles timeline timeline_training
tutorial_dl: train_faults view worker_faults
notebooks: notebooks 04_exercises 05_exercises 06_exercises 07_exercises 08_exercises 11_exercises
"""
AGAIN = 10  # more failures than that are not the machine's pace
LOWEST = 19
LOOK = 0.2  # seconds between looks for new sessions of the lane beside
PATIENCE = 20.0  # seconds for the first lane to end after Ctrl-C


def listed(names: str):
    """(file, test or "") of what a list as above names; the files are there."""
    for line in names.strip().splitlines():
        folder, rest = line.split(":", 1)
        for name in rest.split():
            name, _, test = name.partition("::")
            file = TESTS / ("" if folder == "tests" else folder) / f"test_{name}.py"
            if not file.is_file():
                raise FileNotFoundError(file)
            yield file, test


def beside() -> tuple[list[str], list[str]]:
    """Files and single tests of the lane beside, by their paths from the repository's root."""
    files, tests = [], []
    for file, test in listed(BESIDE):
        path = file.relative_to(TESTS.parent).as_posix()
        if test:
            check_beginning(file, f"test_{test}")
            tests.append(f"{path}::test_{test}")
        else:
            files.append(path)
    return files, tests


def asked_again(failed: list[str]) -> list[str]:
    """The failed tests, if all of them have bounds in seconds and they are few; else none."""
    timed = {file.relative_to(TESTS.parent).as_posix() for file, _ in listed(TIMED)}
    few = len(failed) <= AGAIN and all(name.split("::")[0] in timed for name in failed)
    return failed if few else []


def check_beginning(file: Path, test: str) -> None:
    """`--deselect` goes by a name's beginning: a longer name would run in neither lane."""
    for other in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE):
        name = f"{file.stem.removeprefix('test_')}::{other.removeprefix('test_')}"
        if other.startswith(test) and other != test and name not in BESIDE.split():
            raise ValueError(f"{file.name}: {other} begins as {test} does; list it in BESIDE, too")


def order() -> list[str]:
    """Folders and files of tests; notebooks last: what they compile is there by then."""
    names = {file.relative_to(TESTS).parts[0] for file in TESTS.rglob("test_*.py")}
    return [f"tests/{name}" for name in sorted(names, key=lambda n: (n == "notebooks", n))]


def set_nice(root: int, nice: int, done: set[int]) -> None:
    """Give all sessions below process `root` that are not in `done` this nice value.

    Linux shares the cores between sessions first; a process's own nice value counts only within its
    session. And every rank is a session of its own.
    """
    for pid in [root, *guard.descendants(root)]:
        with suppress(OSError):  # it has ended, or not so often: the next look does it
            if (session := os.getsid(pid)) not in done:
                Path(f"/proc/{pid}/autogroup").write_text(str(nice))
                done.add(session)


def run(options: list[str], said, failed: Path) -> tuple[tuple[int, int], float]:
    """Both lanes: their statuses; the seconds that the second was late. `failed` gets names."""
    pytest, (files, tests) = [sys.executable, "-m", "pytest", *options], beside()
    second = subprocess.Popen(
        launch.guarded([*pytest, "-p", "no:cacheprovider", *files, *tests], os.getpid()),
        stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, cwd=TESTS.parent,
        env=os.environ
        | {"TESTS_LANE": "beside", "TESTS_FAILED": str(failed), "NUMBA_KERNELS_STALL": "1000"},
        start_new_session=True,
        preexec_fn=lambda: os.nice(LOWEST),
    )  # fmt: skip
    without = [f"--ignore={file}" for file in files]
    without += [f"--deselect={test}" for test in tests]
    first = subprocess.Popen(
        [*pytest, *without, *order()], cwd=TESTS.parent,
        env=os.environ | {"TESTS_LANE": "first", "TESTS_FAILED": str(failed)},
    )  # fmt: skip
    low, ended = set(), time.monotonic()
    try:
        while first.poll() is None:
            set_nice(second.pid, LOWEST, low)
            time.sleep(LOOK)
        ended = time.monotonic()
        set_nice(second.pid, 0, set())
        second.wait()
    except KeyboardInterrupt:  # the first lane has heard of it too
        second.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            first.wait(PATIENCE)
    finally:
        for lane in (first, second):
            lane.terminate()
            lane.wait()
    return (first.returncode, second.returncode), time.monotonic() - ended


def once_more(options: list[str], names: list[str]) -> int:
    """The status of these tests with the machine to themselves."""
    print(f"\nOnce more, with nothing beside: {len(names)} with bounds in seconds that failed.")
    print(*names, sep="\n", flush=True)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *names], cwd=TESTS.parent
    ).returncode


def main(options: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as said:
        failed = Path(folder, "failed")
        failed.touch()
        try:
            lanes, late = run(options, said, failed)
            print(f"\nThe lane beside ended {late:.0f} s later. It said:")
        finally:
            said.seek(0)
            print(said.read(), flush=True)
        names = list(dict.fromkeys(failed.read_text().splitlines()))
    if set(lanes) == {0, 1} and (names := asked_again(names)):
        return once_more(options, names)
    return next((status for status in lanes if status), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""tutorial_dl.horovod: checks on 2 or 3 ranks, a script, functions run on ranks, failures.

The checks themselves are in horovod_collectives.py, horovod_callbacks.py and horovod_training.py.
"""

import runpy
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from numba_kernels import launch
from tutorial_dl.horovod.__main__ import main
from tutorial_dl.interop.horovod.launching import ranks_on, run

HERE = Path(__file__).parent
SCRIPT = HERE / "horovod_script.py"


def checks(which="run"):
    sys.path.insert(0, str(HERE))
    import horovod_checks

    getattr(horovod_checks, which)()


@pytest.mark.xdist_group("keras")
@pytest.mark.parametrize("n", [3])
def test_every_function(on_ranks, n):
    """`make soak` runs it on 2 ranks, too."""
    on_ranks(n, checks, timeout=400, keras=True)


UNEVEN = """
import keras, numpy as np
import tutorial_dl.horovod.keras as hvd
hvd.init()
x = np.ones((8 * (3 + hvd.rank()), 4), "f4")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
model.fit(x, x[:, :1], batch_size=8, verbose=0)
"""


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")
def test_unequal_numbers_of_steps_say_what_to_do():
    """In a graph of `fit`; it ends with the script's own line and the message."""
    done = launch.run_ranks(2, ["-c", UNEVEN], timeout=600, capture=True)
    *_, head, file, line = done.stderr.splitlines()
    assert head.startswith("Traceback") and file == '  File "<string>", line 8, in <module>'
    assert "PeerError: rank 0 failed: it left the team" in line and "hvd.join()" in line
    assert "drop_remainder=True" in line and "steps_per_epoch" in line


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")
def test_scripts(on_ranks):
    """Real Horovod scripts keep running: their shapes, horovod_shapes.py."""
    on_ranks(3, checks, "run_shapes", keras=True)


def as_script(*words):
    """Run the script in ranks that have loaded Keras, which takes as long as all that it does."""
    import tutorial_dl.horovod.tensorflow.keras as hvd

    with mock.patch.object(sys, "argv", [str(SCRIPT), *words]):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    hvd.shutdown()


@pytest.mark.xdist_group("keras")
def test_a_script_with_only_its_import_changed(on_ranks, tmp_path):
    """`make soak` starts the script itself, with mpiexec and without."""
    trains_as_one_process(tmp_path, lambda n, *words: on_ranks(n, as_script, *words, keras=True))


def trains_as_one_process(tmp_path, script):
    """Two ranks get the weights of one process with batches of twice the size.

    `script` runs it on so many ranks, with these words, and returns what rank 0 prints.
    """
    together, alone = tmp_path / "together", tmp_path / "alone"
    together.mkdir(), alone.mkdir()
    printed = [
        script(2, str(together), "--batch", "32", "--rate", "0.05"),
        script(1, str(alone), "--batch", "64", "--rate", "0.1"),
    ]
    for name in ("fit", "loop"):
        first, second, one = (
            list(np.load(file).values())
            for file in (together / f"{name}-0.npz", together / f"{name}-1.npz",
                         alone / f"{name}-0.npz")
        )  # fmt: skip
        for a, b, c in zip(first, second, one, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_allclose(a, c, rtol=1e-4, atol=2e-5)
    accuracy = [text.split("accuracy ")[-1].split()[0] for text in printed]
    assert accuracy[0] == accuracy[1] and float(accuracy[0]) > 0.8
    assert {p.name for p in together.glob("*.keras")} == {
        f"checkpoint-{e}.keras" for e in (1, 2, 3)
    }


@pytest.mark.thorough
def test_run_gives_results_by_rank():
    offset = 10

    def function(factor, shift=0):
        from numba_kernels.team.team import Team  # without TensorFlow, ranks start in a second

        team = Team()
        total = team.allreduce(np.array([float(team.rank)]))[0]
        rank = team.rank
        return factor * rank + shift + offset, total, lambda: rank

    results = run(function, (2,), {"shift": 1}, num_proc=3, verbose=2, use_mpi=True, use_gloo=False)
    assert [r[:2] for r in results] == [(11, 3.0), (13, 3.0), (15, 3.0)]
    assert [r[2]() for r in results] == [0, 1, 2]
    with pytest.raises(ValueError, match="number of ranks must be from 1 to 1024, got 2000"):
        run(function, np=2000)
    with pytest.raises(ValueError, match=r"host 'a' is another machine.*mpiexec"):
        run(function, hosts="a:2,b:2")
    with pytest.raises(ValueError, match="no argument hostfile"):
        run(function, hostfile="hosts")


def test_hosts_are_this_machine():
    ranks = run(lambda: 1, hosts=f"localhost:1,{socket.gethostname()}:1")
    assert ranks == [1, 1]
    for hosts, asked, message in (
        ("localhost:2", 3, "3 ranks, but hosts 'localhost:2' has 2 slots"),
        ("localhost", None, "expected localhost:4"),
        ("localhost:0", None, "expected localhost:4"),
        (":2", None, "expected localhost:4"),
        (None, None, "the number of ranks is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            ranks_on(hosts, asked)


@pytest.mark.thorough
def test_a_rank_that_fails_is_named():
    """A rank raises while the other waits; a rank ends without an error; a rank does not end."""

    def function():
        from numba_kernels.team.team import Team

        team = Team()
        if team.rank == 1:
            raise KeyError("no such sample")
        team.barrier()

    with pytest.raises(RuntimeError, match="rank 1 failed: KeyError: 'no such sample'"):
        run(function, num_proc=2)

    def leave():
        import os

        from numba_kernels.launcher import rank

        if rank() == 1:
            os._exit(3)

    with pytest.raises(RuntimeError, match="rank 1 ended without a result"):
        run(leave, num_proc=2)

    def wait():
        time.sleep(1000)

    with pytest.raises(subprocess.TimeoutExpired):
        run(wait, num_proc=2, timeout=3)


def test_the_command_line(capfd):
    assert main(["-np", "2", "python", "-c", "print('hello')"]) == 0
    assert capfd.readouterr().out.count("hello") == 2
    assert main(["-H", "localhost:2", "--mpi", "--verbose", "python", "-c", "print('hello')"]) == 0
    said = capfd.readouterr()
    assert said.out.count("hello") == 2 and said.err.startswith("2 ranks: ")
    assert main(["--check-build"]) == 0
    there = capfd.readouterr().out
    assert "[X] TensorFlow" in there and "[X] MPI" in there and "[ ] PyTorch" in there
    for words, message in (
        (["-np", "2"], "command is missing"), (["-np", "2", "python3"], "command is missing"),
        (["-np", "0", "a.py"], "got 0"), (["-np", "0", "python_train.py"], "got 0"),
        (["-np", "2", "pythonic", "-c", "1"], "pythonic is neither python nor a script"),
        (["-np", "2", "sh", "-c", "true"], "sh is neither python nor a script"),
        (["-H", "node7:2", "a.py"], "'node7' is another machine"),
        (["a.py"], "the number of ranks is missing: give -np 4 or -H localhost:4"),
        (["-np", "2", "--gloo", "a.py"], "ranks use MPI; leave it out"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2 and message in capfd.readouterr().err


def test_importing_the_package_loads_neither_mpi_nor_tensorflow():
    code = (
        "import sys, tutorial_dl.horovod as hvd; hvd.run; "
        "assert not {'tensorflow', 'keras', 'mpi4py.MPI'} & sys.modules.keys(), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)

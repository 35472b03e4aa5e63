"""The bench command: what it measures, writes and refuses. These tests do not judge speed."""

import inspect
import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from numba_kernels import bench, launch
from numba_kernels.bench import timing
from numba_kernels.bench.rows import BEST, BY_MESSAGES, merge

FIELDS = {"what", "ranks", "algorithm", "dtype", "ours_us", "peer", "peer_us", "ratio"}
FIELDS |= {"fraction_of_limit", "moved_bytes", "ratio_from", "ratio_to", "starts"}
SECONDS = "0.2"  # of a bench; its precision does not matter here
WINDOW, ORDINARY = "allreduce", "allreduce of ordinary arrays"


def without_peers(folder):
    """An environment in which Keras can't be imported; it uses a new `folder`."""
    folder.mkdir()
    for name in ("keras", "tensorflow"):
        (folder / f"{name}.py").write_text(f"raise ImportError('no {name} here')\n")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return dict(os.environ, PYTHONPATH=path)


@pytest.fixture
def no_peers(tmp_path):
    return without_peers(tmp_path / "no_peers")


def command(*words, env=None):
    call = [sys.executable, "-m", "numba_kernels", "bench", *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=600, env=env)


STARTS = """
from numba_kernels import bench
bench.KINDS = {{kind: tuple((part, {starts}, share) for part, _, share in parts)
               for kind, parts in bench.KINDS.items()}}
raise SystemExit(bench.main())
"""


def command_with_fewer_starts(*words, env, starts=1):
    """The command, except that it starts its ranks `starts` times per kind of row, not 3 times."""
    call = [sys.executable, "-c", STARTS.format(starts=starts), "bench", *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=600, env=env)


def check(one, size):
    assert one.keys() >= FIELDS | {size} and one["dtype"] == "float32"
    assert one["ours_us"] > 0 and one["peer_us"] > 0 and one[size] > 0
    assert one["ratio"] == pytest.approx(one["peer_us"] / one["ours_us"])
    assert one["ratio_from"] <= one["ratio"] <= one["ratio_to"]
    assert one["fraction_of_limit"] > 0


def rows_of_allreduce(command, starts, folder, no_peers):
    file = folder / "rows.json"
    done = command("allreduce", "-n", "2", "--seconds", SECONDS, "--json", str(file), env=no_peers)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    result = json.loads(file.read_text())
    rows = result["rows"]
    assert "cores" in result["machine"] and result["load"] >= 0
    assert result["seconds"] > 0 and result["starts"] == {"allreduce": starts}
    for one in rows:
        check(one, "bytes")
        assert one["ranks"] == 2 and one["starts"] == starts and one["peer"].endswith(" Allreduce")
        assert one["moved_bytes"] == 2 * 2 * one["bytes"]
    found = sorted((one["what"], one["algorithm"], one["bytes"]) for one in rows)
    sizes = [1024 * kib for kib in (1, 16, 64, 256, 1024, 4096, 16384, 65536)]
    expected = [
        (f"{what}, {how}", algorithm, nbytes)
        for what, algorithm in ((WINDOW, "shared_memory"), (ORDINARY, "auto"))
        for how in ("full cycle", "repeated call")
        for nbytes in sizes
    ]
    three = ("ring", "rabenseifner", "recursive_doubling")
    expected += [(BY_MESSAGES, name, nbytes) for name in three for nbytes in sizes[2:7]]
    assert [key for key in found if key[0] != BEST] == sorted(expected)
    for one in rows:
        if one["what"] == BEST:
            others = [r for r in rows if r["what"] == BY_MESSAGES and r["bytes"] == one["bytes"]]
            assert one["ours_us"] == min(r["ours_us"] for r in others)
    assert [one["bytes"] for one in rows if one["what"] == BEST] == sizes[2:7]
    assert done.stdout.count("\n") == len(rows) + 2  # one line per row, below two header lines
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_allreduce(tmp_path, no_peers):
    """`make soak` has the three starts of the command itself."""
    rows_of_allreduce(partial(command_with_fewer_starts, starts=2), 2, tmp_path, no_peers)


def test_step_prints_json(tmp_path, no_peers):
    file = tmp_path / "step.svg"
    words = ("--seconds", SECONDS, "--json", "-", "--plot", str(file))
    done = command_with_fewer_starts("step", *words, env=no_peers)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]  # and nothing else
    for one in rows:
        check(one, "parameters")
    found = [(one["what"], one["algorithm"], one["parameters"], one["ranks"]) for one in rows]
    assert found == [
        ("synchronous step", f"fused {rule}", n, 2)
        for rule in ("sgd", "adam")
        for n in (100_000, 669_706, 10_000_000)
    ]
    assert "<svg" in file.read_text()


def rows_of_optimizers():
    """Check the rows of a machine without Keras."""
    from numba_kernels.bench import optimizers as bench_of

    for name in ("keras", "tensorflow"):
        sys.modules[name] = None  # `import` then raises ImportError
    bench_of.SIZES, bench_of.LARGE = (1000, 2000), 3000
    by_numpy = {"sgd", "momentum", "adam", "lars"}
    for full, large in ((False, by_numpy - {"lars"}), (True, by_numpy)):
        rows = merge([bench_of.rows(0.5, full)])
        sizes = sorted((row["algorithm"], row["parameters"]) for row in rows)
        expected = {(name, n) for name in by_numpy for n in (1000, 2000)}
        assert sizes == sorted(expected | {(name, 3000) for name in large})
        for one in rows:
            check(one, "parameters")
            assert one["peer"] == "numpy" and one["ranks"] == 1


def test_rows_of_optimizers(on_ranks):
    on_ranks(1, rows_of_optimizers)


def test_peers_do_the_same_update():
    """Three of our updates and three of numpy's give the same weights, so the bench is fair."""
    from numba_kernels.bench import optimizers as bench_of

    for name in ("sgd", "momentum", "lars"):
        ours, numpys = bench_of.our_update(name, 100), bench_of.numpy_update(name, 100)
        for _ in range(3):
            ours()
            numpys()
        ends = [inspect.getclosurevars(update).nonlocals["w"] for update in (ours, numpys)]
        np.testing.assert_allclose(*ends, rtol=1e-6)


def allreduce_in_full():
    from mpi4py import MPI

    from numba_kernels import Team
    from numba_kernels.bench import allreduce

    allreduce.KIB, allreduce.FULL_KIB = (1, 64), (1, 2, 64)
    for full, sizes in ((False, {1, 64}), (True, {1, 2, 64})):
        rows = allreduce.rows(0.3, full)
        assert {one["bytes"] // 1024 for one in rows} == sizes
    wrong = lambda x, *_: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x, MPI.MAX)  # noqa: E731
    with pytest.raises(RuntimeError, match="ours on 2 ranks gave a wrong sum of 4096 bytes"):
        allreduce.check(Team(), "ours", np.zeros(1024, np.float32), wrong)


def test_allreduce_in_full(on_ranks):
    on_ranks(2, allreduce_in_full)


def bandwidth_of_all():

    timing.interleaved = lambda calls, *_, **__: (calls[0](), np.full((3, 1), 0.5))[1]
    assert timing.copy_bandwidth(mib=1) == 3 * 2 * 2**20 / 0.5  # three ranks, read and write
    timing.pin(1)
    mine = os.sched_getaffinity(0)
    assert len(mine) == 1


def test_copy_bandwidth_is_that_of_all_ranks(on_ranks):
    on_ranks(3, bandwidth_of_all)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (subprocess.TimeoutExpired("2 ranks of python", 100), "timed out after 100 seconds"),
        (launch.LaunchError("no mpiexec", "install one"), "no mpiexec: install one"),
        (subprocess.CompletedProcess([], 3), "bench step on 2 ranks ended with status 3"),
    ],
)
def test_ranks_that_fail_or_hang(monkeypatch, capsys, outcome, message):
    limits = []

    def run_ranks(*_, timeout, **__):
        limits.append(timeout)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(launch, "run_ranks", run_ranks)
    assert bench.main(["bench", "step"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err and err.count("\n") == 1
    assert len(limits) == 1 and 0 < limits[0] < 300


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nosuch", "unknown kind 'nosuch'; choose one of allreduce, step"),
        ("predictions", "predictions is measured in a copy of the repository now: python -m be"),
        ("step --seconds -1", "--seconds must be above 0 and below 3600, got -1.0"),
        ("step --seconds nan", "--seconds must be above 0 and below 3600, got nan"),
        ("step -n 0", "number of ranks must be from 1 to 1024, got 0"),
        ("allreduce -n 1", "-n must be at least 2 for an allreduce, got 1"),
        ("step --plot rows.txt", "--plot must end in one of .png, .svg, .pdf, got rows.txt"),
        ("step --json nosuch/rows.json", "cannot write nosuch/rows.json: there is no folder"),
        ("step --json .", ". must be a file, but is a folder"),
    ],
)
def test_refused_before_anything_is_measured(words, message, capsys, monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda options: pytest.fail("it measured"))
    assert bench.main(["bench", *words.split()]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {message}") and err.count("\n") == 1


def test_parameter_server(tmp_path, no_peers):
    file = tmp_path / "rows.json"
    words = ("--seconds", SECONDS, "--json", str(file))
    done = command_with_fewer_starts("parameter-server", *words, env=no_peers)
    assert done.returncode == 0 and "Error" not in done.stderr, done.stderr  # compiling may stall
    rows = json.loads(file.read_text())["rows"]
    for one in rows:
        check(one, "parameters")
        assert one["peer"] == "MPI Send + Recv" and one["parameters"] == 669_706
        if one["what"] == "parameter server, full cycle":
            assert one["updates_per_second"] == pytest.approx(1e6 / one["ours_us"])
            assert one["peer_updates_per_second"] == pytest.approx(1e6 / one["peer_us"])
            assert one["bytes_per_second"] == pytest.approx(
                one["updates_per_second"] * 2 * 4 * one["parameters"]
            )
    found = [(one["what"], one["algorithm"]) for one in rows]
    assert found == [
        (what, f"{form}, {rule}")
        for rule in ("sgd", "adam")
        for form in ("node", "node, in place", "messages")
        for what in ("parameter server", "parameter server, full cycle")
    ]
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    done = command("parameter-server", "-n", "1")
    assert done.returncode == 2 and "-n must be at least 2 for a parameter server" in done.stderr

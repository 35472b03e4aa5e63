"""The cache of compiled kernels on disk, with unusual homes, full disks and several ranks."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import on_ranks as ranks_of
import pytest

from numba_kernels import compiled
from numba_kernels.jit import cache, compiling
from numba_kernels.team.collectives import Clock

WIDTHS = ("float32", "float64")


def compute(order=WIDTHS[:1], at=0.0):
    """Run two kernels for each dtype; print how many were loaded and how many compiled."""
    from numba_kernels.optimizers.clipping import squared_length
    from numba_kernels.optimizers.sgd import plain

    time.sleep(max(0.0, at - time.time()))
    for dtype in order:
        x, g = np.full(100, 3, dtype), np.full(100, 2, dtype)
        assert squared_length(x) == 900
        plain(x, g, x.dtype.type(0.5), None)
        assert (x == 2).all() and x.dtype == dtype
    for counts in ("cache_hits", "cache_misses"):
        print(sum(sum(getattr(k.stats, counts).values()) for k in (squared_length, plain)))


COMPILED, LOADED = ["0", "2"], ["2", "0"]


def started(function, *arguments, permissions=False, **env):
    """A process that runs `function` with the variables `env`.

    permissions: the process obeys a folder's mode, even if tests run as root.
    """
    given = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    given |= {k: str(v) for k, v in env.items()}
    call = [ranks_of.ONE_CALL, __file__, function.__name__, json.dumps(arguments)]
    return subprocess.Popen(
        [sys.executable, *call],
        env={**given, "PYTHONPATH": os.pathsep.join([str(given.get("PYTHONPATH", "")), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=obey_permissions if permissions else None,
    )


def obey_permissions():
    drop = 24  # PR_CAPBSET_DROP, for CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(drop, capability, 0, 0, 0)


def ended(process):
    """(the words of its standard output, its standard error)"""
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return out.split(), errors


def run(function, *arguments, **how):
    return ended(started(function, *arguments, **how))


def kernels_in(place):
    return sorted(file for file in Path(place).rglob("numba_kernels.*") if file.is_file())


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    yield tmp_path / "home"
    for folder in (tmp_path / "home").rglob("*"):  # so that everything can be removed
        if folder.is_dir():
            folder.chmod(0o700)


# Where kernels are kept


def test_kept_in_the_home_and_loaded(home):
    assert run(compute, HOME=home) == (COMPILED, "")
    kept = kernels_in(home / ".cache" / "numba_kernels")
    assert len(kept) >= 2 and kept == kernels_in(home)
    assert run(compute, HOME=home) == (LOADED, "")
    assert kernels_in(home) == kept
    # A home that only the login node can write to is still read by the others.
    for folder in [home, *home.rglob("*")]:
        folder.chmod(0o500 if folder.is_dir() else 0o400)
    elsewhere = home.parent / "tmp"
    assert run(cannot_write, HOME=home, TMPDIR=elsewhere, permissions=True) == (LOADED, "")
    assert not kernels_in(elsewhere)
    home.chmod(0o700)


def compute_and_tell():
    compiling.tell = lambda: print("told")
    compute(WIDTHS)
    assert compiling.spent.seconds > 0
    assert Clock().now() <= time.perf_counter() - compiling.spent.seconds


def test_it_is_told_once_that_kernels_are_compiled(home):
    assert run(compute_and_tell, HOME=home) == (["told", "0", "4"], "")
    assert run(compute_and_tell, HOME=home) == (["4", "0"], "")


def test_the_clock_of_a_thread_goes_on_while_another_one_compiles():
    clock, begun, may_end = Clock(), threading.Event(), threading.Event()

    def compile_for_a_while():
        with compiling.counted():
            begun.set()
            may_end.wait(60)

    other = threading.Thread(target=compile_for_a_while)
    other.start()
    begun.wait(60)
    first = clock.now()
    time.sleep(0.05)
    second = clock.now()
    may_end.set()
    other.join()
    assert first < second <= clock.now()


def cannot_write():
    with pytest.raises(PermissionError):
        (Path.home() / ".cache" / "x").touch()
    compute()


@pytest.mark.thorough(but="XDG_CACHE_HOME in a file")
@pytest.mark.parametrize("what", ["read-only", "in a file", "XDG_CACHE_HOME in a file"])
def test_a_home_that_cannot_be_written(home, what):
    env = {"TMPDIR": home.parent / "tmp", "HOME": home}
    if what == "read-only":
        home.chmod(0o500)
    else:
        (home / "file").touch()
        env["XDG_CACHE_HOME" if "XDG" in what else "HOME"] = home / "file" / "home"
    assert run(compute, permissions=True, **env) == (COMPILED, "")
    assert len(kernels_in(env["TMPDIR"] / f"numba_kernels-{os.getuid()}")) >= 2
    assert not kernels_in(home)
    assert run(compute, permissions=True, **env) == (LOADED, "")
    home.chmod(0o700)


@pytest.mark.thorough
def test_no_folder_can_be_written(home):
    """If no folder is writable, each start compiles and warns once."""
    (home / "file").touch()
    for _ in range(2):
        counts, errors = run(compute, HOME=home, NUMBA_CACHE_DIR=home / "file" / "x")
        assert counts == COMPILED
        assert errors.count("RuntimeWarning") == 1 == errors.count("kernels can't be cached in")
        assert "(Not a directory), so every start compiles them; set NUMBA_CACHE_DIR" in errors
    assert not kernels_in(home)


@pytest.mark.thorough
def test_numba_cache_dir_is_obeyed(home):
    given = home.parent / "given"
    assert run(compute, HOME=home, NUMBA_CACHE_DIR=given) == (COMPILED, "")
    assert kernels_in(given) and not kernels_in(home)
    for folder in given.rglob("*"):
        folder.chmod(0o777)  # such as a project's folder: a folder that is named is trusted
    assert run(compute, HOME=home, NUMBA_CACHE_DIR=given) == (LOADED, "")


def test_no_home_and_no_temporary_folder(monkeypatch):
    def none(*_):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])  # as in containers
    assert [f.parent.name for f in cache.folders.__wrapped__()] == [f"numba_kernels-{os.getuid()}"]
    monkeypatch.setattr("tempfile.gettempdir", none)
    assert cache.folders.__wrapped__() == ()
    monkeypatch.setattr(cache, "folders", lambda: ())
    with pytest.raises(OSError, match="neither a home nor a temporary folder"):
        cache.cache_folder()
    with pytest.warns(RuntimeWarning, match="kernels can't be cached, so every start compiles"):
        compiled(twice)(3.0)


def twice(x):
    return 2 * x


@pytest.mark.parametrize("whose", ["folder", "folder around it"])
@pytest.mark.parametrize("how", ["is another user's", "others may write to"])
def test_code_of_others_is_not_loaded(tmp_path, monkeypatch, how, whose):
    folder = tmp_path / "numba_kernels" / "0123456789abcdef"
    cache.write(folder / "kernel", b"code")
    assert cache.read(folder / "kernel") == b"code"
    theirs = folder if whose == "folder" else folder.parent
    if how == "others may write to":
        theirs.chmod(0o770)
    else:
        stat = Path.stat

        def as_if(path, **how):
            values = list(stat(path, **how))
            values[4] += path == theirs  # st_uid
            return os.stat_result(values)

        monkeypatch.setattr(Path, "stat", as_if)
    assert cache.read(folder / "kernel") is None
    with pytest.raises(PermissionError, match="other users may write there"):
        cache.write(folder / "another", b"code")
    assert [file.name for file in folder.iterdir()] == ["kernel"]


# What is kept


def little_room():
    """Limit files to less than a kernel's size, so that a write fails half-way."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    compute()


@pytest.mark.thorough
def test_a_full_disk(home):
    env = {"HOME": home, "TMPDIR": home.parent / "tmp"}
    counts, errors = run(little_room, **env)
    assert counts == COMPILED and errors.count("RuntimeWarning") == 1
    assert "(File too large), so every start compiles them" in errors
    assert not [*kernels_in(home), *kernels_in(env["TMPDIR"])]  # nothing half-written either
    assert run(compute, **env) == (COMPILED, "")


def damaged():
    """After each kind of damage, the kernel is compiled and stored again."""
    from numba_kernels.optimizers.sgd import plain

    def counts():
        kernel = compiled(plain.py_func)
        x = np.ones(10, "float32")
        kernel(x, x.copy(), np.float32(0.5), None)
        assert (x == 0.5).all()
        return sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values())

    assert counts() == (0, 1) and counts() == (1, 0)
    (file,) = kernels_in(cache.cache_folder())
    good = file.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for bad in (b"", good[:10], good[: len(good) // 2], good[:-1], bytes(flipped), good + b"."):
        file.write_bytes(bad)
        assert counts() == (0, 1), len(bad)
        assert counts() == (1, 0), len(bad)
    file.unlink()
    file.mkdir()  # a folder in place of the file
    assert counts() == (0, 1)


@pytest.mark.thorough
def test_damaged_files_are_compiled_anew(home):
    _, errors = run(damaged, HOME=home, TMPDIR=home.parent / "tmp")
    assert not errors


@pytest.mark.thorough
def test_ranks_that_compile_at_once(home):
    """From an empty cache, in different orders: each kernel is compiled once, none is mixed up."""
    at, compiled_ = time.time() + 3, 0
    orders = [WIDTHS, WIDTHS, WIDTHS[::-1], WIDTHS[::-1]]
    processes = [started(compute, order, at, HOME=home) for order in orders]
    for process in processes:
        (loaded, missed), errors = ended(process)
        assert int(loaded) + int(missed) == 4 and not errors
        compiled_ += int(missed)
    assert compiled_ == 4  # each kernel for each dtype, once
    names = [file.name for file in kernels_in(home)]
    assert all(len(name.rsplit("-")[-1]) == 32 for name in names)  # no temporary file is left
    assert run(compute, WIDTHS, HOME=home) == (["4", "0"], "")


def test_who_cannot_compile_keeps_nobody_waiting(tmp_path):
    (tmp_path / "own.py").write_text(MODULE)
    own = SourceFileLoader("own", str(tmp_path / "own.py")).load_module()
    with pytest.raises(numba.TypingError):
        own.plus("text")
    assert own.plus._cache._turns == [] and own.plus(1) == 2


def in_threads(folder):
    """Threads compile one kernel, each for another type; print how many turns are left."""
    (Path(folder) / "own.py").write_text(MODULE)
    own = SourceFileLoader("own", str(Path(folder) / "own.py")).load_module()
    kinds = [np.float32, np.float64, np.int32, np.int64, np.uint8, np.complex64]
    threads = [threading.Thread(target=own.plus, args=(kind(1),)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(own.plus.signatures), len(own.plus._cache._turns))


def test_threads_give_their_turns_back(home, tmp_path):
    assert run(in_threads, str(tmp_path), HOME=home) == (["6", "0"], "")
    assert not list(home.rglob("*.turn"))


def test_a_file_is_replaced_at_once(tmp_path):
    """A reader finds the old or the new file, and never a mixture."""
    file, codes = tmp_path / "numba_kernels" / "kernel", [b"a" * 300_000, b"b" * 3_000_000]
    cache.write(file, codes[0])
    writer = threading.Thread(target=lambda: [cache.write(file, codes[i % 2]) for i in range(100)])
    writer.start()
    seen = set()
    while writer.is_alive():
        seen.add(cache.read(file))
    assert seen == set(codes)


MODULE = """
from numba_kernels import compiled

@compiled
def plus(x):
    return x + 1

if __name__ == "__main__":
    print(plus(1), sum(plus.stats.cache_hits.values()))
"""


def test_a_changed_source(home, tmp_path):
    """A kernel is compiled again after a change of its own file, or of this package."""
    own, package = tmp_path / "own.py", tmp_path / "numba_kernels"
    shutil.copytree(Path(cache.__file__).parents[1], package)
    env = {**os.environ, "XDG_CACHE_HOME": str(home), "PYTHONPATH": str(tmp_path)}

    def printed():
        done = subprocess.run(
            [sys.executable, str(own)], env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    own.write_text(MODULE)
    assert printed() == ["2", "0"]
    assert printed() == ["2", "1"]
    own.write_text(MODULE.replace("x + 1", "x + 2"))
    assert printed() == ["3", "0"]
    assert printed() == ["3", "1"]
    with (package / "optimizers" / "sgd.py").open("a") as file:
        file.write("# changed\n")
    assert printed() == ["3", "0"]
    assert len(list((home / "numba_kernels").iterdir())) == 2


def test_closures_and_functions_without_a_file_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "folders", lambda: (tmp_path / "numba_kernels" / ("0" * 16),))

    def adds(number):
        @compiled
        def add(x):
            return x + number

        return add

    assert (adds(1)(1), adds(2)(1)) == (2, 3)
    cell: dict = {}
    exec(compile("def f(x): return x + number", "<cell>", "exec"), cell)
    for number in (1, 2):
        cell["number"] = number
        assert compiled(cell["f"])(1) == 1 + number
    again = compiled(twice)
    assert again(3) == 6
    (file,) = (file for file in tmp_path.rglob("*") if file.is_file())
    assert "twice" in file.name
    again.recompile()
    assert sum(again.stats.cache_misses.values()) == 2  # not what is on disk


def test_one_kernel_for_all_integers_and_one_for_each_boolean():
    @compiled(cache=False)
    def times(x, n, backwards):
        return -n * x if backwards else n * x

    @compiled(cache=False)
    def calls(x, n):
        return times(x, 2, False) + times(x, 3, False) + times(x, n, True)

    assert calls(1.0, 4) == 1.0
    assert sorted(str(kinds[1:]) for kinds in times.signatures) == [
        "(int64, Literal[bool](False))", "(int64, Literal[bool](True))",
    ]  # fmt: skip


# Old versions


def used(folder, days_ago, **how):
    os.utime(folder, (time.time() - days_ago * 86400,) * 2, **how)


def test_old_versions_are_removed(tmp_path):
    place = tmp_path / "numba_kernels"
    kept = {"a" * 16: 29, "b" * 15: 31, "notes": 99, "c" * 16 + ".x": 99}
    for name, age in {**kept, "d" * 16: 31, "e" * 16: 400}.items():
        cache.write(place / name / "kernel", b"code")
        used(place / name, age)
    (place / ("f" * 16)).symlink_to(place / "notes")
    used(place / ("f" * 16), 31, follow_symlinks=False)
    (place / ("0" * 16)).touch()
    used(place / ("0" * 16), 31)
    cache.write(place / ("1" * 16) / "kernel", b"code")  # a new version
    left = {entry.name for entry in place.iterdir() if (entry / "kernel").exists()}
    assert left == {*kept, "1" * 16, "f" * 16}


@pytest.mark.thorough
def test_a_version_in_use_is_not_old(home):
    assert run(compute, HOME=home)[0] == COMPILED
    (folder,) = (home / ".cache" / "numba_kernels").iterdir()
    used(folder, 29)
    assert run(compute, HOME=home)[0] == LOADED
    assert cache.age(folder) < 60


# First calls


def every_public_call(algorithms):
    """With a warm cache, nothing is compiled, and modules for compiling are not imported.

    Kernels are generic: a wide and a short float and an integer stand for all dtypes.
    """
    import itertools

    import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy)
    from numba.core import event

    from numba_kernels import Team, compression, optimizers
    from numba_kernels.allreduce.calls import OPS
    from numba_kernels.step import step

    with event.install_recorder("numba:compile") as recorder:
        team = Team()
        team.barrier()
        for dtype, n in itertools.product(("float64", "bfloat16", "int64"), (100, 50_000)):
            window, x = team.empty(n, dtype), np.ones(n, dtype)
            for op in OPS:
                team.allreduce(window, op)
                team.reduce_scatter(window, op)
                for algorithm in algorithms:
                    team.allreduce(x, op, algorithm)
                team.reduce_scatter(x.copy(), op)
            team.allgather(x)
            team.alltoall(x.reshape(team.size, -1))
            team.broadcast(x)
            lengths = [n // team.size] * team.size
            team.scatter(x, x[: lengths[0]].copy(), lengths)
        for name in optimizers.NAMES:
            rule = optimizers.get(name)
            w, g = np.ones(100, "float32"), np.ones(100, "float32")
            rule.update(w, g, rule.init(100, "float32", [0, 50]))
            optimizers.clip_by_norm(g, 1.0)
            for shared, clip in itertools.product((True, False), (None, 1.0)):
                g = team.empty(100, "float32") if shared else g.copy()
                step.Step(team, rule, w, g, [0, 50], clip)(0.5, 3)
        for name in compression.NAMES:
            method = compression.get(name)
            g = np.ones(100, "float32")
            layer = SimpleNamespace(offset=0, shape=(10, 10))
            method.allreduce(team, g, method.init(100, [layer]))
        team.split(team.rank % 2).barrier()
    print(len(recorder.buffer), "numba.np.arraymath" in sys.modules)


@pytest.mark.thorough
def test_a_second_process_compiles_nothing(on_ranks):
    from numba_kernels.allreduce.calls import ALGORITHMS

    on_ranks(2, every_public_call, ALGORITHMS, fresh=True)  # compiles everything
    assert on_ranks(2, every_public_call, ALGORITHMS, fresh=True).splitlines() == ["0 False"] * 2

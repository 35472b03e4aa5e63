"""Kernels that were compiled in advance for all: who reads them, and when they do not fit."""

import os
import subprocess
import sys

import pytest

# Prints how many kernels were loaded and how many compiled.
USES = """
import numpy as np
from numba_kernels.optimizers.clipping import squared_length
assert squared_length(np.full(4, 3, "float32")) == 36
counts = squared_length.stats.cache_hits, squared_length.stats.cache_misses
print(*(sum(each.values()) for each in counts))
"""
LOADED, COMPILED = "1 0\n", "0 1\n"


def python(*words, status=0, **env):
    """(standard output, standard error) of Python with the variables `env`."""
    given = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    done = subprocess.run(
        [sys.executable, *words], env=given | {k: str(v) for k, v in env.items()},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of prepared kernels, as `compile --into` makes it."""
    folder = tmp_path_factory.mktemp("prepared")
    words = ("-m", "numba_kernels", "compile", "--into", folder, sys.executable, "-c", USES)
    out, _ = python(*map(str, words), HOME=folder / "nobody")
    assert out.startswith(COMPILED) and " kernels, " in out and str(folder) in out
    return folder


@pytest.fixture
def prepared(made, tmp_path):
    """A copy of it, with its modes: (folder, the one with the kernels)."""
    subprocess.run(["cp", "-a", made, tmp_path / "prepared"], check=True)
    [kernels] = (tmp_path / "prepared" / "numba_kernels").iterdir()
    return tmp_path / "prepared", kernels


def use(folder, tmp_path, **more):
    (tmp_path / "home").mkdir(exist_ok=True)
    return python("-c", USES, HOME=tmp_path / "home", NUMBA_KERNELS_PREPARED=folder, **more)


def test_all_read_them_and_keep_none(prepared, tmp_path):
    folder, kernels = prepared
    assert {file.stat().st_mode & 0o777 for file in kernels.iterdir()} == {0o444}
    assert use(folder, tmp_path) == (LOADED, "")
    assert not list((tmp_path / "home").rglob("numba_kernels.*"))
    assert use(folder, tmp_path, NUMBA_CACHE_DIR=tmp_path / "own") == (LOADED, "")


def another_processor(kernels):
    (kernels / "processor").chmod(0o644)
    (kernels / "processor").write_text("('x86_64', 'i486', '')")


def another_version(kernels):
    kernels.rename(kernels.with_name("0" * 16))


def given_away(kernels):
    os.chown(kernels, 4321, 4321)


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (another_processor, "are for another processor than this"),
        (another_version, "are of another version of this package"),
        (lambda kernels: kernels.chmod(0o777), "are not trusted: other users may write there"),
        pytest.param(given_away, "are not trusted: other users may write", marks=only_root),
    ],
    ids=["processor", "version", "writable", "owner"],
)
def test_those_that_do_not_fit_are_named_once(change, said, prepared, tmp_path):
    folder, kernels = prepared
    change(kernels)
    out, errors = use(folder, tmp_path)
    assert out == COMPILED and errors.count("RuntimeWarning") == 1 == errors.count(said), errors
    assert "python -m numba_kernels compile prepares them again" in errors
    assert use(folder, tmp_path)[0] == LOADED  # its own, in its home


def test_a_damaged_one_is_compiled(prepared, tmp_path):
    folder, kernels = prepared
    for file in kernels.glob("numba_kernels.*"):
        file.chmod(0o644)
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert use(folder, tmp_path) == (COMPILED, "")


def test_what_is_wrong_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    for words, line in (
        (["--into", str(tmp_path / "file")], "cannot write to"),
        (["--into", str(tmp_path), str(tmp_path / "nothing")], "cannot run"),
    ):
        out, errors = python("-m", "numba_kernels", "compile", *words, status=2)
        assert out == "" and line in errors and errors.count("\n") == 1, errors

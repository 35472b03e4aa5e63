"""The doctor's exit status and advice on this machine, and with parts of it really broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import either_mpi
import numpy
import pytest

from numba_kernels import launch
from tutorial_dl.cli import doctor, kernel_ports

SECONDS = 120


def run(*words: str, python: str | Path = sys.executable, **variables: str):
    """Run the doctor as a user does; returns the finished process."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | variables
    done = subprocess.run(
        [str(python), "-m", "tutorial_dl", "doctor", *words],
        capture_output=True, text=True, timeout=SECONDS, env=environment,
    )  # fmt: skip
    assert done.stderr == ""
    return done


def checks_of(done) -> dict[str, dict]:
    return {check["name"]: check for check in json.loads(done.stdout)}


ASKED = """
import atexit, sys
from tutorial_dl.__main__ import main
heavy = {"tensorflow", "keras", "mpi4py.MPI"}
atexit.register(lambda: print("ok    imported:", heavy & set(sys.modules)))
sys.argv = ["tutorial-dl", "doctor"]
main()
"""


def test_all_is_well_here_and_nothing_heavy_is_imported():
    """It never imports TensorFlow, and never initialises MPI."""
    done = subprocess.run(
        [sys.executable, "-c", ASKED], capture_output=True, text=True, timeout=SECONDS,
        env={k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"},
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    lines = dict(line.removeprefix("ok    ").split(": ", 1) for line in done.stdout.splitlines())
    library = launch.mpi_library()
    assert lines["MPI"].startswith(f"{library.name} {library.version}")
    assert lines["mpiexec"].startswith(launch.find_mpiexec())
    assert lines["2 ranks"] == "1 + 2 = 3 on 2 ranks"
    assert lines["engine cluster"] == "2 engines, and their allreduce of 1 is 2"

    assert lines["numpy"] == numpy.__version__
    assert lines["imported"] == "set()"


def test_no_mpi_library_and_a_cache_that_cannot_be_written():
    # Root cannot write there either, though a folder's mode does not bind root.
    done = run("--json", MPI4PY_LIBMPI="/no/such/libmpi.so", NUMBA_CACHE_DIR="/proc/cache")
    checks = checks_of(done)
    assert done.returncode == 1
    for name in ("MPI", "mpiexec", "2 ranks"):
        assert not checks[name]["ok"] and "tutorial-dl[mpich]" in checks[name]["remedy"]
        assert "/no/such/libmpi.so" in checks[name]["found"]
    assert not checks["engine cluster"]["ok"] and checks["engine cluster"]["remedy"]
    assert checks["numpy"]["ok"] and checks["numpy"]["remedy"] == ""
    assert "cannot write to /proc/cache" in checks["kernel cache"]["found"]
    assert "NUMBA_CACHE_DIR" in checks["kernel cache"]["remedy"]


@pytest.mark.thorough
def test_no_mpiexec(tmp_path):
    """The environment has the MPI library but no mpiexec, as after a partial install."""
    venv.create(tmp_path / "env", with_pip=False)
    site = next((tmp_path / "env" / "lib").glob("python*/site-packages"))

    installed = Path(numpy.__file__).parents[1]
    root = Path(launch.__file__).parents[1]
    (site / "all.pth").write_text(f"{root}\n{installed}\n")
    library = tmp_path / "elsewhere" / "lib"
    library.mkdir(parents=True)
    real = Path(launch.mpi_library().path)
    for path in real.parent.iterdir():  # with the libraries that it depends on
        (library / path.name).symlink_to(path)
    done = run("--json", python=tmp_path / "env/bin/python", PATH="/usr/bin:/bin",
               MPI4PY_LIBMPI=str(library / real.name))  # fmt: skip
    checks = checks_of(done)
    assert done.returncode == 1
    assert checks["MPI"]["ok"], checks["MPI"]
    assert "there is no mpiexec" in checks["mpiexec"]["found"]
    assert f"use the mpiexec of {either_mpi.mine()}" in checks["mpiexec"]["remedy"]
    assert launch.is_open_mpi() or "tutorial-dl[mpich]" in checks["mpiexec"]["remedy"]
    assert not checks["2 ranks"]["ok"] and not checks["engine cluster"]["ok"]


def script(path: Path, does: str) -> str:
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return str(path)


def test_mpiexec_of_another_mpi(tmp_path):
    mine, theirs = either_mpi.mine(), either_mpi.theirs()
    other = script(tmp_path / "mpiexec", f"echo '{either_mpi.SAYS[theirs]}'")
    done = run(MPIEXEC=other)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("FAIL  mpiexec: "))
    assert f"{other} belongs to {theirs}" in lines[at]
    assert lines[at + 1].startswith(f"      remedy: use the mpiexec of {mine}")
    assert lines[-1] == "3 of 18 checks failed: mpiexec, 2 ranks, engine cluster"


@pytest.mark.thorough
def test_mpiexec_that_starts_separate_worlds(tmp_path):
    """This mpiexec claims to be right but starts each rank alone, which only a trial shows."""
    does = f'{either_mpi.says_version()}; shift; shift; "$@" & "$@" & wait'
    done = run("--json", MPIEXEC=script(tmp_path / "mpiexec", does))
    checks = checks_of(done)
    assert done.returncode == 1 and checks["mpiexec"]["ok"]
    assert not checks["2 ranks"]["ok"] and "same MPI" in checks["2 ranks"]["remedy"]
    assert "is rank 0 of 1" in checks["engine cluster"]["found"]


def test_ranks_that_hang_are_given_up(tmp_path, monkeypatch):
    does = f"{either_mpi.says_version()}; exec sleep 300"
    monkeypatch.setenv("MPIEXEC", script(tmp_path / "mpiexec", does))
    monkeypatch.setattr(doctor, "SECONDS", 2)
    check = doctor.tried("2 ranks", doctor.two_ranks)
    assert not check.ok and "did not reduce within 2 s" in check.found and check.remedy


def test_a_package_that_is_missing():
    with pytest.raises(doctor.Missing, match="not installed") as error:
        doctor.package("no-such-distribution-here")
    assert error.value.remedy == "pip install no-such-distribution-here, or make install"


def test_little_shared_memory(monkeypatch):
    class Full:
        f_bavail, f_frsize = 10, 4096

    monkeypatch.setattr(os, "statvfs", lambda folder: Full)
    with pytest.raises(doctor.Missing, match="0 MiB free in /tmp") as error:
        doctor.shared_memory("/tmp")
    assert "--shm-size" in error.value.remedy


def test_other_users_of_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(kernel_ports, "other_users", lambda: [])
    assert doctor.notebooks_privacy() == "this machine has no other users"
    monkeypatch.setattr(kernel_ports, "other_users", lambda: ["ann", "bob", "cyd", "dan"])
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    check = doctor.tried("privacy", doctor.notebooks_privacy)
    assert check.ok and 'c.KernelManager.transport = "ipc"' in check.remedy  # a warning
    assert check.found == (
        "other users of this machine (ann, bob, cyd, ...) can read the ports of notebooks' kernels"
    )
    (tmp_path / "jupyter_server_config.py").write_text('c.KernelManager.transport = "ipc"\n')
    check = doctor.tried("privacy", doctor.notebooks_privacy)
    assert check == ("privacy", True, "notebooks' kernels use sockets in a private folder", "")


def test_who_other_users_are():
    import psutil

    names = kernel_ports.other_users()
    assert "root" not in names and "nobody" not in names
    assert psutil.Process().username() not in names

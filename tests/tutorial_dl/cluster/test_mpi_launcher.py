"""`{pmi}` in a launcher: what both srun and the loaded MPI library speak, or mpiexec instead."""

from __future__ import annotations

import subprocess

import pytest

from numba_kernels.launch import LaunchError
from tutorial_dl.cluster import mpi_launcher

# `srun --mpi=list` of Slurm 22.05 and of 20.11
LIST = """\
MPI plugin types are...
\tpmix
\tnone
\tcray_shasta
\tpmi2
specific pmix plugin versions available: pmix_v4
"""
OLD = "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: openmpi\n"


@pytest.mark.parametrize("text, to_stderr", [(LIST, False), (OLD, True)])
def test_what_srun_offers(text, to_stderr, tmp_path):
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\ncat <<'END' {'>&2' * to_stderr}\n{text}END\n")
    srun.chmod(0o755)
    offered = mpi_launcher.offered(str(srun))
    assert {"none", "pmi2"} <= set(offered) and not {"MPI", "pmix_v4"} & set(offered)
    assert ("pmix" in offered) == (text is LIST)


@pytest.mark.parametrize(
    "library, plugins, protocol",
    [
        ("MPICH", ["pmix", "none", "cray_shasta", "pmi2"], "pmi2"),
        ("Open MPI", ["none", "pmi2", "pmix"], "pmix"),
        ("Open MPI", ["none", "pmi2"], "pmi2"),
        ("CRAY MPICH", ["pmi2", "cray_shasta"], "cray_shasta"),
        ("MPICH", ["none", "pmix"], None),
        ("Some MPI", ["pmi2"], None),
    ],
)
def test_the_choice(library, plugins, protocol):
    assert mpi_launcher.choose(library, plugins) == protocol


def test_the_command():
    words = ["srun", "--mpi={pmi}", "--overlap", "-n", "4", "python", "-m", "x", "-n", "9"]
    spoken = mpi_launcher.resolve(words, "MPICH", ["pmi2"], "")
    assert spoken == ["srun", "--mpi=pmi2", *words[2:]]
    instead = mpi_launcher.resolve(words, "MPICH", ["pmix"], "/bin/mpiexec")
    assert instead == ["/bin/mpiexec", "-n", "4", "python", "-m", "x", "-n", "9"]
    long = ["srun", "--mpi={pmi}", "--ntasks=3", "python"]
    assert mpi_launcher.resolve(long, "MPICH", [], "mpiexec") == ["mpiexec", "-n", "3", "python"]
    with pytest.raises(LaunchError, match=r"no plugin for MPICH \(it has none\): name a launcher"):
        mpi_launcher.resolve(["srun", "--mpi={pmi}", "python"], "MPICH", ["none"], "mpiexec")


def test_only_launchers_with_the_placeholder_pass_through_it():
    assert mpi_launcher.command(["srun", "-n4"]) == ["srun", "-n4"]
    assert mpi_launcher.command(["srun", "--mpi={pmi}"])[-2:] == ["srun", "--mpi={pmi}"]


def test_no_srun_is_one_line():
    command = mpi_launcher.command(["no-such-srun", "--mpi={pmi}", "--ntasks=1", "python"])
    done = subprocess.run([*command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (
        "cannot start ranks: [Errno 2] No such file or directory: 'no-such-srun'\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "check_MPIR_CVAR_PMI_VERSION(167):  Runtime environment uses unsupported PMI version PMIx.",
        "OMPI was not built with SLURM's PMI support and therefore cannot execute.",
    ],
)
def test_ranks_that_refuse_are_known(line):
    assert mpi_launcher.REFUSED.search(line)


def test_the_advice_for_lonely_ranks():
    assert mpi_launcher.REMEDY in mpi_launcher.advice("srun --mpi=none --ntasks={n}")
    for launcher in ("mpiexec -n {n}", "srun --mpi={pmi} --ntasks={n}", ""):
        assert mpi_launcher.advice(launcher).endswith("run python -m tutorial_dl doctor")

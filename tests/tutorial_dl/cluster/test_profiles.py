"""Profiles: how files are checked, the batch scripts that they make, and `{pmi}` in launchers."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import zmq
from site_profiles import submits, write

from numba_kernels import launch
from numba_kernels.launch import LaunchError
from tutorial_dl import cluster
from tutorial_dl.cluster import batch_job, controller, mpi_launcher, profile, submit

SYSTEMS = ("slurm", "pbs", "lsf")
HERE = ("local", "keras")


pytestmark = pytest.mark.usefixtures("private")


# Files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, says",
    [
        ("", r"kind = None: expected \"local\" or \"allocation\" or \"submit\"$"),
        ('kind = "grid"', r"kind = 'grid': expected \"local\" or"),
        ('kind = "local"\nqeue = "x"', r"qeue = 'x': expected one of the keys kind, encrypt"),
        ('kind = "local"\nqueue = "x"', r"queue = 'x': .* with kind = \"local\"$"),
        ('kind = "local"\nkeep = "1h"', r"keep = '1h': expected a number of seconds above 0$"),
        ('kind = "local"\nkeep = true', r"keep = True: expected a number of seconds"),
        ('kind = "local"\nencrypt = 1', r"encrypt = 1: expected true or false$"),
        ('kind = "allocation"', r"launcher = None: expected a command that starts ranks"),
        ('kind = "allocation"\nlauncher = "srun"', r"= 'srun': expected a command with {n}"),
        ('kind = "allocation"\nlauncher = "srun {N}"', r"= 'srun {N}': expected only {n}, {nodes}"),
        ('kind = "submit"\nlauncher = "m {n}"', r"system = None: .* \"slurm\" or \"pbs\" or \"lsf"),
        ('kind = "submit"\nsystem = "sge"', r"system = 'sge': expected \"slurm\" or"),
        ('kind = "submit"\nsystem = "pbs"\nlauncher = "m {n}"', r"resources = None: expected PBS"),
        ('kind = "submit"\ntime = "1h"', r"time = '1h': expected \"HH:MM:SS\"$"),
        ('kind = "submit"\ntime = 60', r"time = 60: expected \"HH:MM:SS\"$"),
        ('kind = "submit"\nnodes = 0', r"nodes = 0: expected a whole number above 0$"),
        ('kind = "submit"\nmodules = "mpi"', r"modules = 'mpi': expected a list of names"),
        ('kind = "submit"\nsetup = ["a\\nb"]', r"setup = .*: expected a list of shell lines$"),
        ('kind = "local"\npreload = ["kears"]', r"preload = .*: expected a list of installed"),
        ("kind = local", r"is not TOML"),
    ],
)
def test_what_is_wrong_in_a_profile_is_one_line(text, says):
    with pytest.raises(ValueError, match=says) as error:
        cluster.start(n=1, profile=write(text))
    assert "site.toml" in str(error.value) and "\n" not in str(error.value)


def test_profiles_that_are_not_there():
    with pytest.raises(ValueError, match=r"there is no profile 'lokal'; .*local.*slurm"):
        cluster.start(n=1, profile="lokal")
    with pytest.raises(ValueError, match=r"nowhere.toml: No such file or directory"):
        cluster.start(n=1, profile="nowhere.toml")


def test_a_users_profile_goes_before_the_packages(tmp_path):
    own = profile.user_folder()
    assert own == tmp_path / "config" / "tutorial_dl" / "profiles"
    own.mkdir(parents=True)
    (own / "slurm.toml").write_text('kind = "local"\nkeep = 7\n')
    (own / "mine.toml").write_text('kind = "local"\n')
    assert profile.load("slurm").lease == 7 and profile.load("mine").lease is None
    assert {"mine", "slurm", "pbs", "local"} <= profile.available().keys()


@pytest.mark.parametrize("name", [*HERE, "slurm", "pbs", "lsf", "slurm-here", "pbs-here"])
def test_shipped_profiles(name):
    of = profile.load(name)
    away = of.kind != "local"
    assert of.encrypt and (of.interface == "loopback") == (not away)
    assert (of.lease, of.patience) == ((600, 600) if of.kind == "submit" else (None, 60))


def test_shapes():
    text = 'kind = "submit"\nsystem = "slurm"\nlauncher = "srun -n {n}"\n'
    per_node = profile.load(write(text + "ranks_per_node = 4\ncores_per_rank = 2"))
    assert per_node.shape(10) == {
        "n": 10, "nodes": 3, "ranks_per_node": 4, "cores_per_rank": 2, "cores_per_node": 8,
    }  # fmt: skip
    assert profile.load(write(text + "nodes = 2")).shape(5)["ranks_per_node"] == 3
    both = write(text + "nodes = 2\nranks_per_node = 4")
    with pytest.raises(ValueError, match="nodes = 2 with ranks_per_node = 4 hold 8 ranks, not 9"):
        cluster.start(n=9, profile=both)


def test_interfaces(monkeypatch):
    text = 'kind = "allocation"\nlauncher = "srun -n {n}"\ninterface = "{}"'

    def at(interface: str) -> str:
        return profile.load(write(text.replace("{}", interface))).address()

    addresses = {"lo": "127.0.0.1", "eth0": "192.0.2.5", "ib0": "198.51.100.5"}
    fake = {
        name: [type("Address", (), {"family": socket.AF_INET, "address": ip})]
        for name, ip in addresses.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: fake)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    assert at("ib0") == "198.51.100.5" and at("203.0.113.9") == "203.0.113.9"
    with pytest.raises(ValueError, match=r'one of "eth0", "ib0", as this host has several'):
        at("host")
    with pytest.raises(ValueError, match=r"interface = 'ib7': expected one of eth0, ib0, lo, or"):
        at("ib7")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "198.51.100.5")
    assert at("host") == "198.51.100.5"
    del fake["ib0"]
    assert at("host") == "192.0.2.5"


# Scripts ---------------------------------------------------------------------------------------

HEADS = {
    "slurm": """\
#SBATCH --job-name=tutorial-x
#SBATCH --output=/f/job.head
#SBATCH --nodes=3
#SBATCH --ntasks=10
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --no-requeue
#SBATCH --partition=short
#SBATCH --account=course
#SBATCH --time=01:30:00
#SBATCH --exclusive""",
    "pbs": """\
#PBS -N tutorial-x
#PBS -V
#PBS -j oe
#PBS -o /f/job.head
#PBS -l select=3:ncpus=8:mpiprocs=4
#PBS -r n
#PBS -q short
#PBS -A course
#PBS -l walltime=01:30:00
#PBS --exclusive""",
    "lsf": """\
#BSUB -J tutorial-x
#BSUB -o /f/job.head
#BSUB -n 10
#BSUB -R "span[ptile=4]"
#BSUB -R "affinity[core(2)]"
#BSUB -rn
#BSUB -q short
#BSUB -P course
#BSUB -W 01:30
#BSUB --exclusive""",
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_scripts_line_by_line(system, tmp_path):
    file = submits(
        system,
        queue='"short"',
        account='"course"',
        time='"01:30:00"',
        ranks_per_node="4",
        cores_per_rank="2",
        modules='["gcc", "openmpi"]',
        setup='["export A=1"]',
        directives='["--exclusive"]',
    )
    engine = ["python", "-m", "ipyparallel.engine", "--mpi"]
    text = submit.engines_script(
        profile.load(file), "tutorial-x", 10, engine, Path("/f/c.json"), Path("/f/job.log")
    )
    lines = text.splitlines()
    head = ["#!/bin/bash", *HEADS[system].splitlines()]
    assert lines[: len(head)] == head
    rest = lines[len(head) :]
    assert rest[:5] == [
        "exec >> /f/job.log 2>&1",
        f"cd {tmp_path}",
        "module load gcc",
        "module load openmpi",
        "export A=1",
    ]
    assert "export OMP_NUM_THREADS=2" in rest and "export NUMBA_NUM_THREADS=2" in rest
    assert "export UCX_TLS=${UCX_TLS-^sysv}" in rest  # unless the user has chosen
    assert ("export SRUN_CPUS_PER_TASK=2" in rest) == (system == "slurm")
    launcher = {"slurm": "srun --mpi=pmix --ntasks=10"}.get(
        system, f"{launch.find_mpiexec()} -n 10"
    )
    assert rest[-1] == (
        f"exec {sys.executable} -I -S {submit.IN_JOB} --guard {launch.GUARD} "
        f"--connection /f/c.json -- {launcher} python -m ipyparallel.engine --mpi"
    )
    assert text.count("ipyparallel.engine") == 1  # started once: no job array


def test_connections_for_heartbeats_have_a_limit(monkeypatch):
    async def ended(ctx, **how):
        with ctx, ctx.socket(zmq.PUB) as one:
            raise SystemExit(one.getsockopt(zmq.TCP_MAXRT))

    monkeypatch.setattr(controller.heartmonitor, "_setup_heartmonitor", ended)
    with pytest.raises(SystemExit, match=str(controller.UNACKNOWLEDGED)):
        controller.start_heartmonitor()


def test_a_job_does_not_take_itself_for_the_one_it_was_submitted_from(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "PBS_JOBID", "LSB_JOBID", "PMI_RANK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/x")
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    env = batch_job.environment()
    assert env["SLURM_CONF"] == "/etc/x" and env["SBATCH_ACCOUNT"] == "mine"
    assert not [n for n in env if n.endswith(("JOB_ID", "JOBID", "NTASKS", "PMI_RANK"))]


# {pmi} in a launcher: what both srun and the loaded MPI library speak, or mpiexec ----------------

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

"""Profiles: how they are checked, and batch jobs that really run as one MPI world."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import batch_systems
import psutil
import pytest

from numba_kernels import launch
from tutorial_dl import cluster
from tutorial_dl.cluster import batch_job, engines, lease, profile, registry, submit

SECONDS = 300
SYSTEMS = ("slurm", "pbs", "lsf")


pytestmark = pytest.mark.usefixtures("private")


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """The folder of jobs of batch systems that run them on this machine."""
    folder = batch_systems.install(tmp_path, launch.find_mpiexec())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    yield folder
    deadline = time.monotonic() + SECONDS
    for file in folder.glob("*/pid"):
        while psutil.pid_exists(int(file.read_text())) and time.monotonic() < deadline:
            try:
                os.waitpid(int(file.read_text()), os.WNOHANG)
            except ChildProcessError:
                time.sleep(0.05)
        assert not psutil.pid_exists(int(file.read_text())), "a job runs on"


def write(text: str, name: str = "site.toml") -> Path:
    file = Path(name)
    file.write_text(text)
    return file


def submits(system: str, **keys: str) -> Path:
    """Write a profile for `system`, which listens on loopback unless `keys` says otherwise."""
    # An absolute path, because the environment need not be activated for tests.
    mpiexec = f"{launch.find_mpiexec()} -n {{n}}"
    launcher = "srun --mpi=pmix --ntasks={n}" if system == "slurm" else mpiexec
    lines = {"kind": "submit", "system": system, "launcher": launcher, "interface": "127.0.0.1"}
    if system == "pbs":
        lines["resources"] = "select={nodes}:ncpus={cores_per_node}:mpiprocs={ranks_per_node}"
    text = [f'{key} = "{value}"' for key, value in lines.items() if key not in keys]
    return write("\n".join(text + [f"{key} = {value}" for key, value in keys.items()]))


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


@pytest.mark.parametrize("name", ["local", "slurm", "pbs", "lsf", "slurm-here", "pbs-here"])
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
    text = submit.script(
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
    assert ("export SRUN_CPUS_PER_TASK=2" in rest) == (system == "slurm")
    launcher = {"slurm": "srun --mpi=pmix --ntasks=10"}.get(
        system, f"{launch.find_mpiexec()} -n 10"
    )
    assert rest[-1] == (
        f"exec {sys.executable} -I -S {submit.IN_JOB} --guard {launch.GUARD} "
        f"--connection /f/c.json -- {launcher} python -m ipyparallel.engine --mpi"
    )
    assert text.count("ipyparallel.engine") == 1  # started once: no job array


def test_a_job_does_not_take_itself_for_the_one_it_was_submitted_from(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "PBS_JOBID", "LSB_JOBID", "PMI_RANK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/x")
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    env = batch_job.environment()
    assert env["SLURM_CONF"] == "/etc/x" and env["SBATCH_ACCOUNT"] == "mine"
    assert not [n for n in env if n.endswith(("JOB_ID", "JOBID", "NTASKS", "PMI_RANK"))]


# Jobs ------------------------------------------------------------------------------------------


def one_world(c: cluster.Cluster) -> None:
    view = c.client[:]
    view.execute(
        "import os; from mpi4py import MPI; comm = MPI.COMM_WORLD\n"
        "total = comm.allreduce(10 ** comm.rank); threads = os.environ['OMP_NUM_THREADS']",
        block=True,
    )
    assert view["total"] == [int("1" * c.n)] * c.n
    assert [c.client[i]["comm.rank"] for i in range(c.n)] == list(range(c.n))


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_job_is_one_world_and_a_restart_keeps_it(system, jobs):
    with cluster.start(n=2, profile=submits(system, cores_per_rank="2"), timeout=SECONDS) as c:
        one_world(c)
        assert c.client[:]["threads"] == ["2"] * 2
        [entry] = cluster.list()
        assert entry.job.startswith("100") and entry.state == "running" and entry.profile == "site"
        before = {e.pid for e in c.status()}
        os.kill(c.status()[1].pid, signal.SIGSTOP)  # this engine can neither answer nor end
        c.restart()
        one_world(c)
        assert not before & {e.pid for e in c.status()} and all(e.alive for e in c.status())
        assert len(list(jobs.glob("*/script"))) == 1, "the nodes were given back"
        environment = (jobs / "100" / "environment").read_text().split("\n")
        assert "IPP_CONNECTION_INFO" not in environment  # the key is in the file, mode 0600
        processes = [psutil.Process(e.pid) for e in c.status()]
    assert (jobs / "100" / "cancelled").exists()
    psutil.wait_procs(processes, timeout=SECONDS)
    assert not any(p.is_running() for p in processes)


def test_a_job_in_the_queue_is_waited_for_with_its_state(jobs, monkeypatch):
    (jobs / "hold").touch()
    shown = []

    def update(self, text):
        shown.append(text)
        if "PENDING" in text:
            (jobs / "hold").unlink(missing_ok=True)

    monkeypatch.setattr(engines.Progress, "update", update)
    with cluster.start(n=2, profile=submits("slurm"), timeout=SECONDS) as c:
        one_world(c)
    assert "job 100 is PENDING (Priority), 0 of 2 engines" in shown
    assert shown.index("starting the controller") == 0


def test_waiting_in_the_queue_ends(jobs):
    (jobs / "hold").touch()
    with pytest.raises(
        cluster.ClusterError, match="the 2 engines did not come up within 12 s: job 100 was PEND"
    ):
        cluster.start(n=2, profile=submits("slurm", timeout="12"))
    assert (jobs / "100" / "cancelled").exists()


def test_ctrl_c_while_waiting_cancels_the_job(jobs):
    (jobs / "hold").touch()

    def interrupt():
        deadline = time.monotonic() + SECONDS
        while not (jobs / "100" / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        cluster.start(n=2, profile=submits("slurm"), timeout=SECONDS)
    thread.join()
    assert (jobs / "100" / "cancelled").exists()


@pytest.mark.parametrize("system, program", [("slurm", "sbatch"), ("pbs", "qsub"), ("lsf", "bsub")])
def test_a_job_that_is_refused(system, program, jobs):
    (jobs / "refuse").write_text("invalid account")
    says = f"^{program} refused the job: refused: invalid account$"
    with pytest.raises(cluster.ClusterError, match=says):
        cluster.start(n=2, profile=submits(system), timeout=SECONDS)


def test_a_batch_system_that_is_not_there():
    with pytest.raises(cluster.ClusterError, match=r"^qsub is not installed on this machine$"):
        cluster.start(n=2, profile=submits("pbs"), timeout=SECONDS)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_job_that_dies_is_reported_with_its_log(system, jobs):
    file = submits(system, setup='["echo no such module", "exit 3"]')
    with pytest.raises(cluster.ClusterError) as error:
        cluster.start(n=2, profile=file, timeout=SECONDS)
    first, *log = str(error.value).splitlines()
    assert first.startswith("job 100") and "ended before its engines were up" in first
    assert [line.strip() for line in log] == ["no such module"]


def test_inside_an_allocation(jobs, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CPU_BIND", "quiet,mask_cpu:0x1")
    file = write(
        'kind = "allocation"\ninterface = "127.0.0.1"\ncores_per_rank = 2\n'
        'launcher = "srun --mpi=$KIND --overlap --ntasks={n}"'
    )
    monkeypatch.setenv("KIND", "pmix")
    with cluster.start(n=2, profile=file, timeout=SECONDS) as c:
        one_world(c)
        c.client[:].execute("job, bound = map(os.environ.get, ('SLURM_JOB_ID', 'SLURM_CPU_BIND'))")
        assert c.client[:]["job"] == ["7"] * 2 and c.client[:]["bound"] == [None] * 2
        assert c.client[:]["threads"] == ["2"] * 2
    assert "srun --mpi=pmix --overlap --ntasks=2" in (jobs / "calls").read_text()


# Without a client ------------------------------------------------------------------------------

CLIENT = """
import os, signal, sys
from tutorial_dl import cluster
c = cluster.start(n=2, profile=sys.argv[1], timeout=300)
print("up", flush=True)
signal.pause()
"""


def test_a_job_whose_client_was_killed_is_cancelled(jobs):
    file = submits("slurm", keep="2")
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(file)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert client.stdout.readline().startswith("2 engines")
        record = registry.choose()
        ranks = [psutil.Process(int(named[0])) for _, named, _ in record.places]
    finally:
        client.kill()
        client.communicate()
    _, left = psutil.wait_procs(ranks, timeout=SECONDS)
    assert not left
    deadline = time.monotonic() + SECONDS
    while record.path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not record.path.exists() and (jobs / "100" / "cancelled").exists()


def test_a_job_ends_when_everything_on_our_side_is_killed(jobs):
    # No client or watcher is left to cancel the job, so it must notice this itself.
    c = cluster.start(n=2, profile=submits("slurm"), timeout=SECONDS)
    ranks = [psutil.Process(e.pid) for e in c.status()]
    record, began = c._record, time.monotonic()
    for named in (record.watcher, record.controller):
        guard = psutil.Process(int(named[0]))
        below = guard.children(recursive=True)
        guard.kill()
        for one in below:
            if one.is_running():
                one.kill()
    _, left = psutil.wait_procs(ranks, timeout=SECONDS)
    assert not left
    job = psutil.Process(int((jobs / "100" / "pid").read_text()))
    while job.is_running() and job.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() - began < SECONDS
        time.sleep(0.1)
    assert (jobs / "100" / "status").read_text() == "0" and not (jobs / "100/cancelled").exists()
    c.stop()


# Encryption ----------------------------------------------------------------------------------


def outside() -> str | None:
    """An address of this machine that other machines could reach."""
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                return address.address
    return None


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in [folder, *folder.rglob("*")]
        if not path.is_symlink() and not stat.S_ISSOCK(path.stat().st_mode)
    }


def files_are_for_their_owner_only(found: dict[str, int]) -> None:
    assert found["."] == found["run"] == 0o700
    for name in ("run/security/ipcontroller-client.json", "run/security/ipcontroller-engine.json",
                 "cluster.json", lease.FILE, "job.log", "run/controller.log"):  # fmt: skip
        assert found[name] == 0o600, name
    del found["run/startup/README"]  # IPython's own
    assert not {name: oct(mode) for name, mode in found.items() if mode & 0o077}


def test_connections_are_encrypted_and_files_private(jobs):
    """Connections outside loopback are encrypted (if there is an address); files are private."""
    import zmq

    file = submits("slurm", **({"interface": f'"{outside()}"'} if outside() else {}))
    before = os.umask(0o022)
    try:
        c = cluster.start(n=2, profile=file, timeout=SECONDS)
    finally:
        os.umask(before)
    with c:
        one_world(c)
        files_are_for_their_owner_only(modes(c._record.path))
        if outside() is None:
            return
        connection = profile_connection(c)
        assert connection["interface"] == f"tcp://{outside()}" and connection["curve_serverkey"]
        # A client with the address but without the server's key gets no answer.
        stranger = zmq.Context().socket(zmq.DEALER)
        stranger.linger = 0
        stranger.connect(f"{connection['interface']}:{connection['registration']}")
        stranger.send_multipart([b"<IDS|MSG>", b"", b"{}", b"{}", b"{}", b"{}"])
        assert not stranger.poll(500)
        monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        assert not monitor.poll(500)
        stranger.disable_monitor()
        stranger.context.destroy(linger=0)


def profile_connection(c: cluster.Cluster) -> dict:
    return json.loads((c._record.run / "security" / "ipcontroller-client.json").read_text())


def test_connections_are_plain_only_if_asked():
    plain = write('kind = "local"\nencrypt = false')
    with cluster.start(n=2, profile=plain, timeout=SECONDS) as c:
        one_world(c)
        assert not profile_connection(c)["curve_serverkey"]
        assert profile_connection(c)["interface"] == "tcp://127.0.0.1"

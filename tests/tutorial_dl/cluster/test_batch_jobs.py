"""Batch jobs that really run as one MPI world, under programs that stand in for their system."""

from __future__ import annotations

import json
import os
import re
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
from site_profiles import submits, write

from numba_kernels import launch
from tutorial_dl import cluster
from tutorial_dl.cluster import job_watch, lease, processes, registry
from tutorial_dl.cluster.cell_errors import CellError

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


def one_world(c: cluster.Cluster) -> None:
    view = c.client[:]
    view.execute(
        "import os; from mpi4py import MPI; comm = MPI.COMM_WORLD\n"
        "total = comm.allreduce(10 ** comm.rank); threads = os.environ['OMP_NUM_THREADS']",
        block=True,
    )
    assert view["total"] == [int("1" * c.n)] * c.n
    assert [c.client[i]["comm.rank"] for i in range(c.n)] == list(range(c.n))


def somebody_cancels_the_job_under_a_cell(c: cluster.Cluster, system: str) -> None:
    """The cell that runs and the next one say that the job was cancelled, not that ranks ended."""
    program = {"slurm": "scancel", "pbs": "qdel", "lsf": "bkill"}[system]
    cancelling = threading.Thread(target=subprocess.run, args=([program, c.job.number],))
    cancelling.start()
    for code in ("import time\nfor _ in range(3000): time.sleep(0.1)", "print(1)"):
        with pytest.raises(CellError) as error:
            c.run(code)
        [line] = error.value.summary
        assert line.startswith(f"{c.job} was cancelled: c.restart() submits a new job")
    cancelling.join()


@pytest.mark.thorough(but="slurm")
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_job_is_one_world_and_a_restart_keeps_it(system, jobs, monkeypatch):
    monkeypatch.setattr(job_watch, "AT_ONCE", SECONDS)
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
        somebody_cancels_the_job_under_a_cell(c, system)
    assert (jobs / "100" / "cancelled").exists()
    psutil.wait_procs(processes, timeout=SECONDS)
    assert not any(p.is_running() for p in processes)


@pytest.mark.thorough
def test_a_job_in_the_queue_is_waited_for_with_its_state(jobs, monkeypatch):
    (jobs / "hold").touch()
    shown = []

    def update(self, text):
        shown.append(text)
        if "PENDING" in text:
            (jobs / "hold").unlink(missing_ok=True)

    monkeypatch.setattr(processes.Progress, "update", update)
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


@pytest.mark.thorough(but="lsf-bsub")
@pytest.mark.parametrize("system, program", [("slurm", "sbatch"), ("pbs", "qsub"), ("lsf", "bsub")])
def test_a_job_that_is_refused(system, program, jobs):
    (jobs / "refuse").write_text("invalid account")
    says = f"^{program} refused the job: refused: invalid account$"
    with pytest.raises(cluster.ClusterError, match=says):
        cluster.start(n=2, profile=submits(system), timeout=SECONDS)


def test_a_batch_system_that_is_not_there():
    with pytest.raises(cluster.ClusterError, match=r"^qsub is not installed on this machine$"):
        cluster.start(n=2, profile=submits("pbs"), timeout=SECONDS)


@pytest.mark.thorough(but="pbs")
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_job_that_dies_is_reported_with_its_log(system, jobs):
    file = submits(system, setup='["echo no such module", "exit 3"]')
    with pytest.raises(cluster.ClusterError) as error:
        cluster.start(n=2, profile=file, timeout=SECONDS)
    first, *log = str(error.value).splitlines()
    assert re.match(r"job 100\S* ended( with exit status 3)? before its engines were up", first)
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_connections_are_plain_only_if_asked():
    plain = write('kind = "local"\nencrypt = false')
    with cluster.start(n=2, profile=plain, timeout=SECONDS) as c:
        one_world(c)
        assert not profile_connection(c)["curve_serverkey"]
        assert profile_connection(c)["interface"] == "tcp://127.0.0.1"

"""Before and around a start: how many engines fit, what becomes of the cluster before, magics.

Nothing here starts a process.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import IPython
import psutil
import pytest
import traitlets.log
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from numba_kernels import environment
from tutorial_dl import cluster, tensorflow_chatter
from tutorial_dl.cluster import engines, magics, notebook, placeholder_magics, registry
from tutorial_dl.cluster.client import Client
from tutorial_dl.cluster.profile import Profile, check

pytestmark = pytest.mark.usefixtures("private")

LOCAL = Profile("local", Path("local.toml"))
GB = 10**9


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Sets the cores and the available memory of the machine; it has no cgroups."""

    def of(cores: int, available: float) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
        memory = SimpleNamespace(available=available)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)

    monkeypatch.setattr(environment, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(environment, "MOUNTED", tmp_path / "mounted")
    of(2, 20 * GB)
    return of


# How many engines fit --------------------------------------------------------------------------


def test_engines_are_limited_by_cores(machine):
    notebook.check_capacity(16, LOCAL)
    with pytest.raises(cluster.ClusterError) as error:
        notebook.check_capacity(64, LOCAL)
    assert str(error.value) == (
        "64 engines are too many: this machine has 2 cores, so at most 16 (8 per core); 64 idle "
        "engines need 6.4 GB, and 32.0 GB more with TensorFlow; force=True (in a terminal --force) "
        "starts them all the same"
    )
    machine(1, 20 * GB)
    with pytest.raises(cluster.ClusterError, match=r"has 1 core, so at most 8 \(8 per core\)"):
        notebook.check_capacity(9, LOCAL)


def test_engines_are_limited_by_memory(machine):
    machine(2, 1.0 * GB)
    notebook.check_capacity(10, LOCAL)
    with pytest.raises(cluster.ClusterError, match=r"1.0 GB of memory are free; 12 idle .* 1.2 GB"):
        notebook.check_capacity(12, LOCAL)
    notebook.check_capacity(12, LOCAL, freed=0.3 * GB)


def test_batch_jobs_are_judged_by_the_jobs_cores_alone(machine, monkeypatch):
    machine(1, 0.1 * GB)
    srun = {"launcher": "srun --ntasks={n}"}
    job = check(LOCAL, {"kind": "submit", "system": "slurm", **srun})
    notebook.check_capacity(500, job)
    inside = check(LOCAL, {"kind": "allocation", **srun})
    monkeypatch.delenv("SLURM_JOB_CPUS_PER_NODE", raising=False)
    notebook.check_capacity(500, inside)  # nothing is known
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "4(x2),2")
    notebook.check_capacity(80, inside)
    with pytest.raises(cluster.ClusterError, match="the job has 10 cores, so at most 80"):
        notebook.check_capacity(81, inside)


VERSION_2 = {
    "user/mine": {"memory.max": "max", "memory.current": "5", "cpu.max": "max 100000"},
    "user": {
        "memory.max": f"{4 * GB}", "memory.current": f"{3 * GB}",
        "memory.stat": f"anon 7\ninactive_file {GB}\nactive_file 9",
        "cpu.max": "150000 100000",
    },
    ".": {},
}  # fmt: skip
VERSION_1 = {
    "memory/job": {
        "memory.limit_in_bytes": f"{4 * GB}", "memory.usage_in_bytes": f"{3 * GB}",
        "memory.stat": f"inactive_file 1\ntotal_inactive_file {GB}",
    },
    "cpu/job": {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"},
    "memory": {"memory.limit_in_bytes": f"{2**63 - 4096}", "memory.usage_in_bytes": "1"},
    "cpu": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
}  # fmt: skip


@pytest.mark.parametrize(
    "lines, folders",
    [("0::/user/mine\n", VERSION_2), ("4:memory:/job\n3:cpu,cpuacct:/job\n", VERSION_1)],
)
def test_limits_of_a_container_count(machine, lines, folders):
    machine(8, 20 * GB)
    environment.GROUPS.write_text(lines)
    for folder, files in folders.items():
        (environment.MOUNTED / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (environment.MOUNTED / folder / name).write_text(text + "\n")
    assert environment.usable_cores() == 2  # 1.5, rounded up
    assert notebook.free_memory() == 2 * GB  # 4 - 3, and 1 of files that may be dropped


# The cluster before ----------------------------------------------------------------------------


@pytest.fixture
def fakes(machine, monkeypatch):
    """Clusters that do not start anything. `fakes.events`: what happens, in order."""
    events, active = [], []

    class Fake(engines.Cluster):
        fails: BaseException | None = None

        def bring_up(self):
            events.append(f"up {self._record.folder.rpartition('_')[2]}")
            if Fake.fails is not None:
                self.end()
                raise Fake.fails
            active[:] = [self]

        def end(self):
            super().end()
            events.append(f"end {self.n}")

        def disconnect(self):
            events.append(f"disconnect {self.n}")

        connected = True

    monkeypatch.setattr(notebook, "Cluster", Fake)
    monkeypatch.setattr(magics, "activate", lambda one: active.__setitem__(slice(None), [one]))
    monkeypatch.setattr(registry, "alive", lambda named: True)
    monkeypatch.setattr(engines, "_running", None)
    yield SimpleNamespace(events=events, active=active, kind=Fake)
    engines.remember(None)
    for record in registry.load_all():
        registry.end(record)


def test_the_old_cluster_ends_when_the_new_one_is_up(fakes, capsys):
    first = cluster.start(n=2)
    second = cluster.start(n=3)
    assert fakes.events == ["up local", "up local-2", "disconnect 2", "end 2"]
    assert engines.running() is second and fakes.active == [second]
    assert first.name == second.name == "local" and registry.choose("local").n == 3
    with pytest.raises(cluster.ClusterError, match="there is already a cluster 'local'"):
        registry.take_folder("local", "local")  # though its folder has another name
    third = cluster.start(n=4, name="local")  # the name is its predecessor's
    assert third.name == "local" and fakes.events[-2:] == ["disconnect 3", "end 3"]
    out = capsys.readouterr().out
    assert out.index("stopping the cluster of 2 engines that was running") < out.index(
        "3 engines ="
    )


@pytest.mark.parametrize("error", [cluster.ClusterError("did not come up"), KeyboardInterrupt()])
def test_the_old_cluster_stays_if_the_new_one_fails(fakes, capsys, error):
    first = cluster.start(n=2)
    del fakes.events[:], fakes.active[:]
    fakes.kind.fails = error
    with pytest.raises(type(error)):
        cluster.start(n=3)
    assert fakes.events == ["up local-2", "disconnect 3", "end 3"]  # the new one only
    assert engines.running() is first and fakes.active == [first]
    assert "local of 2 engines still runs; %%px runs on it" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong, says",
    [
        *(({"n": n}, "number of ranks must be .*from 1 to .*, got") for n in (0, -2, 1.5, "4")),
        ({"n": 64}, "64 engines are too many"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, got 0"),
        ({"keep": -1}, "keep must be a number of seconds above 0, got -1"),
        ({"profile": "no"}, "there is no profile 'no'"),
    ],
)
def test_what_is_refused_leaves_the_old_cluster(fakes, wrong, says):
    first = cluster.start(n=2)
    del fakes.events[:]
    with pytest.raises((ValueError, cluster.ClusterError), match=says) as error:
        cluster.start(**{"n": 3, **wrong})
    assert not fakes.events and engines.running() is first
    # IPython shows what this method returns, instead of frames.
    assert error.value._render_traceback_() == [f"{error.typename}: {error.value}"]


def test_force_starts_them_all_the_same(fakes):
    assert cluster.start(n=64, force=True).n == 64


def test_jobs_and_scarce_memory_hold_one_cluster_at_a_time(fakes, machine, tmp_path):
    file = tmp_path / "inside.toml"
    file.write_text('kind = "allocation"\nlauncher = "srun -n {n}"\n')
    cluster.start(n=2, profile=file)
    cluster.start(n=3, profile=file)  # its step would wait for the cores of the first
    assert fakes.events == ["up inside", "disconnect 2", "end 2", "up inside"]
    cluster.start(n=4)  # on this machine
    assert fakes.events[-3:] == ["up local", "disconnect 3", "end 3"]
    engines.running().places = [("here", _with_memory(0.5 * GB), 1, "")]
    machine(2, 0.1 * GB)
    cluster.start(n=5)
    assert fakes.events[-3:] == ["disconnect 4", "end 4", "up local"]


def _with_memory(size: float) -> SimpleNamespace:
    return SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=size, shared=0))


# %%px before a start ---------------------------------------------------------------------------


def test_px_without_a_cluster_says_how_to_start_one(monkeypatch):
    shell = InteractiveShell()
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    hides = tensorflow_chatter._Finder  # TensorFlow's notices, from the first import
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if not isinstance(f, hides)])
    own = shell.magics_manager.magics["line"]["pxconfig"] = lambda line: None
    placeholder_magics.register()
    assert isinstance(sys.meta_path[0], hides)
    assert shell.magics_manager.magics["line"]["pxconfig"] is own  # what is there is kept
    for name in ("px", "mpi"):
        with pytest.raises(UsageError, match=r"^no cluster yet: c = cluster.start\(n=4\)$"):
            shell.run_cell_magic(name, "", "1 + 1")
    record = SimpleNamespace(name="demo", state=lambda: "running")
    monkeypatch.setattr(registry, "load_all", lambda: [record])
    with pytest.raises(UsageError, match=r"; c = cluster.join\('demo'\) joins the one that runs$"):
        shell.run_line_magic("px", "1 + 1")


def test_importing_the_package_in_a_script_does_not_load_ipython():
    program = "import sys, tutorial_dl.cluster; assert 'IPython' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nothing_is_said_of_signing_in_a_terminal(monkeypatch, caplog):
    """IPython's application has a logger of its own."""
    logger = logging.getLogger("an application")
    monkeypatch.setattr(traitlets.log, "get_logger", lambda: logger)
    said = "Message signing is disabled.  This is insecure and not recommended!"
    monkeypatch.setattr(engines, "Client", lambda *_, **options: logger.warning(said))
    engines.Cluster(registry.Record("it", 2, "local.toml", "/nowhere"), LOCAL, 60.0)._connect()
    assert not caplog.records


def test_a_client_that_joins_waits_until_output_arrives():
    """What an engine publishes before the subscription is there is lost, so it is asked again."""
    arrives, asked = iter([False, False, True]), []

    def execute(code, silent, block):
        asked.append(code)
        return SimpleNamespace(wait=lambda _: True, wait_for_output=lambda _: next(arrives))

    assert Client.wait_for_first_output({1: SimpleNamespace(execute=execute)}, 1, 600)
    assert asked == [""] * 3

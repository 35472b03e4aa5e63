"""Clusters from a notebook's point of view on a real Slurm: start, restart, stop, join.

Each test runs a script of the user on the login node, which prints values as lines of JSON.
"""

from __future__ import annotations

import json
import re
import time

import pytest
from slurm_site import UID

BEGIN = """
import json, os, subprocess, sys, threading, time
from tutorial_dl import cluster
from tutorial_dl.cluster.cell_errors import CellError
WORLD = "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size"
def say(**values): print("\\n" + json.dumps(values), flush=True)
def places(c): return [e.host for e in c.status()]
"""
SUBMIT = """\
kind = "submit"
system = "slurm"
launcher = "srun --mpi={pmi} --ntasks={n}"
interface = "host"
time = "00:05:00"
"""


@pytest.fixture
def student(slurm):
    """student(script, profile=text, command=[...]) -> (the values it printed, its stderr)."""

    def run(script: str, profile: str = SUBMIT, command=(), arguments=(), **keywords):
        (slurm.home / "site.toml").write_text(profile)
        words = [*command, "python", "-c", BEGIN + script, *arguments]
        done = slurm.run(words, **keywords)
        values: dict = {}
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                values.update(json.loads(line))
        assert done.returncode == 0, done.stdout + done.stderr
        return values, done.stderr

    return run


def nothing_runs(slurm, values: dict) -> float:
    """Seconds until no job, process or shared memory of the user was left."""
    left = slurm.left(60)
    assert not left, left
    return time.time() - values["began"]


START = """
c = cluster.start(n=4, profile="site.toml")
c.run(WORLD)
say(places=places(c), job=c.job.number)
"""


@pytest.mark.parametrize(
    "nodes, busy",
    [
        (1, ""),
        (2, ""),
        (1, "from mpi4py import MPI; MPI.COMM_WORLD.recv()"),
        (2, "import hashlib\nwhile True: hashlib.sha256(bytes(2**28))"),
    ],
    ids=["one node", "two nodes", "blocked in MPI", "in C code"],
)
def test_a_stop_ends_all_engines_at_once_and_leaves_nothing(nodes, busy, slurm, student, bound):
    script = (
        START
        + """
c.restart()
c.run(WORLD)
again = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True).stdout.split()
say(again=again)
if sys.argv[1]:
    threading.Thread(target=lambda: c.client[:].execute(sys.argv[1]), daemon=True).start()
    time.sleep(1.0)
say(began=time.time())
c.stop()
say(stopped=time.time())
os._exit(0)
"""
    )
    values, _ = student(script, SUBMIT + f"nodes = {nodes}\n", arguments=[busy])
    assert set(values["places"]) == {"n1", "n2"} if nodes == 2 else {"n1"}
    assert values["again"] == [values["job"]], "a restart submitted another job"
    while any("tutorial_dl.cluster engine" in command for command in slurm.processes(UID).values()):
        assert time.time() < values["began"] + 60
        time.sleep(0.05)
    what = f"{nodes} nodes{', ' * bool(busy)}{busy[-30:]!r}"
    bound(f"from c.stop() to the last engine's end, {what}", time.time() - values["began"], 5.0)
    bound(f"from c.stop() to the end of the job, {what}", nothing_runs(slurm, values), 10.0)


def test_the_shipped_profile(student):
    values, _ = student(START.replace("site.toml", "slurm") + "c.stop()")
    assert values["places"] == ["n1"] * 4


HERE = """
c = cluster.start(n=4, profile="slurm-here")
c.run(WORLD)
c.restart()
c.run(WORLD)
say(places=places(c))
c.stop()
"""


@pytest.mark.parametrize(
    "command, hosts",
    [
        (["salloc", "-N2", "-n4"], {"n1", "n2"}),
        (["salloc", "-N2", "-n4", "srun", "-N1", "-n1"], {"n1", "n2"}),  # a step inside the job
        (["srun", "-N1", "-n1", "-c4"], {"n1"}),  # as JupyterHub's spawner does
    ],
    ids=["salloc", "in a step", "srun"],
)
def test_inside_an_allocation(command, hosts, student):
    values, _ = student(HERE, command=command)
    assert set(values["places"]) == hosts and len(values["places"]) == 4


def test_mpiexec_in_an_allocation(student, slurm):
    """Where srun has no plugin for our MPI, hydra starts the ranks on the job's nodes."""
    programs = slurm.home / "bin"
    programs.mkdir(exist_ok=True)
    lists = "echo 'MPI plugin types are...'; echo '\tnone'; echo '\tpmix'"
    (programs / "srun").write_text(
        f'#!/bin/sh\nif [ "$1" = --mpi=list ]; then {lists}; exit; fi\nexec /usr/bin/srun "$@"\n'
    )
    (programs / "srun").chmod(0o755)
    path = f"{programs}:{slurm.environment()['PATH']}"
    values, _ = student(START + "c.stop()", SUBMIT + "nodes = 2\n", env={"PATH": path})
    assert set(values["places"]) == {"n1", "n2"} and len(values["places"]) == 4


FAILS = """
began = time.time()
try:
    cluster.start(n=2, profile="site.toml")
except cluster.ClusterError as error:
    say(error=str(error), seconds=time.time() - began)
"""


@pytest.mark.parametrize(
    "profile, says",
    [
        (
            SUBMIT.replace("00:05:00", "02:00:00"),  # more than the partition's limit
            r"^job \d+ can never run, it is PENDING \(Partition\w+\): ask for fewer ranks, less",
        ),
        (
            SUBMIT.replace("{pmi}", "pmix"),
            r"^the MPI library refuses the launcher: write srun ",
        ),
        (
            SUBMIT.replace("{pmi}", "none"),
            r"is rank 0 of 1, .* this srun starts no PMI .* write",
        ),
        (SUBMIT + 'queue = "nowhere"\n', r"^sbatch refused the job: .*invalid partition"),
        (SUBMIT + "cores_per_rank = 16\n", r"^sbatch refused the job|^job \d+ can never run"),
    ],
    ids=["time", "pmix", "none", "queue", "cores"],
)
def test_what_can_not_start_says_so_at_once_in_one_line(profile, says, student, bound):
    values, _ = student(FAILS, profile)
    assert re.search(says, values["error"]), values["error"]
    assert "\n" not in values["error"]
    bound(f"to {values['error'][:50]}...", values["seconds"], 30.0)


def test_leave_and_join(student, slurm):
    left, _ = student(
        'c = cluster.start(n=2, profile="site.toml", name="mine", keep=60)\n'
        'c.run("x = 5")\nsay(job=c.job.number)\nc.leave()'
    )
    joined, _ = student('c = cluster.join("mine")\nc.run("assert x == 5")\nsay(job=c.job.number)')
    assert left == joined
    listed = slurm.run(["python", "-m", "tutorial_dl", "cluster", "list"]).stdout
    assert "mine" in listed and left["job"] in listed
    stopped = slurm.run(["python", "-m", "tutorial_dl", "cluster", "stop", "mine"])
    assert stopped.returncode == 0, stopped.stderr

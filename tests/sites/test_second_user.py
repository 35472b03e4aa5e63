"""A second user of the machine, of the same group, looks for a secret that a cluster works on.

The secret is in the code of cells, in what they print, in the engines' variables, in a window of
numba_kernels and in messages of MPI. tests/support/stranger.py lists all that is tried.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
import slurm_site

STRANGER = Path(__file__).parents[1] / "support" / "stranger.py"
GROUP = slurm_site.UID  # of both users
SECONDS = 5.0  # of listening; the cluster runs many cells per second

WORK = """
import sys, threading
from pathlib import Path
from tutorial_dl import cluster

Path("own.toml").write_text('kind = "local"\\nencrypt = ' + sys.argv[1])
secret = sys.stdin.readline().strip()
with cluster.start(n=2, profile="own.toml", timeout=60) as c:
    c.run("import numpy as np; from mpi4py import MPI; from numba_kernels import Team")
    c.run(f"text = np.frombuffer(b'{secret}', 'uint8'); team = Team()")
    c.run("window = team.empty(64 * text.size, 'int32')")
    c.run("window[:] = np.resize(text, 256 * text.size).view('int32')")
    print((c._record.run / "security/ipcontroller-client.json").read_text().replace("\\n", " "))
    sys.stdout.flush()
    ended = threading.Thread(target=sys.stdin.read, daemon=True)
    ended.start()
    while ended.is_alive():
        c.run(f"print('{secret}'); MPI.COMM_WORLD.bcast('{secret}' * 1000)", timeout=60)
"""


@pytest.fixture
def owner(slurm):
    """A user of their own for each test, as other clusters of a user would be searched as well."""
    uid = random.randrange(200_000, 2_000_000_000)
    home = slurm.folder / f"home-{uid}"  # anyone may enter it, as on many machines
    home.mkdir()
    os.chown(home, uid, GROUP)
    yield uid, home
    shutil.rmtree(home)


def started(slurm, uid: int, home: Path, command: list[str]) -> subprocess.Popen:
    user = ["setpriv", f"--reuid={uid}", f"--regid={GROUP}", "--clear-groups"]
    env = slurm.environment() | {"HOME": str(home), "USER": f"user-{uid}"}
    return subprocess.Popen(
        [*slurm._inside(), *user, *command], env=env, cwd=home, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def search(slurm, owner, encrypt: str, owner_looks=False) -> tuple[list[str], dict[str, int]]:
    """What another user, or the owner, finds while a cluster runs, and how much was tried."""
    secret, (uid, home) = uuid.uuid4().hex, owner
    with started(slurm, uid, home, ["python", "-c", WORK, encrypt]) as work:
        try:
            print(secret, file=work.stdin, flush=True)
            line = next((line for line in iter(work.stdout.readline, "") if line[0] == "{"), "{}")
            keys = json.loads(line)
            secrets = {"secret": secret, "key": keys.get("key")}
            secrets["server's key"] = keys.get("curve_serverkey")
            places = ["/dev/shm", "/tmp", "/var/tmp", "/run", str(home)]
            command = ["python", str(STRANGER), str(uid), str(SECONDS), *places]
            with started(slurm, uid if owner_looks else uid + 1, home, command) as stranger:
                lines = [f"{name}: {text}\n" for name, text in secrets.items() if text]
                out, errors = stranger.communicate("".join(lines), timeout=300)
            assert keys and stranger.returncode == 0, errors
        finally:
            _, errors = work.communicate(timeout=60)
    assert work.returncode == 0, errors
    found = json.loads(out)
    return found["found"], found["tried"]


def test_a_second_user_finds_nothing(slurm, owner):
    found, tried = search(slurm, owner, "true")
    assert not found
    # Two engines and their nannies, the controller's two, three guards' and the notebook's.
    assert tried["ports"] >= 20 and tried["processes"] >= 9 and tried["files"] >= 3


def test_without_encryption_they_read_what_cells_print(slurm, owner):
    found, _ = search(slurm, owner, "false")
    assert "ports: secret in what a port publishes" in found
    assert {line.split(":")[0] for line in found} == {"ports"}  # and nothing else


def test_the_search_finds_what_can_be_read(slurm, owner):
    """The owner, who may read all, finds the secret and the keys by the same search."""
    found, tried = search(slurm, owner, "true", owner_looks=True)
    assert "processes: secret in memory" in found and "processes: secret in open file" in found
    assert any(line.startswith("files: server's key in") for line in found)
    assert not any(line.startswith("ports") for line in found)
    assert tried["ports"] >= 20

"""A home folder that is full, or read-only: a real file system, mounted in a namespace."""

import os
import subprocess
import sys

import pytest
import slurm_site

from tutorial_dl.cluster import registry

SECONDS = 120
CLUSTER = """
from tutorial_dl import cluster
with cluster.start(n=2) as c:
    c.run("ok = 1")
print("worked")
"""


def run(folder, how: str, command: list[str]) -> subprocess.CompletedProcess:
    home, temporary = folder / "home", folder / "tmp"
    home.mkdir()
    temporary.mkdir()
    mount = "set -e; mount -t tmpfs -o size=64k tmpfs $HOME; "
    mount += {
        "full": "dd if=/dev/zero of=$HOME/fill bs=1k 2>/dev/null || true; ",
        "read-only": "mount -o remount,ro $HOME; ",
    }[how]
    env = {k: v for k, v in os.environ.items() if k not in ("IPYTHONDIR", "XDG_CACHE_HOME")}
    env |= {"HOME": str(home), "TMPDIR": str(temporary)}
    env |= {"PYTHONPATH": str(slurm_site.REPOSITORY)}
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", mount + 'exec "$@"', "x", sys.executable, *command],
        env=env, cwd=folder, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip


def left(folder) -> set[str]:
    """What is left in the temporary folder, but for the cache of compiled kernels, which stays."""
    return {path.name for path in (folder / "tmp").iterdir()} - {f"numba_kernels-{os.getuid()}"}


def test_a_full_home_is_named(tmp_path):
    done = run(tmp_path, "full", ["-c", CLUSTER])
    folder = tmp_path / "home" / ".ipython" / f"{registry.PREFIX}local"
    says = f"cannot write {folder}: No space left on device; make room there, or set IPYTHONDIR"
    assert says in done.stderr.splitlines()[-1] and not left(tmp_path)


TRAIN = ["-m", "tutorial_dl", "train", "-n", "2", "--model", "softmax", "--epochs", "1", "--quiet"]


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_training_needs_no_home(tmp_path, how):
    done = run(tmp_path, how, TRAIN)
    assert done.returncode == 0 and "synchronous on 2 ranks" in done.stdout, done.stderr
    assert not left(tmp_path)


def test_a_cluster_with_a_read_only_home_says_what_to_do(tmp_path):
    done = run(tmp_path, "read-only", ["-c", CLUSTER])
    says = "Read-only file system; make room there, or set IPYTHONDIR to another folder"
    assert done.returncode == 1 and says in done.stderr.splitlines()[-1] and not left(tmp_path)

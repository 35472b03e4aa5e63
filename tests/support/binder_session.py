"""Follows the steps of repo2docker with binder/: builds the environment, and starts a session.

(Its sources: buildpacks/python, buildpacks/conda and buildpacks/base.py of repo2docker 2026.4.) The
Python package comes from binder/runtime.txt; here it is the Python that runs the tests. Packages
come from the index that pip is configured for. There is no root: all runs as the user who tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lab
from limited_memory import Limited

ROOT = Path(__file__).parents[2]
MEMORY = 2 * 10**9  # bytes of a session on mybinder.org, which has one core
SHARED_MEMORY = 64 * 2**20  # bytes in /dev/shm of a container
# What is in the image before: repo2docker's conda/environment.py-3.11-linux-64.lock.
SERVER = """
ipykernel==7.0.1 ipywidgets==8.1.7 jupyter-offlinenotebook==0.3.2 jupyter-resource-usage==1.2.0
jupyter_client==8.6.3 jupyter_server==2.17.0 jupyterhub==5.4.0 jupyterlab==4.4.9 notebook==7.4.7
pyzmq==27.1.0 setuptools==80.9.0 sqlalchemy==2.0.44 tornado==6.5.2 traitlets==5.14.3 wheel==0.45.1
"""
# Variables of this process that a package index may need, and no others.
KEPT = ("PIP_", "SSL_CERT_", "REQUESTS_CA_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


class Image:
    """A clean environment with the checkout, which lies in the user's home as in an image."""

    def __init__(self, folder: Path):
        self.home, self.prefix = folder / "home", folder / "env"
        self.environment = {
            name: value for name, value in os.environ.items() if name.upper().startswith(KEPT)
        } | {
            "HOME": str(self.home),
            "PATH": f"{self.prefix / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
        }

    def copy(self) -> None:
        """The files that git knows, as they are now."""
        names = subprocess.check_output(["git", "-C", ROOT, "ls-files", "-z"], text=True)
        for name in names.rstrip("\0").split("\0"):
            if (ROOT / name).exists():
                (self.home / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.home / name)

    def run(self, *command: str | Path) -> None:
        """A step of the build; raises an error that has all output."""
        done = subprocess.run(
            command, cwd=self.home, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-8000:]

    def install(self) -> None:
        """Install what repo2docker has installed when it comes to our files."""
        self.run(sys.executable, "-m", "venv", self.prefix)
        self.run("pip", "install", "--quiet", *SERVER.split())

    def build(self) -> None:
        self.run("binder/postBuild")

    @contextmanager
    def session(self, cores: int = 1) -> Iterator[tuple[lab.Lab, Limited]]:
        """A server as BinderHub starts it, within the limits of a session."""
        words = [str(self.home / "binder/start"), *lab.COMMAND]
        cpus = sorted(os.sched_getaffinity(0))[:cores]
        words = ["taskset", "--cpu-list", ",".join(map(str, cpus)), *words]
        if os.geteuid() == 0:  # who alone may mount
            small = f"mount -t tmpfs -o size={SHARED_MEMORY} tmpfs /dev/shm"
            words = ["unshare", "--mount", "sh", "-c", f'{small} && exec "$@"', "sh", *words]
        with Limited(MEMORY) as limited, tempfile.TemporaryFile("w+") as log:
            process = limited.start(
                words, self.environment, cwd=self.home, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                yield lab.started(process, self.home), limited
            except BaseException as error:
                log.seek(0)
                error.add_note(log.read()[-8000:])
                raise
            finally:
                process.terminate()
                process.wait(60)

"""`python -m numba_kernels compile`: compile kernels once, for all who use an environment.

A command is run that needs them, and what it compiles is kept in the environment, or in a folder of
its own; several commands add up. Others only read there. Kernels fit one kind of processor and one
version of the sources: where they do not, a line says so, and users compile and keep their own.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from numba.core.registry import cpu_target

from .cache import PREPARED, PROCESSOR, for_all, version

TRAINS = ["-m", "tutorial_dl", "run", "-n", "4"]  # by each strategy


def prepare_for_all(into: str | None, command: Sequence[str]) -> int:
    """Run `command` and keep its kernels for all; return its exit status.

    Raises:
        ValueError: If the folder can't be written, or there is no command and nothing to train.
    """
    if into is not None:
        os.environ[PREPARED] = str(Path(into).absolute())
    folder = for_all() / version()
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from None
    if not command and importlib.util.find_spec("tutorial_dl") is None:
        raise ValueError("name a command whose kernels are to be compiled: compile python train.py")
    with tempfile.TemporaryDirectory() as elsewhere:
        words = [sys.executable, *TRAINS, "--report", f"{elsewhere}/report.html"]
        env = os.environ | {"NUMBA_CACHE_DIR": str(folder.parents[1])}
        env[PREPARED] = elsewhere  # so that all of them are compiled now
        try:
            status = subprocess.run(command or words, env=env, stdin=subprocess.DEVNULL).returncode
        except OSError as error:
            raise ValueError(f"cannot run {command[0]}: {error.strerror}") from None
    (folder / PROCESSOR).write_text(str(cpu_target.target_context.codegen().magic_tuple()))
    kernels = [file for file in folder.iterdir() if file.is_file()]
    for path, mode in ((folder.parent, 0o755), (folder, 0o755), *((k, 0o444) for k in kernels)):
        path.chmod(mode)
    size = sum(kernel.stat().st_size for kernel in kernels) / 1e6
    print(f"{len(kernels) - 1} kernels, {size:.1f} MB, in {folder}")
    return status

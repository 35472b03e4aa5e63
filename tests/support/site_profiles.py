"""Profiles of sites for tests: `write` a file, or one that `submits` jobs."""

from __future__ import annotations

from pathlib import Path

from numba_kernels import launch


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

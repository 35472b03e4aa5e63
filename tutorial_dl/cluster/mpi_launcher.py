"""Runs a launcher of ranks with what the loaded MPI library speaks in place of `{pmi}`.

    python -P mpi_launcher.py srun --mpi={pmi} --ntasks=4 python -m ...

srun has plugins for the protocols (PMI) by which ranks find each other, and the MPI library knows
some of them. With another protocol every rank is alone, or refuses to start. Only the node on which
the ranks start can tell, after the job has loaded its modules. So this program runs there, finds
out what both speak, and becomes the launcher. It is run by its path and loads little.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence

from numba_kernels import launch, launcher

PLACE = "{pmi}"
# The first line that a rank of MPICH or Open MPI prints if it can't use the launcher's protocol.
REFUSED = re.compile(
    r"unsupported PMI version|not built with SLURM's PMI support|PMI.*[Ii]nit.* (?:failed|error)"
)
REMEDY = f'write srun --mpi={PLACE} in the profile\'s "launcher", which chooses what the MPI speaks'


def advice(launcher: str) -> str:
    """What to do if every rank is a world of its own."""
    if re.search(r"\bsrun\b", launcher) and PLACE not in launcher:
        return f"this srun starts no PMI that the MPI library speaks; {REMEDY}"
    return "mpiexec and mpi4py may not belong to the same MPI; run python -m tutorial_dl doctor"


def command(words: Sequence[str]) -> list[str]:
    """`words`, preceded by this program if they contain `{pmi}`."""
    chosen = any(PLACE in word for word in words)
    return [sys.executable, "-P", __file__, *words] if chosen else list(words)


def offered(srun: str) -> list[str]:
    """The protocols that srun has plugins for."""
    listed = subprocess.run(
        [srun, "--mpi=list"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    # "MPI plugin types are..." or "srun: MPI types are...", one per line, then pmix's versions
    text = (listed.stdout + listed.stderr).partition("specific")[0]
    return re.findall(r"^(?:srun: )?\s*([a-z]\w*)\s*$", text, re.MULTILINE)


def choose(library: str, plugins: Sequence[str]) -> str | None:
    """The protocol for ranks of this MPI library; None if srun has none that it speaks."""
    spoken = launcher.PROTOCOLS.get(launcher.family_of(library), ())
    return next((one for one in spoken if one in plugins), None)


def resolve(words: Sequence[str], library: str, plugins: Sequence[str], mpiexec: str) -> list[str]:
    """`words` with a protocol for `{pmi}`; without one, mpiexec instead of srun and its options."""
    chosen = choose(library, plugins)
    if chosen is not None:
        return [word.replace(PLACE, chosen) for word in words]
    rest = list(words[1:])
    options = ""
    while rest and rest[0].startswith("-"):
        short = re.fullmatch(r"-\w", rest[0])  # its value is the next word
        options += f" {rest.pop(0)}{rest.pop(0) if short else ''}"
    ranks = re.search(r" (?:--ntasks=|-n)(\d+)", options)
    if ranks is None:
        raise launch.LaunchError(
            f"srun has no plugin for {library} (it has {', '.join(plugins)})",
            "name a launcher without {pmi}, such as mpiexec -n {n}",
        )
    return [mpiexec, "-n", ranks[1], *rest]


def main() -> None:
    words = sys.argv[1:]
    try:
        library, plugins = launch.mpi_library().name, offered(words[0])
        needs_mpiexec = choose(library, plugins) is None
        words = resolve(words, library, plugins, launch.find_mpiexec() if needs_mpiexec else "")
        if needs_mpiexec:
            # hydra starts its proxies by srun, beside the step that holds the job's cores.
            os.environ |= {"SLURM_OVERLAP": "1", "SLURM_MEM_PER_NODE": "0"}
            os.environ.pop("SLURM_MEM_PER_CPU", None)
        os.execvp(words[0], words)
    except (launch.LaunchError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"cannot start ranks: {error}")


if __name__ == "__main__":
    main()

"""Is this process one of several, and is it alone in MPI's world? Every situation that we know.

The variables of MPICH's two mpiexec, and of srun, salloc and sbatch (Slurm 22.05), were recorded.
"""

import os
import subprocess
import sys

import pytest

from numba_kernels import launch, launcher

SECONDS = 120
MPICH = "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25 20:45:26 UTC 2026\n"
OPEN_MPI = "Open MPI v5.0.6, package: Open MPI x@y Distribution, ident: 5.0.6, repo rev: v5.0.6"
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.29.3 (ANL base 3.4a2)\n"
INTEL = "Intel(R) MPI Library 2021.13 for Linux* OS\n"

JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_TASKS_PER_NODE": "4"}
SCRIPT = JOB | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


def step(tasks: int, rank: int = 0, **more: str) -> dict[str, str]:
    """The variables of a task of srun."""
    own = {"SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_STEP_NUM_TASKS": str(tasks)}
    own |= {"SLURM_PROCID": str(rank), "SLURM_STEP_TASKS_PER_NODE": str(tasks)}
    return JOB | own | more


def pmi(size: int, rank: int, **more: str) -> dict[str, str]:
    return {"PMI_FD": "9", "PMI_SIZE": str(size), "PMI_RANK": str(rank)} | more


def hydra(size: int, rank: int) -> dict[str, str]:
    return pmi(size, rank, MPI_LOCALNRANKS=str(size), MPI_LOCALRANKID=str(rank))


def gforker(size: int, rank: int) -> dict[str, str]:
    return pmi(size, rank, PMI_DEBUG="0", MPI_UNIVERSE_SIZE="-1")


def open_mpi(size: int, rank: int) -> dict[str, str]:
    return {"OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_RANK": str(rank)} | {
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
        "PMIX_RANK": str(rank),
    }


TERMINAL = {"SLURM_PTY_PORT": "44013"}

# situation: (variables, whether a terminal controls the process, (launcher, ranks, rank) or None)
SITUATIONS = {
    "no launcher": ({}, True, None),
    "mpiexec of MPICH": (hydra(4, 3), False, ("mpiexec", 4, 3)),
    "mpiexec -n 1": (hydra(1, 0), False, ("mpiexec", 1, 0)),
    "gforker": (gforker(4, 2), False, ("mpiexec", 4, 2)),
    "mpiexec of Open MPI": (open_mpi(8, 5), False, ("mpiexec of Open MPI", 8, 5)),
    "mpirun_rsh": (
        {"MV2_COMM_WORLD_SIZE": "3", "MV2_COMM_WORLD_RANK": "2"}, False, ("mpirun_rsh", 3, 2)
    ),
    "jsrun": (
        {"JSM_NAMESPACE_SIZE": "6", "JSM_NAMESPACE_RANK": "1"}, False, ("jsrun", 6, 1)
    ),
    "mpiexec of PALS": (pmi(8, 7, PALS_RANKID="7"), False, ("mpiexec", 8, 7)),
    "aprun": ({"ALPS_APP_PE": "3"}, False, ("aprun", 4, 3)),
    "prun": ({"PMIX_RANK": "2"}, False, ("prun", 3, 2)),
    # Slurm: tasks of a step are ranks, with and without a PMI
    "srun without PMI": (step(4, 3), False, ("srun", 4, 3)),
    "srun without PMI, seen in a terminal": (step(4, 0), True, ("srun", 4, 0)),
    "srun --mpi=pmi2": (step(4, 1) | pmi(4, 1, PMI_JOBID="7.0"), False, ("srun", 4, 1)),
    "srun --mpi=pmix": (step(4, 2, PMIX_RANK="2"), False, ("srun", 4, 2)),
    "srun in the terminal of a job": (step(2, 1, **TERMINAL), False, ("srun", 2, 1)),
    "the same, after srun --mpi=pmi2 --pty": (
        step(4, 3, **TERMINAL) | pmi(1, 0), False, ("srun", 4, 3)
    ),
    # Slurm: one process of a job
    "salloc's shell": (JOB, True, None),
    "sbatch's script": (SCRIPT, False, None),
    "srun --pty bash": (step(1, **TERMINAL), True, None),
    "srun --mpi=pmi2 --pty bash": (step(1, **TERMINAL) | pmi(1, 0), True, None),
    "srun -n 2 --mpi=pmi2 --pty bash": (step(2, **TERMINAL) | pmi(2, 0), True, None),
    "a hub's notebook": (step(1, PMIX_RANK="0"), False, None),
    "a script of its own job, submitted in a notebook": (SCRIPT | step(1), False, None),
    # mpiexec in a job of Slurm: its proxies are tasks of a step, and the ranks inherit from them
    "mpiexec on two nodes": (step(2, 1) | hydra(4, 3), False, ("mpiexec", 4, 3)),
    "mpiexec on one node": (step(1, 0) | hydra(2, 1), False, ("mpiexec", 2, 1)),
    "mpiexec -n 1 in each of four tasks": (step(4, 2) | hydra(1, 0), False, ("mpiexec", 1, 0)),
    "gforker in a terminal": (step(1, **TERMINAL) | gforker(2, 1), True, ("mpiexec", 2, 1)),
    "gforker in sbatch's script": (SCRIPT | gforker(2, 1), False, ("mpiexec", 2, 1)),
    "Open MPI's on two nodes": (
        step(2, 1) | open_mpi(4, 3), False, ("mpiexec of Open MPI", 4, 3)
    ),
    # all alike, each for itself
    "srun, each alone": (step(4, 3, NUMBA_KERNELS_ALONE="1"), False, None),
    "mpiexec, each alone": (hydra(4, 3) | {"NUMBA_KERNELS_ALONE": "1"}, False, None),
    "not alone": (step(4, 3, NUMBA_KERNELS_ALONE="0"), False, ("srun", 4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
def test_who_started_this_process(monkeypatch, situation):
    variables, terminal, found = SITUATIONS[situation]
    monkeypatch.setattr(os, "environ", dict(variables))
    monkeypatch.setattr(launcher, "has_terminal", lambda: terminal)
    said = launch.launched()
    assert (said and said[:3]) == found
    assert launch.under_mpi() == (found is not None)
    assert launch.rank() == (found[2] if found else 0)
    # Alone in MPI's world, it is a mistake where several were started, and nowhere else.
    assert (launcher.alone(MPICH) is None) == (found is None or found[1] == 1)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_ranks_that_we_start_there_heed_our_mpiexec(monkeypatch, situation):
    variables, terminal, _ = SITUATIONS[situation]
    ours = launch.environment_without_ranks(variables | {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(os, "environ", ours | hydra(3, 2))
    monkeypatch.setattr(launcher, "has_terminal", lambda: terminal)
    assert launch.launched()[:3] == ("mpiexec", 3, 2)
    monkeypatch.setattr(os, "environ", ours | gforker(3, 2))
    assert launch.launched()[:3] == ("mpiexec", 3, 2)


def test_ranks_per_node_by_srun(monkeypatch):
    """Seven tasks on four nodes; this one is on the last node."""
    variables = step(7, 6, SLURM_STEP_TASKS_PER_NODE="2(x3),1", SLURM_NODEID="3")
    monkeypatch.setattr(os, "environ", variables)
    assert launch.local_ranks() == 1
    monkeypatch.setattr(os, "environ", variables | {"SLURM_NODEID": "2"})
    assert launch.local_ranks() == 2
    for of, right in ((hydra(2, 1), 2), (open_mpi(4, 3), 4), ({}, 1)):
        monkeypatch.setattr(os, "environ", dict(of))
        assert launch.local_ranks() == right


@pytest.mark.parametrize(
    "variables, library, says",
    [
        (step(4), MPICH, "srun started 4 processes, but each is alone in its MPI world (MPICH "
         "5.0.2): use `srun --mpi=pmi2`, or mpiexec in the job; NUMBA_KERNELS_ALONE=1 lets every"),
        (step(4), OPEN_MPI, "(Open MPI 5.0.6): use `srun --mpi=pmix`, or mpiexec in the job; "),
        (step(4), CRAY, "(Cray MPICH 8.1.29.3): use `srun --mpi=cray_shasta`, or "),
        (open_mpi(4, 1), MPICH, "mpiexec of Open MPI started 4 processes, but each is alone in "
         "its MPI world (MPICH 5.0.2): use the mpiexec of MPICH"),
        (hydra(3, 1), OPEN_MPI, "mpiexec started 3 processes, but each is alone in its MPI world "
         "(Open MPI 5.0.6): use the mpiexec of Open MPI; "),
        (hydra(3, 1), INTEL, "(Intel(R) MPI 2021.13): use the mpiexec of Intel(R) MPI; "),
        ({"ALPS_APP_PE": "3"}, CRAY, "aprun started at least 4 processes, but each is alone in "
         "its MPI world (Cray MPICH 8.1.29.3): use the launcher that belongs to Cray MPICH; "),
    ],
)  # fmt: skip
def test_the_line_names_what_works(monkeypatch, variables, library, says):
    monkeypatch.setattr(os, "environ", variables)
    line = launcher.alone(library)
    assert says in line and "\n" not in line


ENTRIES = {
    "train": ["-m", "tutorial_dl", "train", "--model", "softmax", "--epochs", "1"],
    "evaluate": ["-m", "tutorial_dl", "evaluate", "--model-file", "m.npz", "--model", "softmax"],
    "Team": ["-c", "import numba_kernels; numba_kernels.Team(); print('went on')"],
    "horovod.init": ["-c", "from tutorial_dl.interop.horovod.basics import init; init()"],
}


def started(words: list[str], **variables: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")} | variables
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=SECONDS
    )


@pytest.mark.thorough(but="horovod.init")
@pytest.mark.parametrize("entry", ENTRIES)
def test_one_line_and_status_2(entry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.npz").touch()
    done = started(ENTRIES[entry], **step(2, 0))
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: srun started 2 processes, but each is alone in its MPI world")
    if entry == "Team":  # the others say nothing
        done = started(ENTRIES[entry], **step(2, 1))
        assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_a_benchmark_starts_its_ranks_itself():
    words = ["-m", "numba_kernels", "bench", "allreduce"]
    done = started(words, **step(2, 0))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: this process is already a rank of mpiexec or srun: leave -n out, or start this "
        "command without them\n"
    )
    done = started(words, **step(2, 1))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_alone_on_purpose():
    words = "import numba_kernels as k; from mpi4py import MPI; print(k.Team({}).size)"
    done = started(["-c", words.format("")], NUMBA_KERNELS_ALONE="1", **step(4, 3))
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    done = started(["-c", words.format("MPI.COMM_SELF")], **step(4, 3))
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_in_a_step_of_a_job_srun_shares_its_cores_and_memory(monkeypatch):
    """Without these, mpiexec in a terminal or a notebook of a job waits for ever: it calls srun."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/usr/bin/srun")
    memory = {"SLURM_MEM_PER_CPU": "1000", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1"}
    env = launch.environment_without_ranks(step(1, **memory))
    assert env["SLURM_OVERLAP"] == "1" and env["SLURM_MEM_PER_NODE"] == "0"
    assert not env.keys() & memory.keys() and env["SLURM_JOB_ID"] == "7"
    assert launch.environment_without_ranks(SCRIPT | memory) == SCRIPT | memory

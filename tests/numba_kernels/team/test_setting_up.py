"""Waits while a team is made: who has not come is reported, and named when time is up."""

import re
from types import SimpleNamespace

import pytest

from numba_kernels import launch

SECONDS = 120

# Rank 2 comes late: once rank 0 has reported for the `reports`-th time.
PROGRAM = """
import sys, time
from pathlib import Path
from numba_kernels import Team
from numba_kernels.errors import DeadlineError
from numba_kernels.team import stall, team as teams, waiting
from numba_kernels.team.world import world_of

folder, way = Path(sys.argv[1]), sys.argv[2]
team = Team()
world = world_of(team.comm)
waiting.SETUP_SECONDS = teams.SETUP_SECONDS = 1.0
said = []

def say(text):
    said.append(text)
    if len(said) == 3:  # after 0.3, 0.6 and 1.2 s
        (folder / "late").touch()

stall._say = say
if way == "elsewhere":
    world.processes.clear()
if team.rank == 2:
    while not (folder / "late").exists():
        time.sleep(0.01)
try:
    if way == "part":
        new = None if team.rank == 1 else team.subteam([0, 2], team.comm)
    else:
        new = Team()
    result = "made"
except DeadlineError as error:
    (folder / "late").touch()
    result = str(error)
except Exception as error:
    result = type(error).__name__
first = said[0] if said else ""
print(f"{team.rank}: {result}; {first}", flush=True)
team.comm.barrier()
"""


def ran(tmp_path, way: str) -> list[str]:
    done = launch.run_ranks(
        3, ["-c", PROGRAM, str(tmp_path), way], timeout=SECONDS, capture=True,
        env={"NUMBA_KERNELS_STALL": "0.3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.thorough
def test_a_rank_that_lives_on_this_machine_is_waited_for(tmp_path):
    zero, one, two = ran(tmp_path, "here")
    assert "in making a team for rank 2 (process " in zero and zero.startswith("0: made; ")
    assert one.startswith("1: made; ") and two == "2: made; "


@pytest.mark.thorough
def test_ranks_of_a_part_are_named_too(tmp_path):
    zero, one, two = ran(tmp_path, "part")
    assert zero.startswith("0: made; ") and "for rank 2 (" in zero and two == "2: made; "
    assert one == "1: made; "


@pytest.mark.thorough
def test_a_rank_elsewhere_has_a_limit_and_is_named(tmp_path):
    zero, one, two = ran(tmp_path, "elsewhere")
    limit = "rank 2 did not begin making the team within 1 s: all ranks of a team must call it"
    assert limit in zero or limit in one  # the other may have heard of its failure first
    assert two.startswith(("2: PeerError", "2: made"))


FIRST = """
import sys, time
from pathlib import Path
from mpi4py import MPI
from numba_kernels.team import stall, waiting

folder, rank = Path(sys.argv[1]), MPI.COMM_WORLD.rank
waiting.SETUP_SECONDS = 1.0
said = []

def say(text):
    said.append(text)
    if len(said) == 3:  # after 0.3, 0.6 and 1.2 s
        (folder / "late").touch()

stall._say = say
from numba_kernels import Team

(folder / str(rank)).touch()
for name in ["late"] if rank in (1, 3) else ["0", "2"]:  # those in time begin together
    while not (folder / name).exists():
        time.sleep(0.01)
team = Team()
print(f"{rank}: {said[0] if said else ''}", flush=True)
team.close()
"""


def test_before_there_is_any_mailbox(tmp_path):
    for way, more in {"plain": {}, "supervised": {"survive": True}}.items():
        (tmp_path / way).mkdir()
        done = launch.run_ranks(
            4, ["-c", FIRST, str(tmp_path / way)], timeout=SECONDS, capture=True,
            env={"NUMBA_KERNELS_STALL": "0.3"}, **more,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        zero, *others = sorted(done.stdout.splitlines())
        assert re.fullmatch(
            r"0: ranks 1 \(process \d+ is (asleep|computing)\) and 3 \(process \d+ is "
            r"(asleep|computing)\) have not begun to make the team, for 0 s",
            zero,
        )
        assert others == ["1: ", "2: ", "3: "]


def test_the_machines_processes_are_read_now_and_then(monkeypatch):
    from numba_kernels.team import siblings

    looks, now = [], [100.0]
    monkeypatch.setattr(siblings, "ranks_here", lambda: looks.append(1) or {1: (1, False)})
    monkeypatch.setattr(siblings, "local_ranks", lambda: 2)
    monkeypatch.setattr(siblings.time, "monotonic", lambda: now[0])
    watch = siblings.FirstWatch(SimpleNamespace(rank=0, size=2))
    for _ in range(1000):  # a wait beyond its limit asks all the time
        assert watch.unheard() == [0, 1] and watch.starts(1)
    assert len(looks) == 1
    now[0] += 1.0
    assert watch.starts(1) and len(looks) == 2

"""The end of a program: every letter is received before MPI_Finalize, and nobody waits for long."""

import json

import pytest

from numba_kernels import TeamError, launch
from numba_kernels.errors import message_of

SECONDS = 120

# The check is registered before the first team, so it runs after what teams do at the end.
PROGRAM = """
import atexit, sys, time
from mpi4py import MPI

boxes = []

def check():
    MPI.COMM_WORLD.barrier()  # all letters are on their way, if not here
    end, left = time.monotonic() + 0.3, 0
    while time.monotonic() < end:
        left += sum(box.comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG) for box in boxes)
    print(left, flush=True)

atexit.register(check)
from numba_kernels import Team
from numba_kernels.team.world import world_of

team = Team()
boxes += [world_of(team.comm).letters, team.letters]
part = team.split(team.rank % 2)
boxes.append(part.letters)
dropped = Team()
boxes.append(dropped.letters)
team.barrier()
del dropped
"""
FAILS = """
if team.rank == 1:
    raise ValueError("of rank 1")
team.barrier()
"""


@pytest.mark.thorough
def test_every_letter_is_received_at_the_end():
    done = launch.run_ranks(3, ["-c", PROGRAM], timeout=SECONDS, capture=True)
    assert done.stdout.split() == ["0"] * 3, done.stderr


@pytest.mark.thorough
def test_after_a_failure_too():
    done = launch.run_ranks(3, ["-c", PROGRAM + FAILS], timeout=SECONDS, capture=True)
    assert done.stdout.split() == ["0"] * 3, done.stderr
    assert "ValueError: of rank 1" in done.stderr


def test_a_rank_that_was_killed_is_not_waited_for():
    """The others see that its process has ended, and end at once."""
    program = (
        "import os, sys, signal, time\n"
        "from numba_kernels import Team, launch\n"
        "from numba_kernels.team import failure\n"
        "failure.END_SECONDS = 1e6\n"
        "team = Team()\n"
        "launch.can_be_lost()\n"
        "team.barrier()\n"
        "if team.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "import atexit; atexit._run_exitfuncs()\n"
        "print('ended', flush=True); os._exit(0)\n"
    )
    done = launch.run_ranks(3, ["-c", program], timeout=SECONDS, capture=True, survive=True)
    assert done.stdout.split() == ["ended"] * 2, done.stderr


@pytest.mark.parametrize("asked", ["", "1"])
def test_a_script_shows_its_own_lines_and_the_message(asked):
    program = "from numba_kernels import Team\nteam = Team()\nimport numpy as np\n"
    program += "team.barrier() if team.rank else team.allreduce(np.ones(3, np.float32))\n"
    env = {"NUMBA_KERNELS_TRACEBACK": asked}
    done = launch.run_ranks(2, ["-c", program], timeout=SECONDS, capture=True, env=env)
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and "numba_kernels.errors.MismatchError: rank" in lines[-1], lines
    assert "rank 0 called allreduce" in lines[-1] and "rank 1 called barrier()" in lines[-1]
    files = [line for line in lines if line.startswith("  File ")]
    assert '  File "<string>", line 4, in <module>' in files
    assert bool(set(files) - {'  File "<string>", line 4, in <module>'}) == bool(asked)


def test_an_excepthook_of_before_is_called_too():
    """That of a service which records errors, for example."""
    program = "import sys\nsys.excepthook = lambda kind, error, trace: print(kind.__name__)\n"
    program += "from numba_kernels import Team\nTeam().allreduce(None)\n"
    done = launch.run_ranks(1, ["-c", program], timeout=SECONDS, capture=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "TypeError\n", "")


def test_an_error_that_has_nothing_to_do_with_the_last_one_in_a_graph(monkeypatch):
    from numba_kernels.team import short_traceback

    with pytest.raises(ValueError, match="Expecting") as error:
        json.loads("{")  # raised by a library, as TensorFlow's are
    for words, short in (("", False), ("Expecting", True)):
        monkeypatch.setattr(short_traceback, "met", [TeamError(words)])
        assert (short_traceback.in_short(error.value) is not None) == short


def test_an_error_whose_message_fails_is_left_as_it_is():
    """Its class may be in a user's registry, or refuse subclasses."""

    class Worse(Exception):
        def __init_subclass__(cls):
            raise KeyError

        def __str__(self):
            raise OSError

    for error in (Worse(), ValueError(Worse())):
        kind = type(error)
        assert message_of(error) == "(its message could not be made: OSError)"
        assert type(error) is kind
    assert not Worse.__subclasses__()

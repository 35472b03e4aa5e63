"""A rank that is stopped is reported as a stall; one whose process has ended, as a failure."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

STOPPED = r"""
import os, sys, time
import numpy as np
from numba_kernels import Team
team = Team()
x = team.empty(100_000)
total = 0.0
for step in range(int(sys.argv[1])):
    x[:] = team.rank + step
    total += float(team.allreduce(x)[0])
    if step == 20:
        sys.stdout.write(f"pid {team.rank} {os.getpid()}\n")
        sys.stdout.flush()
    time.sleep(0.01)
sys.stdout.write(f"total {total}\n")
"""


def stop_a_rank(ranks, shared, stall, steps, seconds=None):
    """Run STOPPED and stop its last rank for a while; returns the reports and the pids.

    seconds: how long it is stopped; None: until a report that all others wait has come twice.
        (Other reports may come before it, while the others have not come to wait either.)
    """
    from numba_kernels import launch

    env = launch.rank_environment(
        ranks, {"NUMBA_KERNELS_WINDOW": shared, "NUMBA_KERNELS_STALL": str(stall)}
    )
    command = [launch.find_mpiexec(), "-n", str(ranks), sys.executable, "-c", STOPPED, str(steps)]
    process = subprocess.Popen(
        launch.guarded(command, os.getpid()), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=os.environ | env,
    )  # fmt: skip
    try:
        pids = {}
        while len(pids) < ranks:
            _, rank, pid = process.stdout.readline().split()
            pids[int(rank)] = int(pid)
        stopped = re.compile(all_wait_for_the_last(ranks, pids))
        os.kill(pids[ranks - 1], signal.SIGSTOP)
        said = []
        if seconds is not None:
            time.sleep(seconds)
        while seconds is None and len(stopped.findall("".join(said))) < 2:
            said.append(process.stderr.readline())
            assert said[-1], "".join(said)
        os.kill(pids[ranks - 1], signal.SIGCONT)
        out, err = process.communicate(timeout=600)
    finally:
        process.terminate()
        process.wait(100)
    assert process.returncode == 0, err
    totals = [line for line in out.splitlines() if line.startswith("total")]
    expected = sum(ranks * (ranks - 1) / 2 + ranks * step for step in range(steps))
    assert totals == [f"total {expected}"] * ranks
    return "".join(said) + err, pids


def all_wait_for_the_last(ranks, pids):
    """A pattern for the report of STOPPED, with the seconds of waiting."""
    last = ranks - 1
    waiting = {2: "rank 0 has", 3: "ranks 0 and 1 have", 4: "ranks 0, 1 and 2 have"}[ranks]
    where = rf"for rank {last} \(process {pids[last]} is stopped by a signal\)"
    call = r"allreduce\(float32\[100000\], op='sum'"
    return rf"stall: {waiting} waited (\d+) s in {call}.*{where}"


@pytest.mark.thorough(but="2-window")
@pytest.mark.parametrize(
    ("ranks", "shared"),
    [(2, "1"), (3, "0"), (4, "1")],
    ids=["2-window", "3-messages", "4-window"],
)
def test_a_rank_is_stopped(ranks, shared):
    said, pids = stop_a_rank(ranks, shared, stall=1, steps=60)
    # One rank reports it, after 1 s and after 2 s, say; if others did so too, seconds would repeat.
    seconds = [int(one) for one in re.findall(all_wait_for_the_last(ranks, pids), said)]
    assert len(seconds) >= 2 and seconds == sorted(set(seconds)), said
    assert said.count(f"stall: rank {ranks - 1} came after ") == 1, said


def no_such_time():
    with pytest.raises(ValueError, match=r"NUMBA_KERNELS_STALL must .* above 0, got 'soon'"):
        from numba_kernels import Team  # noqa: F401


def test_seconds_until_a_stall_is_reported(on_ranks):
    on_ranks(1, no_such_time, env={"NUMBA_KERNELS_STALL": "soon"})


def a_process_ends():
    """Other ranks notice that a process of this machine has ended, without a letter from it."""
    from numba_kernels import PeerError, Team

    team = Team()
    team.barrier()
    if team.rank == 0:
        ended = subprocess.Popen([sys.executable, "-c", ""])
        time.sleep(0.5)  # now a zombie, whose status nobody has read
        team.processes[1] = ended.pid
        with pytest.raises(PeerError, match=f"rank 1 failed: its process {ended.pid} has ended"):
            team.barrier()
        ended.wait()
    else:
        team.settle(120)


def test_a_process_ends(on_ranks):
    on_ranks(2, a_process_ends)

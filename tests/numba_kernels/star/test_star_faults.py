"""Stars whose leaves or hub fail, are killed or stopped."""

import os
import random
import re
import signal
import subprocess
import threading
import time
from types import SimpleNamespace

import clock
import pytest
from places import places

END = 99.0  # a word that dismisses a leaf


def leaf_fails():
    """Leaf 1 fails at each possible place; hub and other leaves go on, and `lost` reports it."""
    from numba_kernels import Team, TeamError
    from numba_kernels.star.star import Star

    team = Team()
    n = 60_000
    for place in ("computing", "writing", "waiting"):
        star = Star(team, n, n)
        if team.rank == 0:
            lost, served = {}, 0
            end = time.monotonic() + 300
            while star.leaves:
                leaf = star.next(0.05)
                if leaf and star.head(leaf)[0] >= 0:  # requests with -1 are never answered
                    served += 1
                    done = leaf > 1 and served > 40 and 1 in lost
                    if 1 in lost:
                        time.sleep(0.02)  # long enough for the other leaf to read its letters
                    star.answer(leaf, [END * done])
                    if done:
                        star.drop(leaf)
                for leaf, why in star.lost().items():
                    lost[leaf] = why
                    star.drop(leaf)
                assert time.monotonic() < end
            expected = "KeyboardInterrupt" if place == "waiting" else f"ZeroDivisionError: {place}"
            assert lost == {1: expected}
            assert star.lost() == {}
        elif team.rank == 1:
            for k in range(12):
                star.out[:] = k
                if k == 11 and place == "writing":
                    star.out[: n // 2] = -1
                if k == 11 and place != "waiting":
                    team.abort(ZeroDivisionError(place))
                    break
                star.ask([k])
            if place == "waiting":
                interrupted = clock.seconds("Ctrl-C after 0.5 s in a star's wait")
                with pytest.raises(KeyboardInterrupt), interrupted:
                    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
                    star.ask([-1])
            with pytest.raises(TeamError):
                star.ask()
        else:
            while star.ask()[0] != END:
                pass
        team.recover(120)
        with pytest.raises(TeamError, match="make a new star"):
            star.next(0) if team.rank == 0 else star.ask()


@pytest.mark.thorough(but="mixed")
@places("window", "messages", "mixed")
def test_a_leaf_fails(on_ranks, env):
    on_ranks(3, leaf_fails, env=env)


def hub_fails():
    """All leaves learn that the hub has failed or was interrupted."""
    from mpi4py import MPI

    from numba_kernels import PeerError, Team
    from numba_kernels.star.star import Star
    from numba_kernels.team import stall

    team, world = Team(), MPI.COMM_WORLD
    said, before = [], (stall.REPORT, stall._say)

    def say(line):
        if team.rank == 1 and not said:
            world.send("has said it", 0)
        said.append(line)

    stall.REPORT, stall._say = 0.4, say
    try:
        for how in ("raises", "interrupted"):
            star = Star(team, 1000, 1000)
            team.barrier()
            began = time.monotonic()
            if team.rank == 0:
                for _ in range(5):
                    star.answer(star.next(120))
                if how == "raises":
                    while not world.Iprobe(source=1):  # until leaf 1 has reported its wait
                        time.sleep(0.01)
                    world.recv(source=1)
                    team.abort(ZeroDivisionError("in the hub"))
                else:
                    with pytest.raises(KeyboardInterrupt):
                        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                        while True:
                            star.next(120)
            else:
                why = "ZeroDivisionError: in the hub" if how == "raises" else "KeyboardInterrupt"
                with pytest.raises(PeerError, match=f"rank 0 failed: {why}"):
                    while True:
                        star.ask(idle=team.rank == 2)
            clock.note("leaves know of their hub's end", time.monotonic() - began)
            if team.rank == 2:
                assert not said, said
            elif how == "raises" and team.rank:
                line = rf"rank {team.rank} has waited \d+ s in Star\.ask\(\) for rank 0 \(process "
                assert said and re.match(line, said[0]), said
            team.recover(120)
    finally:
        stall.REPORT, stall._say = before


@places("window", "messages", "mixed")
def test_the_hub_fails(on_ranks, env):
    on_ranks(3, hub_fails, env=env)


def hub_is_stopped():
    """The hub is stopped until a leaf has reported it, also a leaf that may wait for long."""
    from numba_kernels import Team
    from numba_kernels.star.star import Star
    from numba_kernels.team import stall

    team = Team()
    star, hub = Star(team, 10, 10), team.processes.get(0)
    said, before = [], (stall.REPORT, stall._say)

    def say(line):
        said.append(line)
        os.kill(hub, signal.SIGCONT)

    stall.REPORT, stall._say = 0.2, say
    late = threading.Timer(300, os.kill, (hub, signal.SIGCONT))
    try:
        if team.rank == 0:
            star.answer(star.next(120))
            return
        os.kill(hub, signal.SIGSTOP)
        late.start()
        star.ask(idle=True)
        assert said and f"(process {hub} is stopped by a signal)" in said[0], said
    finally:
        late.cancel()
        stall.REPORT, stall._say = before


def test_a_stopped_hub_is_reported(on_ranks):
    on_ranks(2, hub_is_stopped)


def test_whose_chunks_a_hub_waits_for():
    """It waits long for a leaf that lost its core, 1 s for a stopped one, and for no ended one."""
    from numba_kernels.star.hub import Hub

    with subprocess.Popen(["sleep", "600"]) as other:
        pids = {1: os.getpid(), 2: other.pid, 3: None}
        hub = SimpleNamespace(team=SimpleNamespace(pid=pids.get))

        def gone(leaf):
            return [Hub._is_gone(hub, leaf, waited) for waited in (0.5, 2.0, 40.0)]

        try:
            assert gone(1) == gone(2) == [False, False, True]
            assert gone(3) == [False, True, True]
            other.send_signal(signal.SIGSTOP)
            os.waitpid(other.pid, os.WUNTRACED)
            assert gone(2) == [False, True, True]
        finally:
            other.kill()
    assert gone(2) == [True, True, True]


def kills(seed):
    """Leaf 1, leaf 2 and at last the hub end by SIGKILL, each at a random moment."""
    from numba_kernels import PeerError, Team, launch
    from numba_kernels.optimizers import SGD
    from numba_kernels.optimizers.serve import serve
    from numba_kernels.star.star import Star

    team, n = Team(), 400_000
    launch.can_be_lost()
    chance = random.Random(seed + team.rank)
    star = Star(team, n, n, kept=n)
    if team.rank == 0:
        weights, rule = star.keep(n), SGD(0.5)
        state, lost, served = rule.init(n), {}, 0
        end = time.monotonic() + 500
        while len(lost) < 2 or served < 400:
            leaf = star.next(0.1)
            if leaf:
                whole = star.sent(leaf)
                assert (whole == whole[0]).all(), "half a vector"
                serve(rule, weights, whole, state, star.answer_vector(leaf))
                star.answer(leaf)
                served += leaf == 3
            for leaf, why in star.lost().items():
                assert why.startswith(("its process ", "MPI reports an error"))  # either notices
                lost[leaf] = why
                star.drop(leaf)
            assert time.monotonic() < end, f"{lost}, {served} served"
        assert sorted(lost) == [1, 2]
        print("hub", len(lost), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    moment = {1: 0.3, 2: 0.8}.get(team.rank)
    star.ask()  # compiled before the clock runs
    if moment:
        moment += chance.uniform(0, 0.01)
        threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL)).start()
    with pytest.raises(PeerError, match=r"rank 0 failed: its process \d+ has ended"):
        while True:
            star.out[:] = chance.random()
            star.ask()
            asked = time.monotonic()
    clock.note("the last leaf knows of its hub's end", time.monotonic() - asked)
    print("leaf", team.rank, flush=True)
    os._exit(0)  # MPI_Finalize would wait for the other ranks


@pytest.mark.thorough(but="messages")
@places("window", "messages")
def test_kills(env):
    from on_ranks import one_call

    from numba_kernels import launch

    call = one_call(4, __file__, "kills", [1])
    done = launch.run_ranks(4, call, timeout=600, capture=True, env=env, survive=True)
    assert "hub 2" in done.stdout and "leaf 3" in done.stdout, done.stdout + done.stderr

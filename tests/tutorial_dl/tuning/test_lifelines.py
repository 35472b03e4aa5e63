"""The end of a process on another machine is noticed; here, its process id is not known either."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from types import SimpleNamespace

from mpi4py import MPI

from tutorial_dl.tuning.lifelines import Lifeline, Lifelines, connected
from tutorial_dl.tuning.mpi_port import MpiPort

FAR = SimpleNamespace(pid=lambda rank: None)


def until(holds):
    """Look again and again, for ten minutes at most."""
    end = time.monotonic() + 600
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def stays(where, rank):
    line = Lifeline(where, rank)
    signal.pause()
    line.close()


def test_a_cell_is_lost_when_all_its_ranks_have_been_killed():
    lines = Lifelines()
    port = MpiPort(FAR, MPI.COMM_SELF, [[1, 2], [3]], lines)
    start = multiprocessing.get_context("fork").Process
    children = {rank: start(target=stays, args=(lines.where(), rank)) for rank in (1, 2, 3)}
    for child in children.values():
        child.start()
    until(lambda: lines.lines.keys() == {1, 2, 3})
    assert port.lost() == []
    os.kill(children[1].pid, signal.SIGKILL)
    until(lambda: lines.ended == {1})
    port.asked[0] = 1  # it was choosing a set; rank 2 may go on alone, and knows no results
    assert port.lost() == [] and port.receive(0) == (0, {"what": "ready", "known": 0})
    assert port.lost() == [] and port.receive(0) is None
    os.kill(children[2].pid, signal.SIGKILL)
    until(lambda: port.lost() == [0])
    os.kill(children[3].pid, signal.SIGKILL)
    until(lambda: port.lost() == [0, 1])
    for child in children.values():
        child.join()
    lines.close()


def test_a_stranger_is_no_rank():
    lines = Lifelines()
    where = lines.where()
    for said in (f"{'0' * 32} 1\n", "1\n", "x" * 400, ""):
        with socket.create_connection(("localhost", where["port"])) as stranger:
            stranger.sendall(said.encode())
    slow = socket.create_connection(("localhost", where["port"]))
    slow.sendall(where["token"][:5].encode())  # a line may come in pieces
    slow.sendall(f"{where['token'][5:]} 7\n".encode())
    until(lambda: lines.lines.keys() == {7})
    assert not lines.ended
    slow.close()
    until(lambda: lines.ended == {7})
    lines.close()


def test_a_rank_notices_the_end_of_the_coordinator():
    lines = Lifelines()
    line = Lifeline(lines.where(), 1)
    until(lambda: lines.lines.keys() == {1})
    assert not line.has_ended()
    lines.close()
    until(line.has_ended)
    line.close()
    nowhere = Lifeline({"names": ["localhost"], "port": 1, "token": "t"}, 2)
    assert not nowhere.has_ended()  # it is not watched, and goes on


def all_connect():
    from numba_kernels.team.team import Team

    team = Team()
    assert connected(team) is None  # on one machine, /proc tells
    line = connected(team, everywhere=True)
    if team.rank == 0:
        until(lambda: line.lines.keys() == set(range(1, team.size)))
    team.barrier()
    if team.rank:
        line.close()
    else:
        until(lambda: line.ended == line.lines.keys())
        line.close()
    team.barrier()


def test_ranks_connect(on_ranks):
    on_ranks(3, all_connect)

"""Bounds and repetition for cells, clusters and the notebook: times that a user waits."""

from __future__ import annotations

import pytest
from modules import load

cells, lost, view = load("test_cells"), load("test_lost_engines"), load("test_view")
# The fixtures of those files.
team_cluster = cells.team_cluster
notebook = view.notebook


def test_who_waits_in_a_team(team_cluster, bound):
    for name in cells.RAISES:
        cells.test_who_waits_in_a_team_raises_too(team_cluster, name)
    cells.test_a_mismatch_names_both(team_cluster)
    bound(cells.WAITING, 2)


def test_raw_mpi_calls(request, bound):
    call = "comm.Barrier()"
    cells.test_ranks_in_a_raw_mpi_call_are_named(request, 2, "MPI.COMM_WORLD", call, call)
    bound("ranks in a raw MPI call are named", 5)
    bound("ranks that are still in a raw MPI call", 3.5)


@pytest.mark.parametrize(
    "code", ["team.barrier() if rank else time.sleep(100)", "while True: sum(range(1000))"]
)
def test_interrupt(team_cluster, tmp_path, bound, code):
    cells.test_interrupt(team_cluster, tmp_path, code)
    bound("Ctrl-C stops a cell", 1)


def test_interrupt_of_a_raw_mpi_call(shared_cluster, tmp_path, bound):
    cells.test_what_an_interrupt_cannot_end_is_named(shared_cluster, tmp_path, "raw MPI")
    bound("Ctrl-C is answered: raw MPI", 2.9)


def test_interrupts_that_are_ignored(shared_cluster, tmp_path, bound):
    (tmp_path / "second").mkdir()
    cells.test_a_second_interrupt_does_not_wait(shared_cluster, tmp_path / "second")
    bound("a second Ctrl-C does not wait", 1)
    cells.test_what_an_interrupt_cannot_end_is_named(shared_cluster, tmp_path, "ignores")
    bound("Ctrl-C is answered: ignores", 4.5)


def test_timeout(shared_cluster, bound):
    cells.test_timeout(shared_cluster)
    bound("a time limit of 8 s", 9)


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        ("os.kill(os.getpid(), 9)", "was killed by signal 9 (SIGKILL)"),
        ("os._exit(0)", "ended with exit status 0"),
    ],
)
def test_a_lost_rank_is_named(own_cluster, bound, ends, how):
    lost.test_a_lost_rank_is_named(own_cluster, ends, how)
    bound("a lost rank is named", 6)
    bound("a lost rank is named by the next cell", 1)


def test_a_rank_lost_between_cells(own_cluster, bound):
    lost.test_a_rank_lost_between_cells_is_named(own_cluster)
    bound("a rank lost between cells is named", 1.5)


def test_a_dead_controller(own_cluster, bound):
    lost.test_a_dead_controller_is_no_end(own_cluster)
    bound("a cell ends with its controller", 6)


def test_20_restarts(tests, private, bound, tmp_path):
    tests("test_cluster_list").restarts(20, tmp_path)
    bound("a restart", 15)


def test_a_cluster_that_was_joined_stops(tests, private, bound):
    tests("test_cluster_list").test_a_second_notebook_joins_restarts_and_stops()
    bound("a cluster that was joined stops", 14)


def test_states_of_engines(tmp_path, monkeypatch, bound):
    view.test_states_of_engines(tmp_path, monkeypatch)
    bound("states are shown where an engine is stopped", 1)
    bound("an engine that polls leaves of a core", 80, "%")
    bound("an idle engine needs of a core", 20, "%")


@pytest.mark.parametrize(
    "code", ["team.barrier() if rank else time.sleep(100)", "while True: pass"]
)
def test_the_stop_button(notebook, bound, code):
    view.test_the_stop_button(notebook, code)
    bound("the stop button ends a cell", 1)


def test_a_traced_cell(notebook, bound):
    view.test_mpi_draws_what_ranks_do(notebook)
    bound("the late rank's share of waiting, of the first one's", 0.5, "of it")
    bound("the second rank's share of waiting, of the first one's", 1, "of it")

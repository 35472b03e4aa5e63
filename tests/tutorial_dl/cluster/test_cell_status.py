"""What is said while a cell runs, and while it waits for ranks that still run another one."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from cell_messages import OFFER
from IPython.core.interactiveshell import InteractiveShell

from tutorial_dl.cluster import cell_display, cell_runner, engine_main_thread
from tutorial_dl.cluster.cell_errors import ANSI, CellError, CellInterrupted, CellTimeout
from tutorial_dl.cluster.engine_main_thread import MainThread
from tutorial_dl.cluster.magics import ClusterMagics, numbered


class Statuses(cell_display.Page):
    """A page that keeps the statuses, and calls `then` with each."""

    def __init__(self, then):
        super().__init__()
        self.then, self.said = then, []

    def status(self, text):
        self.said.append(text)
        self.then(text)


@pytest.fixture
def team(shared_cluster):
    shared_cluster.run("import os; team = Team(); team.barrier()")
    return shared_cluster


UNTIL = """import os
def in_c():  # as if no signal could end it
    while not os.path.exists({!r}):
        try:
            time.sleep(0.01)
        except KeyboardInterrupt:
            pass
"""


@pytest.mark.thorough
def test_a_running_cell_says_who_waits_for_whom(team, tmp_path):
    go = tmp_path / "go"
    page = Statuses(lambda text: go.touch() if "wait in barrier" in text else None)
    cell = team.cells.submit(UNTIL.format(str(go)) + "if rank == 2: in_c()\nteam.barrier()")
    cell.wait(page, progress_after=0)
    said = [re.sub(r"^\d+ s: ", "", text) for text in page.said]
    assert said[-1] == "ranks 0, 1 wait in barrier for rank 2; rank 2 computes"


def test_a_cell_that_waits_for_an_earlier_one_says_so(shared_cluster, tmp_path, capsys):
    go = tmp_path / "go"
    page = Statuses(lambda text: go.touch() if "rank 1 still computes" in text else None)
    wait = f"for _ in range(3000):\n    if os.path.exists({str(go)!r}): break\n    time.sleep(0.01)"
    shared_cluster.cells.submit(f"import os\n{wait}", [1])
    shared_cluster.cells.submit("pass").wait(page, progress_after=0)
    said = [re.sub(r"^\d+ s: ", "", text) for text in page.said]
    assert re.match(r"rank 1 still computes in .*\nthis cell runs after it; the stop", said[-1])
    assert capsys.readouterr().err == ""  # it is said in one place


def test_ranks_report_no_long_wait_where_the_notebook_shows_it(team):
    team.cells.submit("from numba_kernels.team import stall", status=True).wait()
    team.cells.submit("assert not stall.reports", status=True).wait()
    team.run("assert stall.reports")


def test_calls_and_variables_report_as_cells_do(team, monkeypatch):
    team.run("from numba_kernels.team import stall")
    for shows in (True, False):
        monkeypatch.setattr(cell_display.Terminal, "shows_status", lambda page, shows=shows: shows)
        monkeypatch.setattr(cell_display.Terminal, "status", lambda page, text: None)
        assert team["stall.reports"] == [not shows] * 3


def test_output_that_is_kept_has_reports_of_long_waits():
    """Also in JupyterLab, which shows the same below a cell, for as long as it runs."""
    asked, page = [], SimpleNamespace(shows_status=lambda: True)
    sent = SimpleNamespace(result="result", wait=lambda *_, **__: None)

    def submit(cell, targets, timeout, status):
        asked.append(status)
        return sent

    cells = SimpleNamespace(free=lambda *_: None, submit=submit)
    shell, view = SimpleNamespace(user_ns={}), SimpleNamespace(block=True, targets="all")
    how = {"verbose": False, "stream_output": True, "progress_after_seconds": 2}
    magics = SimpleNamespace(
        cluster=SimpleNamespace(cells=cells), shell=shell, view=view, signal_on_interrupt=2, **how
    )
    ClusterMagics.parallel_execute(magics, "pass", page=page)
    ClusterMagics.parallel_execute(magics, "pass", page=page, save_name="kept")
    ClusterMagics.parallel_execute(magics, "pass", page=page, block=False)
    assert asked == [True, False, False] and shell.user_ns == {"kept": "result"}


# After a stop -----------------------------------------------------------------------------------


@pytest.fixture
def left(shared_cluster, tmp_path):
    """A cluster whose ranks 1 and 2 heed no interrupt until a file exists; that file."""
    go = tmp_path / "go"
    (tmp_path / "runs").mkdir()
    code = UNTIL.format(str(go)) + (
        f"open(f'{tmp_path}/runs/{{rank}}', 'w').close()\nif rank: in_c()\nelse: time.sleep(100)"
    )

    def stop():
        while len(list((tmp_path / "runs").iterdir())) < 3:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    button = threading.Thread(target=stop)
    button.start()
    try:
        with pytest.raises(CellInterrupted, match="1 of 3 ranks stopped, ranks 1, 2 did not stop"):
            shared_cluster.run(code)
        yield shared_cluster, go
    finally:
        button.join()
        go.touch()
        shared_cluster.run("pass", timeout=300)


WAITS = (
    r"ranks 1, 2 still compute in .* \(line 9\)\n"
    r"this cell runs when they are done; the stop button ends the wait\n" + re.escape(OFFER)
)


def test_the_next_cell_says_once_whom_it_waits_for_and_runs(left, monkeypatch, capsys):
    c, go = left
    asked, still = [], c.cells._still

    def ask(ranks):
        asked.append(ranks)
        if len(asked) == 3:
            go.touch()
        return still(ranks)

    monkeypatch.setattr(c.cells, "_still", ask)
    c.run("after = rank")
    assert re.fullmatch(WAITS, capsys.readouterr().err.rstrip()) and len(asked) >= 3
    c.run("assert after == rank")


def test_the_stop_button_ends_the_wait_and_the_cell_never_runs(left):
    c, go = left
    c.run("never = True", ranks=[0])  # this rank is not waited for
    page = Statuses(lambda text: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(CellInterrupted) as stopped:
        c.cells.free("all", None, page)
    assert re.fullmatch(WAITS, page.said[0])
    assert stopped.value.summary[0] == "interrupted: the cell was not run"
    assert re.match("ranks 1, 2 still compute in ", stopped.value.summary[1])
    assert stopped.value.summary[2:] == [OFFER]
    with pytest.raises(CellTimeout) as late:
        c.run("never = False", timeout=0.1)
    assert late.value.summary[0] == "the cell was not run within 0.1 s"
    go.touch()
    c.run("assert rank or never")


# Numbers and lines ------------------------------------------------------------------------------


def test_errors_name_the_cell_of_the_notebook(shared_cluster, monkeypatch):
    monkeypatch.setattr(cell_runner, "number_here", lambda: 1012)
    shared_cluster.run("def f(k):\n    return 1 / k", ranks=[1, 2])
    shared_cluster.run("pass", ranks=[1])  # engines count their cells differently
    monkeypatch.setattr(cell_runner, "number_here", lambda: 1013)
    with pytest.raises(CellError) as error:
        shared_cluster.run(numbered("px", "", "\nf(0)"), ranks=[1, 2])
    shown = ANSI.sub("", error.value.traceback)
    assert re.findall(r"Cell (In\[\d+\], line \d+)", shown) == [
        "In[1013], line 3",
        "In[1012], line 2",
    ]
    assert error.value.summary == ["ranks 1, 2: ZeroDivisionError: division by zero"]


def test_the_number_is_that_of_the_running_cell(monkeypatch):
    monkeypatch.setattr(InteractiveShell, "_instance", None)
    shell = InteractiveShell(user_ns={"number": cell_runner.number_here})
    monkeypatch.setattr(cell_runner, "get_ipython", lambda: shell)
    for _ in range(2):
        shell.run_cell("before = number()", store_history=True)
        shell.run_cell("f'{before}, then {number()}'", store_history=True)
    assert shell.user_ns["Out"] == {2: "1, then 2", 4: "3, then 4"}
    monkeypatch.setattr(cell_runner, "get_ipython", lambda: None)
    assert cell_runner.number_here() is None


def test_a_position_is_looked_up_in_the_cell_that_the_rank_runs():
    """Rank 1 still runs a cell that was sent before the last one."""
    first = SimpleNamespace(code="first", pending=lambda: [1], earlier={})
    last = SimpleNamespace(code="last", pending=lambda: [0, 1], earlier={0: first, 1: first})
    cells, asked = cell_runner.Cells(None), []
    cells.now = {0: last, 1: last}
    cells.client = SimpleNamespace(doing=lambda ranks, codes, *_: asked.append(codes))
    cells.ask([0, 1])
    assert asked == [{0: "last", 1: "first"}]


def test_the_magics_line_counts():
    assert numbered("px", "--targets 1", "x = 1") == "# %%px --targets 1\nx = 1"
    assert numbered("px", "", "%%time\nx = 1") == "%%time\nx = 1"  # a magic must come first


# Around the output ------------------------------------------------------------------------------


def test_bars_of_tqdm_auto_are_text(shared_cluster):
    shared_cluster.run(
        "import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('error')\n"
        "    from tqdm.auto import tqdm, trange\n"
        "for _ in tqdm(range(3), desc='steps'): pass\nfor _ in trange(2): pass"
    )
    for rank in range(3):
        steps, two = shared_cluster.output(rank).splitlines()
        assert steps.startswith("steps: 100%|") and "3/3" in steps and "100%|" in two


def test_notices_of_tensorflow_are_hidden_from_the_first_import(shared_cluster):
    shared_cluster.run(
        "import sys\nfrom tutorial_dl import tensorflow_chatter\n"
        "assert any(isinstance(each, tensorflow_chatter._Finder) for each in sys.meta_path)"
    )


def test_all_that_a_rank_has_printed(shared_cluster, capsys):
    shared_cluster.run("for i in range(1000): print(i, rank)\nrank")
    expected = [f"{i} 1" for i in range(1000)] + ["1"]
    assert shared_cluster.output(1).splitlines() == expected
    said = capsys.readouterr().out.splitlines()
    # Lines of ranks mix in a terminal, but none is lost, and results come last in order.
    assert [line for line in said[:-3] if line.startswith("rank 2: ")] == [
        f"rank 2: {i} 2" for i in range(1000)
    ]
    assert said[-3:] == [f"rank {rank}: {rank}" for rank in range(3)]
    with pytest.raises(ValueError, match="rank must be from 0 to 2, got 3"):
        shared_cluster.output(3)


def test_an_engine_answers_whatever_its_main_thread_does_meanwhile():
    """Otherwise its question would stay open, and no other would be asked."""
    thread = MainThread(None, lambda file: {}["changed size during iteration"])
    assert thread.doing(running=True).state == "running"


def test_calls_of_mpi_are_known_by_their_source_without_running_it(monkeypatch):
    from mpi4py import MPI

    comm = MPI.COMM_SELF
    names = {"comm": comm, "MPI": MPI, "all": [1, comm], "barrier": comm.Barrier, "f": len}
    frame = SimpleNamespace(f_locals=names, f_globals={})
    for text, expected in {
        "comm.allreduce(x)": True,
        "MPI.COMM_WORLD.recv(source=(0))": True,
        "all.count(comm.rank)": False,  # a list's
        "all[1].Barrier()": True,  # by the method's name
        "made(comm).bcast(f(1))": True,
        "barrier()": True,
        "f(comm.size)": False,
        "nothing.here(1)": False,
        "comm": False,
    }.items():
        monkeypatch.setattr(engine_main_thread, "expression", lambda frame, text=text: text)
        assert engine_main_thread.calls_mpi(frame) is expected, text

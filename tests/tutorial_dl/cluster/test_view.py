"""The table of a cluster, and the magics in a real notebook's kernel."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time

import clock
import psutil
import pytest
from cell_messages import text_at_end
from ended import assert_gone, until
from IPython.core.error import UsageError

from tutorial_dl import cluster
from tutorial_dl.cluster import rank_status, view
from tutorial_dl.cluster.magics import which_ranks

SECONDS = 300


@pytest.mark.parametrize(
    "text, ranks",
    [("all", [0, 1, 2, 3]), ("2", [2]), ("0,2", [0, 2]), ("1-3", [1, 2, 3]), ("3,0-1", [0, 1, 3])],
)
def test_which_ranks(text, ranks):
    assert which_ranks(text, 4) == ranks


@pytest.mark.parametrize(
    ("text", "size", "said"),
    [(text, 4, "must be like 1 or 0,2 or 1-3 or all, got") for text in ("2-1", "x", "", "0,,1")]
    + [("-1", 4, "must be like"), ("0,2", 2, "0,2: no rank 2, only ranks 0 to 1")]
    + [("1-4", 4, "1-4: no rank 4, only ranks 0 to 3")],
)
def test_which_ranks_refuses(text, size, said):
    with pytest.raises(UsageError, match=f"^--ranks {said}"):
        which_ranks(text, size)


@pytest.mark.thorough
def test_states_of_engines(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    with cluster.start(n=3, timeout=SECONDS) as c:
        until(lambda: [row.state for row in view.rows(c)] == ["idle"] * 3)
        go = tmp_path / "go"
        c.run("from numba_kernels import Team\nteam = Team()\nimport os, time")
        wait = f"    while not os.path.exists({str(go)!r}): time.sleep(0.01)"
        cell = c.cells.submit(f"if team.rank == 1:\n{wait}\nteam.barrier()")
        said = ["ranks 0, 2 wait in barrier for rank 1"]
        until(lambda: rank_status.waits(c.cells.ask([0, 1, 2])) == said)
        states = ["waiting in barrier for rank 1", "running", "waiting in barrier for rank 1"]

        def wait_for_one():
            rows = view.rows(c)
            times = [dict(zip(view.KINDS, row.shares, strict=False)) for row in rows]
            waits = [each.get("waiting", 0.0) > 0 for each in times]
            known = all(row.shares for row in rows)
            right = [row.state for row in rows] == states and waits == [True, False, True]
            return known and right and rows

        table = until(wait_for_one)
        assert table[0].call == "team.barrier() (line 3)"
        assert [sum(row.shares) for row in table] == pytest.approx([1, 1, 1])
        go.touch()
        cell.wait()
        code = (
            "from mpi4py import MPI\nimport time\nif MPI.COMM_WORLD.rank == 0:\n"
            "    while True: time.sleep(0.001)\nelif MPI.COMM_WORLD.rank == 1:\n"
            "    MPI.COMM_WORLD.recv(source=0)"
        )
        c.client[:].execute(code, block=False)

        def settled():
            rows = view.rows(c)
            return rows if [r.kind for r in rows] == ["busy", "blocked", "idle"] else None

        rows = until(settled)
        recv = "MPI.COMM_WORLD.recv(source=0)"
        states = [f"blocked in {recv}, which nothing can interrupt", "idle"]
        assert [row.state for row in rows[1:]] == states  # rank 0 may use the core a little
        assert rows[0].call == "time.sleep(0.001) (line 4)"
        assert rows[1].call == "MPI.COMM_WORLD.recv(source=0) (line 6)"
        assert all(20 * 2**20 < row.memory < 2**31 for row in rows)
        time.sleep(0.5)  # a busy rank polls MPI; its load is measured over this time
        rows = until(settled)  # on a busy machine an engine may answer too late
        assert rows[1].processor > rows[2].processor
        clock.note("an engine that polls leaves of a core", 100 - rows[1].processor)
        clock.note("an idle engine needs of a core", rows[2].processor)

        first, head, *table = str(c).splitlines()
        assert first == "Cluster: 3 of 3 engines alive"
        assert head.split() == ["rank", "state", "call", "memory", "processor", "host", "pid"]
        assert [line.split()[0] for line in table] == ["0", "1", "2"]
        html = view.Table(c)._repr_html_()
        assert html.count("<tr>") == 4 and "<code>time.sleep(0.001) (line 4)</code>" in html

        # A stopped engine can't be asked, and this must not take long.
        os.kill(rows[2].pid, signal.SIGSTOP)
        try:
            until(lambda: view.rows(c)[2].state == "stopped by a signal")
            with clock.seconds("states are shown where an engine is stopped"):
                view.rows(c)
        finally:
            os.kill(rows[2].pid, signal.SIGCONT)
        until(lambda: view.rows(c)[2].state == "idle")

        os.kill(rows[1].pid, signal.SIGKILL)
        rows = until(lambda: (r := view.rows(c)) and r[1].kind == r[2].kind == "dead" and r)
        assert [row.state for row in rows[1:]] == [
            "dead: was killed by signal 9 (SIGKILL)",
            "dead: ended, with rank 1",
        ]
    assert str(c).startswith("Cluster: it was stopped\n")
    assert [row.state for row in view.rows(c)] == ["stopped"] * 3


# In a notebook ---------------------------------------------------------------------------------


class Notebook:
    """A notebook's kernel and the output of its cells."""

    def __init__(self):
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager()
        self.manager.start_kernel()
        self.kernel = self.manager.blocking_client()
        self.kernel.start_channels()
        self.kernel.wait_for_ready(timeout=SECONDS)

    def close(self):
        self.kernel.stop_channels()
        self.manager.shutdown_kernel()

    def run(self, code: str, interrupt_after: float | None = None):
        """The cell's reply, text and messages, and the seconds that it ran after an interrupt."""
        sent = []

        def interrupt():
            sent.append(time.monotonic())
            self.manager.interrupt_kernel()

        messages = []
        timer = threading.Timer(interrupt_after or 0, interrupt)
        if interrupt_after is not None:
            timer.start()
        reply = self.kernel.execute_interactive(
            code, output_hook=messages.append, timeout=SECONDS, allow_stdin=False
        )["content"]
        seconds = time.monotonic() - sent[0] if sent else None
        return reply, text_at_end(messages), messages, seconds

    def ok(self, code: str) -> str:
        reply, text, _, _ = self.run(code)
        assert reply["status"] == "ok", "\n".join(reply["traceback"])
        return text


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        notebook = Notebook()
        try:
            notebook.ok("from tutorial_dl import cluster\nc = cluster.start(n=3, timeout=300)")
            notebook.ok(
                "%%px\nimport time\nfrom mpi4py import MPI\nimport numpy as np\n"
                "from numba_kernels import Team\nrank = MPI.COMM_WORLD.rank\nkept = 7"
            )
            yield notebook
        finally:
            notebook.close()


@pytest.mark.thorough
def test_a_cluster_ends_when_jupyter_restarts_its_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = Notebook()
    try:
        for now in (False, True):  # True: by SIGKILL, as Jupyter ends a busy kernel
            notebook.ok("from tutorial_dl import cluster")
            _, text, *_ = notebook.run("%%px\n1")
            assert "no cluster yet: c = cluster.start(n=4)" in text
            notebook.ok("c = cluster.start(n=2, timeout=300)")
            total = "from mpi4py import MPI\nprint(MPI.COMM_WORLD.allreduce(1))"
            assert notebook.ok(f"%%px\n{total}") == "ranks 0, 1: 2"
            pids = json.loads(notebook.ok("print([e.pid for e in c.status()])"))
            ranks = [psutil.Process(pid) for pid in pids]
            notebook.manager.restart_kernel(now=now)
            notebook.kernel.wait_for_ready(timeout=SECONDS)
            assert_gone(ranks)
    finally:
        notebook.close()


def test_px_shows_output_and_keeps_its_options(notebook):
    text = notebook.ok("%%px\nprint('hello from', rank)")
    assert text.splitlines()[-3:] == [f"rank {rank}: hello from {rank}" for rank in range(3)]
    text = notebook.ok("%%px --targets 1 --no-stream\nprint('hello from', rank)")
    assert text == "rank 1: hello from 1"
    text = notebook.ok("%px kept + rank")
    assert text.splitlines()[-3:] == [f"rank {rank}: {7 + rank}" for rank in range(3)]
    notebook.ok("%%px --noblock --out later\nvalue = 5 * rank; print('worked')")
    assert notebook.ok("%pxresult") == "ranks 0-2: worked"
    assert notebook.ok("print(later.stdout)") == str(["worked\n"] * 3) + "\n"
    assert notebook.ok("later.display_outputs()") == "ranks 0-2: worked"
    assert "[0, 5, 10]" in notebook.ok("later.get(); print(c.client[:]['value'])")
    notebook.ok("%%px --local\nboth = 3")
    assert "3 [3, 3, 3]" in notebook.ok("print(both, c.client[:]['both'])")


def test_mpi_runs_on_some_ranks(notebook):
    text = notebook.ok("%%mpi --ranks 0,2\nprint('hello from', rank)")
    assert "hello from 0" in text and "hello from 2" in text and "hello from 1" not in text
    for wrong in ("--ranks 0-5", "--timeout 0", "--timeout soon", "--what 1"):
        _, text, _, _ = notebook.run(f"%%mpi {wrong}\nprint('hello')")
        assert "UsageError" in text and "hello" not in text


def test_mpi_has_a_time_limit(notebook):
    reply, *_ = notebook.run("%%mpi --timeout 3\ntime.sleep(100)")
    assert reply["ename"] == "CellTimeout"
    assert reply["evalue"].splitlines() == [
        "the cell took longer than 3 s: 3 of 3 ranks stopped, variables are kept",
        "ranks 0-2 were in time.sleep(100) (line 2)",  # as the notebook counts them
    ]


def test_mpi_draws_what_ranks_do(notebook):
    notebook.ok("%%px\nteam = Team(); x = np.ones(10, 'float32'); team.allreduce(x)")
    code = "%%mpi --trace --ranks 0-2\ntime.sleep(0.2 * rank)\nteam.allreduce(x)"
    _, _, messages, _ = notebook.run(code)
    pictures = [m for m in messages if "image/png" in m["content"].get("data", {})]
    assert len(pictures) == 1
    # Ranks 0 and 1 wait for rank 2, which computes for 0.4 s.
    notebook.ok(
        "from tutorial_dl.training import timeline\nfrom tutorial_dl.cluster import magics\n"
        "show, whole = magics.display, []\nmagics.display = whole.append"
    )
    notebook.ok(code)
    text = notebook.ok(
        "waits = [rank['waiting'] for rank in whole[0].shares()]; magics.display = show\n"
        "print(waits)"
    )
    first, second, late = json.loads(text)
    assert first > 0 < second
    clock.note("the late rank's share of waiting, of the first one's", late / first)
    clock.note("the second rank's share of waiting, of the first one's", second / first)
    reply, _, messages, _ = notebook.run("%%mpi --trace\nif rank == 1: 1 / 0\nteam.allreduce(x)")
    assert reply["ename"] == "CellError"
    assert any("image/png" in m["content"].get("data", {}) for m in messages)


def test_an_error_in_a_notebook(notebook):
    notebook.ok("%%px\nteam = Team(); x = np.ones(10, 'float32'); team.barrier()")
    reply, text, _, _ = notebook.run(
        "%%px\nif rank == 1: raise ValueError('bad batch')\nteam.barrier()"
    )
    assert reply["ename"] == "CellError"
    shows = "\n".join(reply["traceback"])
    assert shows.count("Traceback") == 1 and shows.startswith("rank 1: ValueError: bad batch")
    assert "rank 2: PeerError: rank 1 failed: ValueError: bad batch" in shows
    assert "Traceback" not in text  # the error is not streamed as well
    notebook.ok("%%px\nteam = Team(); team.barrier(); assert kept == 7")


@pytest.mark.thorough(but="team.barrier() if rank else time.sleep(100)")
@pytest.mark.parametrize(
    "code", ["team.barrier() if rank else time.sleep(100)", "while True: pass"]
)
def test_the_stop_button(notebook, code):
    notebook.ok("%%px\nteam = Team(); team.barrier()")
    reply, _, _, seconds = notebook.run("%%px\n" + code, interrupt_after=1.5)
    clock.note("the stop button ends a cell", seconds)
    assert reply["traceback"] == ["interrupted: 3 of 3 ranks stopped, variables are kept"]
    notebook.ok("%%px\nteam = Team(); team.barrier(); assert kept == 7")


def test_a_cluster_shows_itself_and_goes_on(notebook):
    _, text, messages, _ = notebook.run("c")
    assert "Cluster: 3 of 3 engines alive" in text
    [first] = [each for each in messages if each["msg_type"] == "display_data"]
    assert "<table>" in first["content"]["data"]["text/html"]
    name = first["content"]["transient"]["display_id"]
    message_id = notebook.kernel.execute("%%px\nif rank == 2: time.sleep(3.25)")
    updates, done = [], False
    deadline = time.monotonic() + SECONDS
    while not done and time.monotonic() < deadline:
        try:
            message = notebook.kernel.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if message["msg_type"] == "update_display_data":
            if message["content"]["transient"]["display_id"] == name:
                updates.append(message["content"]["data"]["text/plain"])
        elif message["parent_header"].get("msg_id") == message_id:
            done = message["content"].get("execution_state") == "idle"
    assert any("time.sleep(3.25) (line 2)" in text for text in updates)
    assert notebook.kernel.get_shell_msg(timeout=SECONDS)["content"]["status"] == "ok"

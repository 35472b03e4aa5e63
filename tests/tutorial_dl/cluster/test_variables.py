"""Variables of ranks, and functions that run on them; each error is one that helps."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tutorial_dl.cluster import cell_errors, engines, parcels, running_cell
from tutorial_dl.cluster.cell_errors import CellError, CellInterrupted, CellTimeout
from tutorial_dl.cluster.profile import Profile
from tutorial_dl.cluster.registry import Record

OUTSIDE = 4
LOCK = threading.Lock()


def of_notebook(function):
    """`function` as if a notebook had defined it: pickled by value, with what it uses."""
    function.__module__ = "__main__"
    return function


def shown(call) -> list[str]:
    """The lines that IPython shows for the error of `call`."""
    with pytest.raises((CellError, CellInterrupted)) as error:
        call()
    return error.value._render_traceback_()


# Variables -------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_values_by_rank(shared_cluster):
    c = shared_cluster
    assert c["rank"] == [0, 1, 2] and c["kept"] == [0, 10, 20]
    assert c[0]["rank"] == 0 and c[2]["rank"] == 2 and c[-1]["rank"] == 2
    assert c[np.int64(1)]["rank"] == 1
    assert c[1:]["rank"] == [1, 2] and c[[2, 0]]["rank"] == [2, 0] and c[0, 2]["kept"] == [0, 20]
    assert c["rank", "kept"] == [(0, 0), (1, 10), (2, 20)] and c[1]["rank", "kept"] == (1, 10)
    assert c["kept + comm.size"] == [3, 13, 23]
    assert [one["rank"] for one in c] == [0, 1, 2]
    assert repr(c[1:]).startswith("ranks 1, 2 of the cluster local")
    assert len(c) == 3 and len(c[1:]) == 2
    assert "rank" in c and "rank" in c[1] and "missing" not in c
    c[1].run("only_here = 1")
    assert "only_here" in c[1] and "only_here" not in c[0] and "only_here" not in c
    assert c[3:]["rank"] == [] and c[[]].run(len, "ab") == []
    c["times"] = 0
    c[[0, 0]].run("times += 1")
    assert c[[0, 0]]["times"] == [1, 1]


def test_values_sent_to_ranks(shared_cluster):
    c, array = shared_cluster, np.arange(20_000.0)  # more than parcels.LARGE
    c["x"] = array
    assert all((each == array).all() for each in c["x"]) and c["x.sum()"] == [array.sum()] * 3
    replies = c.cells.now[0].replies.values()  # they stay, without the arrays
    assert not any(hasattr(reply, "parcel") for reply in replies)
    c["x[0]"] = 7  # the ranks' own copies can be written to, as can what comes back
    back = c["x"][1]
    back[1] = 8
    assert back[0] == 7 and array[0] == 0 and c[1]["x[1]"] == 1
    c[1]["x"] = "other"
    assert [type(x) for x in c["x"]] == [np.ndarray, str, np.ndarray]
    c[0:2]["a, b"] = 1, 2
    assert c[0:2]["b"] == [2, 2] and c[2]["'b' in globals()"] is False
    c["f"] = of_notebook(lambda value: value + OUTSIDE)
    c.run("assert f(3) == 7")
    names = [set(each) for each in c["list(globals())"]]
    assert not any(name.startswith("_tutorial_dl") for each in names for name in each)
    del c["x"]
    assert c["'x' in globals()"] == [False] * 3


# A module that the ranks have and the notebook does not
ONLY_THERE = """
import sys, types
onlythere = sys.modules["onlythere"] = types.ModuleType("onlythere", "")
onlythere.__file__ = "onlythere.py"
exec("class Only: pass", onlythere.__dict__)
"""


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda c: c["nothing"], "ranks 0-2: NameError: name 'nothing' is not defined"),
        (lambda c: c[1]["kept.real.nothing"], "rank 1: AttributeError: 'int' object has no attr"),
        (lambda c: c["x ="], "c['x =']: the brackets take a name or an expression in quotes"),
        (lambda c: c[""], "c['']: the brackets take a name or an expression in quotes"),
        (lambda c: c[0][1], "c[1]: the brackets take a name or an expression in quotes"),
        (lambda c: c[0][1, 2], "c[(1, 2)]: the brackets take a name or an expression in quotes"),
        (lambda c: c["onlythere.Only()"], "what rank 0 sent can't be read in the notebook (Modul"),
        (lambda c: c[3], "there is no rank 3: the cluster has ranks 0-2"),
        (lambda c: c[[0, -4]], "there is no rank -4: the cluster has ranks 0-2"),
        (lambda c: c[1.5], 'c[1.5]: the brackets take a name in quotes (c["x"]), a rank (c[0]'),
        (lambda c: c[True], "c[True]: the brackets take a name in quotes"),
        (lambda c: c.__setitem__("2x", 1), "c['2x'] = ...: the brackets take a variable's name"),
        (lambda c: c.__setitem__(0, 1), "c[0] = ...: the brackets take a variable's name"),
        (lambda c: c.__setitem__("f()", 1), "c['f()'] = ...: the brackets take a variable's name"),
        (lambda c: c.__delitem__("a b"), "del c['a b']: the brackets take a variable's name"),
        (lambda c: c.__setitem__("x", LOCK), "a lock can't be sent to the ranks (cannot pickle"),
        (lambda c: c["comm"], "comm is an Intracomm, which can't be sent to the notebook (it has"),
        (lambda c: c["part"], 'part of it, such as c["part.epochs"], or compute in a %%px cell'),
        (lambda c: c.run(7), "run takes a function, got 7: c.run(function, *args)"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(shared_cluster, call, says):
    c = shared_cluster
    c.run("from types import SimpleNamespace; part = SimpleNamespace(comm=comm, epochs=3)")
    c.run(ONLY_THERE)
    [line] = shown(lambda: call(c))
    assert says in line and "CannotSend" not in line
    assert c["rank"] == [0, 1, 2]  # the next request is answered


def test_a_stopped_cluster_says_so():
    record = Record("gone", 2, "", "/nowhere")
    c = engines.Cluster(record, Profile("local", Path("local.toml")), 1.0)
    calls = (
        lambda: c["x"],
        lambda: c[0]["x"],
        lambda: c.__setitem__("x", 1),
        lambda: c.__delitem__("x"),
        lambda: c.run(len, []),
        lambda: c.run("x"),
    )
    for call in calls:
        [line] = shown(call)
        assert line.startswith("this cluster was stopped: c.restart() gives new engines")


@pytest.mark.parametrize("ask", [lambda c: c["rank"], lambda c: c.run("rank")])
def test_a_cell_says_which_rank_still_runs_an_earlier_one(
    ask, shared_cluster, monkeypatch, capsys, tmp_path
):
    c, end = shared_cluster, tmp_path / "end"
    words = running_cell.still

    def and_ends(cells, answers):
        end.touch()
        return words(cells, answers)

    monkeypatch.setattr(running_cell, "still", and_ends)
    monkeypatch.setattr(running_cell, "SOON", 0.3)
    wait = (
        f"import os\nfor _ in range(3000):\n    if os.path.exists({str(end)!r}): break\n"
        "    time.sleep(0.01)"
    )
    c.cells.submit(wait, [1])
    assert ask(c) in ([0, 1, 2], None)
    c["time.sleep(0.5)"]  # slow, but not busy with another cell
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("rank 1 still computes in ")  # not rank 0, nor 2
    assert second == "this cell runs after it; the stop button ends both"


def test_the_stop_button_ends_a_cell_and_the_one_before_it(shared_cluster, monkeypatch):
    c = shared_cluster
    first = c.cells.submit("ended = False\ntry: time.sleep(30)\nfinally: ended = True", [1])
    monkeypatch.setattr(running_cell, "SOON", 0.0)
    monkeypatch.setattr(running_cell, "still", lambda *_: signal.raise_signal(signal.SIGINT) or [])
    with pytest.raises(CellInterrupted):
        c[1].run("never = True")
    assert not first.pending()
    assert c[1]["ended"] is True and c[1]["'never' in globals()"] is False


# Functions -------------------------------------------------------------------------------------


def test_functions_run_on_ranks(shared_cluster, capsys):
    c, local = shared_cluster, 5

    @of_notebook
    def helper(value):
        return value + OUTSIDE

    @of_notebook
    def work(first, *, second=0):
        print("says", first)
        return rank, helper(first) + second + local  # noqa: F821

    assert c.run(work, 1, second=2) == [(0, 12), (1, 12), (2, 12)]
    assert capsys.readouterr().out.count("says 1") == 3
    assert c[2].run(work, 1) == (2, 10) and c[1:].run(work, 1) == [(1, 10), (2, 10)]
    assert c.run(of_notebook(lambda: local)) == [5, 5, 5]
    assert c.run(functools.partial(work, second=1), 1) == [(0, 11), (1, 11), (2, 11)]
    assert c.run(np.hypot, 3, 4) == [5.0] * 3
    together = of_notebook(lambda: comm.allreduce(rank))  # noqa: F821
    assert c.run(together) == [3, 3, 3]
    assert c["'first' in globals()"] == c["'local' in globals()"] == [False] * 3


def test_text_is_run_as_a_cell(shared_cluster):
    c = shared_cluster
    assert c.run("y = rank", ranks=[0, 2]) is None and c[0, 2]["y"] == [0, 2]
    assert c[1].run("y = 7", timeout=60) is None and c["y"] == [0, 7, 2]
    c.execute("y = 8", [1])
    assert c["y"] == [0, 8, 2]


@of_notebook
def fails_on_rank_1():
    team = Team()  # noqa: F821
    if rank == 1:  # noqa: F821
        raise ValueError("no data")
    team.allreduce(np.ones(3))


def test_a_function_that_fails_on_one_rank(shared_cluster):
    lines = shown(lambda: shared_cluster.run(fails_on_rank_1, timeout=300))
    assert lines[0] == "rank 1: ValueError: no data"
    assert "fails_on_rank_1" in "".join(lines) and "engine_values" not in "".join(lines)
    assert lines[-1] == "rank 2: PeerError: rank 1 failed: ValueError: no data"
    assert shared_cluster["(Team().allreduce(np.ones(1)) == 3).all()"] == [True] * 3


@of_notebook
def sleeps():
    while True:
        time.sleep(0.05)  # noqa: F821


def test_a_function_ends_at_its_timeout_and_at_ctrl_c(shared_cluster):
    c = shared_cluster
    with pytest.raises(CellTimeout, match=r"took longer than 0.5 s: 3 of 3 ranks stopped"):
        c.run(sleeps, timeout=0.5)
    with pytest.raises(ValueError, match="timeout must be more than 0 seconds"):
        c.run(sleeps, timeout=0)
    main = threading.main_thread().ident
    timer = threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    with pytest.raises(CellInterrupted, match="interrupted: 3 of 3 ranks stopped"):
        c.run(sleeps)
    timer.join()
    assert c["rank"] == [0, 1, 2]


def uses_a_lock():
    return LOCK


@pytest.mark.parametrize(
    "call, says",
    [
        (
            lambda c: c.run(of_notebook(uses_a_lock)),
            "uses_a_lock uses LOCK, a lock, which can't be",
        ),
        (
            lambda c: c.run(len, LOCK),
            "argument 1 of len is a lock, which can't be sent to the ranks",
        ),
        (lambda c: c.run(dict, a=LOCK), "argument a of dict is a lock, which can't be sent"),
        (
            lambda c: c.run(of_notebook(lambda: comm)),  # noqa: F821
            "function returned an Intracomm, which can't be sent to the notebook",
        ),
        (lambda c: c.run(np.hypot, 3), "ranks 0-2: TypeError: hypot() takes from 2 to 3"),
    ],
)
def test_what_cannot_be_run_is_one_line(shared_cluster, call, says):
    [line] = shown(lambda: call(shared_cluster))
    assert says in line and "CannotSend" not in line


# Parcels, and hints ----------------------------------------------------------------------------


def test_parcels_keep_large_arrays_apart():
    large, small = np.arange(10_000.0), np.arange(3.0)
    buffers, _ = parcels.pack({"large": large, "small": small})
    assert len(buffers) == 2 and buffers[1].nbytes == large.nbytes and len(buffers[0]) < 2000
    back = parcels.unpack([bytes(each) for each in buffers])
    assert (back["large"] == large).all() and back["large"].flags.writeable
    # A rank may change its array before the message has gone.
    buffers, _ = parcels.pack(large, on_rank=True)
    large[0] = 5
    assert parcels.unpack(buffers)[0] == 0


@pytest.mark.parametrize(
    "name, says",
    [
        ("x", 'x exists in the notebook, not on the ranks: mine["x"] = x sends it'),
        ("np", "np is imported in the notebook, not on the ranks: write import numpy as np in a"),
        ("T", "T is imported in the notebook, not on the ranks: write from tutorial_dl import Tra"),
        (
            "Dense",
            "Dense is imported in the notebook, not on the ranks: write from keras.layers ",
        ),
        ("here", 'here exists in the notebook, not on the ranks: mine["here"] = here sends it'),
        ("lock", "lock exists in the notebook, not on the ranks: make it in a %%px cell"),
        ("nothing", None),
        ("exit", None),  # IPython's own
    ],
)
def test_a_name_that_only_the_notebook_has(monkeypatch, name, says):
    from tutorial_dl import Trainer

    @of_notebook
    def here():
        pass

    layers, private = ModuleType("keras.layers"), ModuleType("keras.src.layers.core.dense")
    layers.Dense = private.Dense = type("Dense", (), {"__module__": private.__name__})
    monkeypatch.setitem(sys.modules, layers.__name__, layers)
    monkeypatch.setitem(sys.modules, private.__name__, private)
    cluster = object()
    space = {"x": 1, "np": np, "T": Trainer, "lock": LOCK, "exit": exit, "here": here}
    space["Dense"] = layers.Dense
    shell = SimpleNamespace(user_ns={**space, "mine": cluster}, user_ns_hidden={"exit": exit})
    monkeypatch.setattr(cell_errors, "get_ipython", lambda: shell)
    other = SimpleNamespace(name="PeerError", message="rank 1 failed: name 'x' is not defined")
    error = SimpleNamespace(name="NameError", message=f"name '{name}' is not defined")
    found = cell_errors.hints({0: other, 1: error}, cluster)
    assert (found == []) if says is None else (len(found) == 1 and found[0].startswith(says))
    assert cell_errors.hints({0: other}, cluster) == []

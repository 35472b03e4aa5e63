"""A live view with a clock and a cluster that the test moves, and what it looks like."""

from __future__ import annotations

import re
import types

import numpy as np
import pytest

from tutorial_dl.cluster import engine_main_thread, tables, view
from tutorial_dl.cluster.engine_main_thread import ASKED, EVERY, Shares
from tutorial_dl.cluster.engines import Engine
from tutorial_dl.cluster.protocol import Doing


def doing(state="running", call="f(x)", processor=90.0, **more):
    return Doing(state, call, 1 if call else 0, more.pop("mpi", False), **{
        "silent": 0.0, "memory": 200 * 2**20, "processor": processor} | more)  # fmt: skip


IDLE = doing("idle", "", 0.0)


class FakeCluster:
    """What a view asks of a cluster; tests set `phase`, `alive`, `answers` and `sent`."""

    name = "local"

    def __init__(self, n=4):
        self.n, self.phase, self.alive, self.sent = n, "running", [True] * n, False
        self.answers = dict.fromkeys(range(n), IDLE)
        self.places = [("host", None, 100 + rank, "") for rank in range(n)]
        self.asked = 0
        cell = types.SimpleNamespace(code="", pending=lambda: self.sent)
        deaths = types.SimpleNamespace(first=[], how="has ended")
        self.cells = types.SimpleNamespace(now={0: cell}, deaths=deaths, ask=self.ask)

    def status(self):
        return [Engine(rank, "host", 100 + rank, alive) for rank, alive in enumerate(self.alive)]

    def ask(self, ranks, seconds):
        self.asked += 1
        return {rank: self.answers[rank] for rank in ranks if rank in self.answers}


class Time:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Shown:
    """A live view, and the pages that it has shown."""

    def __init__(self, cluster):
        self.pages: list[str] = []
        self.clock = Time()
        self.live = view.Live(cluster, self.display, self.clock)

    def display(self, table):
        self.pages.append(table._repr_html_())
        return lambda table: self.pages.append(table._repr_html_())

    def updates_in(self, n: int) -> int:
        """Let n seconds pass; returns how many updates they brought."""
        before = len(self.pages)
        for _ in range(n):
            self.clock.now += view.EVERY
            self.live.look()
        return len(self.pages) - before

    @property
    def last(self) -> str:
        return re.sub(r"<[^>]*>", " ", self.pages[-1].partition("</style>")[2])


def states(cluster) -> list[str]:
    return [row.state for row in view.rows(cluster)]


# States ----------------------------------------------------------------------------------------


def waiting(missing=None, **more):
    wait = {"waits": "barrier", "waited": 2.0, "number": 3, "team": [0, 1, 2, 3]}
    return doing(call="team.barrier()", **wait | {"missing": missing} | more)


def test_states_in_words():
    c = FakeCluster()
    c.answers = {0: waiting([3]), 1: waiting(), 2: waiting([3]), 3: doing()}
    assert states(c) == ["waiting in barrier for rank 3"] * 3 + ["computing"]
    c.answers = {
        0: doing(call="comm.recv()", mpi=True, silent=9.0),
        1: doing(call="comm.recv()", mpi=True),
        2: doing(call="time.sleep(9)", processor=0.1),
    }
    blocked = "blocked in comm.recv(), which nothing can interrupt"
    assert states(c) == [blocked, "in an MPI call", "running", "no answer"]
    c.alive = [False, True, True, False]
    c.cells.deaths.first, c.cells.deaths.how = [3], "ended with exit status 1"
    assert [states(c)[k] for k in (0, 3)] == [
        "dead: ended, with rank 3",
        "dead: ended with exit status 1",
    ]


@pytest.mark.parametrize(
    "phase, said",
    [
        ("stopped", "Cluster: it was stopped"),
        ("left", "Cluster: this notebook has left it; cluster.join('local') connects again"),
        ("restarting", "Cluster: its engines are starting"),
        ("replaced", "Cluster: another notebook has restarted it; cluster.join('local') connects"),
    ],
)
def test_a_cluster_that_is_not_there_is_not_dead(phase, said):
    c = FakeCluster()
    c.phase, c.alive = phase, [False] * 4
    assert states(c) == [phase] * 4 and c.asked == 0
    assert str(view.Table(c)).startswith(said)


# A view's life ---------------------------------------------------------------------------------


def test_a_view_outlives_ten_minutes_and_is_seldom_updated_while_nothing_happens():
    c = FakeCluster()
    shown = Shown(c)
    assert 600 / view.IDLE <= shown.updates_in(600) <= 600 / view.IDLE + 2
    while not shown.updates_in(1):
        pass
    c.sent, c.answers[1] = True, doing()  # just after an update
    assert shown.updates_in(3) == 3 and "computing" in shown.last
    c.sent, c.answers[1] = False, IDLE
    shown.updates_in(2)
    assert "computing" not in shown.last and "4 of 4 engines alive" in shown.last
    assert 9 <= shown.updates_in(50) <= 11


def test_cells_of_others_are_seen():
    """A rank that was seen in a cell is asked each second, whoever sent the cell."""
    c = FakeCluster()
    shown = Shown(c)
    c.answers[2] = doing()
    shown.updates_in(6)
    assert "computing" in shown.last and shown.updates_in(5) == 5


def test_what_happens_is_shown_within_a_second():
    c = FakeCluster()
    shown = Shown(c)
    shown.updates_in(1)
    for phase, words in [
        ("restarting", "its engines are starting"),
        ("running", "4 of 4 engines alive"),
        ("replaced", "another notebook has restarted it"),
        ("running", "4 of 4 engines alive"),
    ]:
        c.phase = phase
        assert shown.updates_in(1) == 1 and words in shown.last
    c.alive, c.cells.deaths.first = [False] * 4, [2]
    assert shown.updates_in(1) == 1 and "0 of 4 engines alive" in shown.last
    assert "dead: has ended" in shown.last


def test_a_stopped_cluster_ages_its_view_until_it_is_started_again():
    c = FakeCluster()
    shown = Shown(c)
    shown.updates_in(1)
    c.phase = "left"
    assert shown.updates_in(60) == 1 and "this notebook has left the cluster" in shown.last
    c.phase = "stopped"  # by another notebook
    assert shown.updates_in(60) == 1
    assert "last updated" in shown.last and "the cluster was stopped" in shown.last
    assert 'class="old"' in shown.pages[-1] and "dead" not in shown.last
    c.phase = "restarting"
    assert shown.updates_in(1) == 1 and "last updated" not in shown.last


def test_a_newer_view_ends_an_older_one():
    c = FakeCluster()
    shown = Shown(c)
    shown.live.end("a newer view was shown")
    assert "last updated" in shown.last and "a newer view was shown" in shown.last
    c.sent = True
    assert shown.updates_in(100) == 0
    shown.live.end("again")  # only once
    assert len(shown.pages) == 2


def test_what_goes_wrong_ends_a_view_with_its_reason(monkeypatch):
    c = FakeCluster()
    shown = Shown(c)
    monkeypatch.setattr(view, "EVERY", 0.001)

    def wrong(left=[10]):  # noqa: B006
        left[0] -= 1
        if left[0] == 0:
            shown.live.ended.set()  # so that the test ends
        raise KeyError("no such thing")

    c.status = wrong
    shown.live.run()
    assert "it can't be updated: KeyError: 'no such thing'" in shown.last.replace("&#x27;", "'")


def test_an_update_that_does_not_come_is_seen_on_the_page():
    """The page itself says so when the next update is overdue, and the next one is due earlier."""
    c = FakeCluster()
    shown = Shown(c)
    late = float(re.search(r"--late: (\d+)s", shown.pages[-1])[1])
    assert view.IDLE < late < 60
    c.answers[0] = doing()
    shown.updates_in(6)
    late = float(re.search(r"--late: (\d+)s", shown.pages[-1])[1])
    assert view.EVERY < late < 10
    assert re.search(r"no news since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", shown.last)
    for rule in ("tdl-ages", "tdl-hides", "tdl-shows"):  # each is used and exists
        assert shown.pages[-1].count(rule) == 2
    assert str(view.Table(c)).count("updated") == 0  # a plain table claims nothing


# Shares ----------------------------------------------------------------------------------------


def test_only_cells_with_a_team_have_shares():
    c = FakeCluster(2)
    c.answers = dict.fromkeys(range(2), doing(shares=[1.0, 0.0, 0.0]))
    assert "computing / talking" not in str(view.Table(c))
    c.answers[1] = doing(shares=[0.25, 0.25, 0.5], talks=True)
    table = view.Table(c)
    assert [row.shares for row in table.rows] == [(1, 0, 0), (0.25, 0.25, 0.5)]
    assert "100% / 0% / 0%" in str(table) and "25% / 25% / 50%" in str(table)
    html = table._repr_html_()
    assert 'title="computing 25%, talking 25%, waiting 50%"' in html
    assert re.findall(r'<i style="width:(\d+)%', html) == ["100", "0", "0", "25", "25", "50"]


@pytest.fixture
def sampled(monkeypatch):
    """sampled(what): what an engine says of its cell if it does `what` at one look after another.

    `held`: seconds, by look, for which something keeps Python's lock.
    """
    time, runs = Time(), []
    thread = lambda target, **_: types.SimpleNamespace(start=lambda: runs.append(target))  # noqa: E731
    monkeypatch.setattr(engine_main_thread.threading, "Thread", thread)

    def says(what, held=()):
        looks, held, seen = iter(what), dict(held), []
        time.now, began = 1000.0, len(runs)

        def sleep(seconds):
            time.now += seconds + held.pop(len(seen), 0.0)

        def look():
            kind = next(looks, None)
            if kind is None:
                shares.end()
                return "computing"
            seen.append(kind)
            return kind

        clock = types.SimpleNamespace(monotonic=time, sleep=sleep)
        monkeypatch.setattr(engine_main_thread, "time", clock)
        shares = Shares(look, lambda: 7, ("computing", "talking", "waiting"))
        shares.begin()
        assert shares.asked() == {"shares": [], "talks": False}
        shares.asked()
        assert len(runs) == began + 1  # one thread, however often it is asked
        runs[-1]()
        return shares.asked(), time.now - 1000

    return says


def test_an_engine_knows_what_it_did_in_the_last_seconds(sampled):
    said, _ = sampled(["computing"] * 9 + ["talking"] * 20 + ["waiting"] * 30)
    assert said["shares"] == pytest.approx([1 / 6, 1 / 3, 1 / 2]) and said["talks"]
    # Nobody has asked for a while: the thread ends by itself.
    said, passed = sampled(["computing"] * 100 + ["waiting"] * 10_000)
    assert passed < ASKED + 1
    assert said["shares"] == pytest.approx([100 * EVERY / passed, 0, 1 - 100 * EVERY / passed])
    # Compiled code that keeps Python's lock is computing, whatever comes after it.
    said, _ = sampled(["waiting"] * 5, held={2: 3.0})
    assert said["shares"] == pytest.approx([3.0 + EVERY, 0, 5 * EVERY] / np.float64(3 + 6 * EVERY))
    said, _ = sampled(["computing"] * 5)
    assert not said["talks"]


# Colours ---------------------------------------------------------------------------------------

# A page, every other row, and the row that is pointed at, in JupyterLab's light and dark theme
PAGES = [["#ffffff", "#cfd8dc", "#e1f5fe"], ["#111111", "#212121", "#0e2f3e"]]


def luminance(colour: str) -> float:
    """WCAG 2.1's relative luminance."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG 2.1's contrast ratio; 4.5 is its level AA for text."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def aged(colour: str, page: str, opacity: float) -> str:
    """A colour that CSS has greyed out on a page."""
    parts = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    grey = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))
    below = (int(page[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(opacity * grey + (1 - opacity) * c):02x}" for c in below)


@pytest.mark.parametrize("which", [0, 1])
def test_colours_are_readable(which):
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # WebAIM's checker
    [opacity] = {float(value) for value in re.findall(r"opacity: ([0-9.]+)", view.AGED)}
    for name, pair in tables.COLOURS.items():
        for page in PAGES[which]:
            assert contrast(pair[which], page) >= 4.5, f"{name} on {page}"
            assert contrast(aged(pair[which], page, opacity), page) >= 4.5, f"old {name} on {page}"


def test_each_state_has_a_colour():
    kinds = ["idle", "busy", "waiting", "blocked", "halted", "silent", "dead", "gone"]
    assert {view.COLOURS.get(kind, kind) for kind in kinds} <= tables.COLOURS.keys()


# Lists of clusters -----------------------------------------------------------------------------


def test_clusters_are_listed_in_a_table():
    entries = tables.Entries(
        [
            tables.Entry("local", 4, "local", "here", "running", 90.0, None),
            tables.Entry("a<b", 128, "slurm", "login1", "on login1", 3 * 3600 + 60.0, None),
        ]
    )
    assert repr(entries).splitlines() == [
        "name   engines  profile  host    state      age",
        "local  4        local    here    running    1 min",
        "a<b    128      slurm    login1  on login1  3 h 1 min",
    ]
    html = entries._repr_html_()
    assert html.count("<tr>") == 3 and "<td>a&lt;b</td>" in html and "Entry" not in html
    job = tables.Entries([tables.Entry("j", 2, "slurm", "h", "running", 5.0, "31")])
    assert repr(job).splitlines()[1] == "j     2        slurm    h     running  5 s  job 31"
    none = tables.Entries()
    assert (
        none == [] and repr(none) == "no cluster is running" and "<table" not in none._repr_html_()
    )

"""Layouts: counts by the formula, roles by hand, and as many workers as possible on one node.

The formula is `R = [1] + G F (M + N_M N_W D)` with M = 0, 1 or N_M + 1 masters per fold.
"""

from __future__ import annotations

import doctest
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tutorial_dl import Layout
from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting
from tutorial_dl.layout import axes, counts, hub_ranks, roles, tree, worker_ranks
from tutorial_dl.layout import layout as layout_file
from tutorial_dl.words import counted


@pytest.mark.parametrize(
    "module", [axes, counts, roles, tree, layout_file], ids=lambda m: m.__name__
)
def test_the_examples(module):
    found = doctest.testmod(module, extraglobs={"Layout": Layout})
    assert found.attempted and not found.failed


# Counts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "ranks", "in_talk"),
    [
        # (groups, folds, masters, workers, devices), by hand
        ((1, 1, 1, 1, 1), 2, 2),
        ((1, 1, 1, 3, 1), 4, 4),
        ((1, 1, 1, 2, 2), 5, 5),
        ((1, 1, 2, 2, 1), 7, 5),  # 2 + 1 masters
        ((1, 1, 2, 3, 2), 15, 13),
        ((1, 1, 0, 4, 1), 4, 5),
        ((1, 1, 0, 3, 2), 6, 7),
        ((2, 1, 1, 3, 1), 9, 7),  # 1 + 2 (1 + 3)
        ((2, 5, 1, 3, 2), 71, 61),  # 1 + 10 (1 + 6)
        ((3, 4, 2, 4, 4), 421, 385),  # 1 + 12 (3 + 32)
        ((4, 1, 0, 2, 1), 9, 9),
        ((10, 5, 4, 8, 4), 6651, 6401),  # 1 + 50 (5 + 128)
    ],
)
def test_ranks(numbers, ranks, in_talk):
    layout = Layout(*numbers)
    assert (layout.ranks, layout.nodes_in_talk) == (ranks, in_talk)
    assert layout.search == (ranks > 1 and numbers[:2] != (1, 1))


def test_a_search_of_one_group_has_a_coordinator_too():
    layout = Layout(workers=2, search=True)
    assert layout.ranks == 4 and layout.roles()[0].role == "coordinator"
    assert layout.nodes_in_talk == 3


def numbers_of(kind):
    return [(r.rank, r.master, r.worker, r.device) for r in kind]


def test_roles_by_hand():
    top, first, *below = Layout(masters=2, workers=2, devices=2).roles()
    assert (top.role, top.master, first.role, first.master) == ("master", None, "sub_master", 0)
    assert [r.role for r in below].count("worker") == 8 and below[4].role == "sub_master"
    assert below[4][:1] == (6,) and below[4].master == 0
    assert numbers_of(below[:4]) == [(2, 1, 0, 0), (3, 1, 0, 1), (4, 1, 1, 0), (5, 1, 1, 1)]
    assert numbers_of(below[5:]) == [(7, 6, 2, 0), (8, 6, 2, 1), (9, 6, 3, 0), (10, 6, 3, 1)]
    assert {(r.group, r.fold) for r in below} == {(0, 0)}


def test_roles_without_a_master():
    found = Layout(masters=0, workers=2, devices=2).roles()
    assert {r.role for r in found} == {"worker"}
    assert numbers_of(found) == [(0, None, 0, 0), (1, None, 0, 1), (2, None, 1, 0), (3, None, 1, 1)]
    assert worker_ranks(found, 2) == [0, 1, 2, 3]  # all ranks reduce together
    assert hub_ranks(found, 0) == [0]


def test_roles_of_a_search():
    found = Layout(groups=2, folds=2, workers=1).roles()
    assert (found[0].role, found[0].group, found[0].fold) == ("coordinator", None, None)
    of = [(r.role, r.group, r.fold, r.master) for r in found[1:]]
    blocks = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert of[::2] == [("master", *block, None) for block in blocks]
    assert of[1::2] == [("worker", *b, 1 + 2 * n) for n, b in enumerate(blocks)]
    assert hub_ranks(found, 0) == [0, 1, 3, 5, 7] and hub_ranks(found, 3) == [3, 4]
    assert worker_ranks(found, 0) == []
    # Without masters, the first rank of each group represents it.
    assert hub_ranks(Layout(groups=2, masters=0, workers=3).roles(), 0) == [0, 1, 4]


numbers = some.builds(
    Layout,
    groups=some.integers(1, 3),
    folds=some.integers(1, 3),
    masters=some.integers(0, 3),
    workers=some.integers(1, 4),
    devices=some.integers(1, 3),
    search=some.sampled_from([None, True]),
)


@settings(max_examples=60, deadline=None)
@given(numbers, some.randoms())
def test_whatever_the_nodes_all_have_their_place(layout, random):
    nodes = [random.randrange(4) for _ in range(layout.ranks)]
    found = layout.roles(nodes)
    assert [r.rank for r in found] == list(range(layout.ranks))
    counts = Counter(r.role for r in found)
    blocks = layout.groups * layout.folds
    subs = layout.masters if layout.masters >= 2 else 0
    assert counts["coordinator"] == layout.search
    assert counts["master"] == (blocks if layout.masters else 0)
    assert counts["sub_master"] == blocks * subs
    assert counts["worker"] == blocks * max(layout.masters, 1) * layout.workers * layout.devices
    first = "coordinator" if layout.search else "master" if layout.masters else "worker"
    assert found[0].role == first
    # Every worker has each device once, and all its ranks belong to one master of its block.
    workers = {}
    for r in found:
        if r.role == "worker":
            workers.setdefault((r.group, r.fold, r.worker), []).append(r)
    assert len(workers) == blocks * max(layout.masters, 1) * layout.workers
    for ranks in workers.values():
        assert [r.device for r in ranks] == list(range(layout.devices))
        (master,) = {r.master for r in ranks}
        if layout.masters:
            over = found[master]
            assert over.role == ("sub_master" if subs else "master")
            assert (over.group, over.fold) == (ranks[0].group, ranks[0].fold)
            assert worker_ranks(found, ranks[-1].rank) == [r.rank for r in ranks]
    # A star is a master with the first ranks of `workers` workers, or a master of sub-masters.
    for r in found:
        if r.role in ("master", "sub_master"):
            hub, *leaves = hub_ranks(found, r.rank)
            assert hub == r.rank and all(found[leaf].master == hub for leaf in leaves)
            top = r.role == "master" and subs
            assert len(leaves) == (subs if top else layout.workers)
            assert all(found[leaf].device in (0, None) for leaf in leaves)


# Axes ------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(some.lists(some.integers(1, 4), min_size=1, max_size=4))
def test_axes_are_a_mixed_radix(sizes):
    named = dict(zip("abcd", sizes, strict=False))
    grid = np.arange(np.prod(sizes)).reshape(sizes)
    for number in range(grid.size):
        place = np.unravel_index(number, sizes)
        assert tuple(axes.coordinates(named, number).values()) == place
        for axis, name in enumerate(named):
            line = (*place[:axis], slice(None), *place[axis + 1 :])
            assert axes.along(named, name, number) == grid[line].tolist()
    with pytest.raises(ValueError, match=f"number must be from 0 to {grid.size - 1}"):
        axes.coordinates(named, grid.size)


@settings(max_examples=40, deadline=None)
@given(numbers, some.randoms())
def test_coordinates_by_name(layout, random):
    nodes = [random.randrange(3) for _ in range(layout.ranks)]
    found, places = layout.roles(nodes), layout.coordinates(nodes)
    computing = [tuple(place.values()) for place in places if "device" in place]
    assert sorted(computing) == list(product(*map(range, layout.axes.values())))
    for role, place in zip(found, places, strict=True):
        if role.role == "worker":
            master, worker = divmod(role.worker, layout.workers)
            assert tuple(place.values()) == (role.group, role.fold, master, worker, role.device)
            for name, size in layout.axes.items():
                team = layout.along(name, role.rank, nodes)
                assert [places[rank][name] for rank in team] == list(range(size))
                assert all(places[rank] | {name: 0} == place | {name: 0} for rank in team)
        else:
            assert len(place) == {"coordinator": 0, "master": 2, "sub_master": 3}[role.role]
            below = [one.rank for one in found if one.master == role.rank]
            assert all(place.items() <= places[rank].items() for rank in below)
            assert layout.along("device", role.rank, nodes) == [role.rank]


def test_an_axis_can_be_divided():
    class InModels(Layout):
        @property
        def axes(self):
            axes = super().axes
            return axes | {"device": self.devices // 2, "tensor": 2}

    layout = InModels(masters=0, workers=2, devices=4)
    assert [tuple(place.values())[-3:] for place in layout.coordinates()] == [
        *product(range(2), range(2), range(2))
    ]
    assert layout.along("tensor", 5) == [4, 5] and layout.along("device", 5) == [5, 7]
    assert layout.along("worker", 5) == [1, 5]
    with pytest.raises(ValueError, match="axis 'data': expected one of group, fold, master"):
        layout.along("data", 0)


# Nodes -----------------------------------------------------------------------------------------


def whole(found, nodes):
    """The number of workers with all their ranks on one node."""
    of = {}
    for r in found:
        if r.worker is not None:
            of.setdefault((r.group, r.fold, r.worker), set()).add(nodes[r.rank])
    return sum(len(where) == 1 for where in of.values())


def arrangements(letters):
    """All distinct orders of the letters."""
    if not letters:
        yield ()
    for letter in sorted(set(letters)):
        rest = letters.replace(letter, "", 1)
        for others in arrangements(rest):
            yield (letter, *others)


SMALL = [
    (Layout(workers=2, devices=2), "aabb"),
    (Layout(workers=3, devices=2), "aabbcc"),
    (Layout(workers=2, devices=3), "aaabbb"),
    (Layout(masters=2, workers=1, devices=2), "xxaabb"),  # x: sub-masters
    (Layout(masters=0, workers=3, devices=2), "aabbcc"),
    (Layout(groups=2, workers=1, devices=2), "xxaabb"),  # x: masters
]


@pytest.mark.parametrize(("layout", "letters"), SMALL, ids=lambda x: str(x).split(":")[0])
def test_as_many_workers_are_whole_as_any_way_has(layout, letters):
    """Compare with all ways to distribute the other ranks, on every pattern of three nodes."""
    leads = layout.ranks - len(letters)  # rank 0, if it is a master or a coordinator
    ways = [("x",) * leads + order for order in arrangements(letters)]
    best_of = {}
    for nodes in product(range(3), repeat=layout.ranks):
        # Apart from rank 0, only the number of ranks of each node matters.
        key = (nodes[0] if leads else None, tuple(sorted(nodes[leads:])))
        if key not in best_of:
            alike = (*nodes[:leads], *sorted(nodes[leads:]))
            best_of[key] = max(
                sum(
                    len({alike[rank] for rank, to in enumerate(way) if to == worker}) == 1
                    for worker in set(letters) - {"x"}
                )
                for way in ways
            )
        if hash(nodes) % 5 == 0 or layout.ranks < 6:
            assert whole(layout.roles(nodes), nodes) == best_of[key], nodes


def test_places_on_nodes_by_hand():
    layout = Layout(masters=2, workers=3, devices=2)
    found = layout.roles([0] * 8 + [1] * 7)
    assert found == layout.roles()  # nothing to improve: 1 + 1 + 6 ranks, and 1 + 6
    names = ["a", "b", "c"] * 5  # round robin, as some batch systems place ranks: five on each
    found = layout.roles(names)
    assert whole(found, names) == 6 and found[0].role == "master"
    # A sub-master and a worker fit on one node; 1 + 3 x 2 = 7 ranks do not.
    for sub in (r for r in found if r.role == "sub_master"):
        assert any(r.master == sub.rank and names[r.rank] == names[sub.rank] for r in found)


def test_a_star_that_fits_on_a_node_is_there():
    nodes = [0] * 6 + [1] * 5 + [2] * 5 + [3] * 5  # three sub-masters with 4 workers each
    layout = Layout(masters=3, workers=4)
    assert layout.ranks == 16
    nodes = nodes[: layout.ranks]
    found = layout.roles(nodes)
    for sub in (r.rank for r in found if r.role == "sub_master"):
        assert len({nodes[r] for r in hub_ranks(found, sub)}) == 1


def test_nodes_for_other_ranks_are_an_error():
    with pytest.raises(ValueError, match=r"^3 ranks, but .* need 4; 3 fit masters 1 x workers 2"):
        Layout(workers=3).roles([0, 0, 0])


# What does not fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"workers": 0}, "workers must be an integer of at least 1, got 0$"),
        ({"masters": -1}, "masters must be an integer of at least 0, got -1$"),
        ({"devices": 1.5}, "devices must be an integer of at least 1, got 1.5$"),
        ({"folds": True}, "folds must be an integer of at least 1, got True$"),
        ({"groups": "2"}, "groups must be an integer of at least 1, got '2'$"),
        ({"groups": 2, "search": False}, "groups 2 x folds 1 without a search"),
    ],
)
def test_wrong_numbers(numbers, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        Layout(**numbers)
    assert Layout(workers=np.int64(3)) == Layout(workers=3)


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ({"ranks": 2}, {"workers": 1}),
        ({"ranks": 4}, {"workers": 3}),
        ({"ranks": 7, "masters": 2}, {"masters": 2, "workers": 2}),
        ({"ranks": 15, "masters": 2, "devices": 2}, {"masters": 2, "workers": 3, "devices": 2}),
        ({"ranks": 5, "devices": 2}, {"workers": 2, "devices": 2}),
        ({"ranks": 5, "workers": 2}, {"workers": 2, "devices": 2}),
        ({"ranks": 7, "workers": 2, "devices": 1}, {"masters": 2, "workers": 2}),
        ({"ranks": 4, "masters": 0}, {"masters": 0, "workers": 4}),
        ({"ranks": 1, "masters": 0}, {"masters": 0}),
        ({"ranks": 5, "masters": 1, "workers": 2, "devices": 2}, {"workers": 2, "devices": 2}),
        ({"ranks": 19, "groups": 2, "folds": 3}, {"groups": 2, "folds": 3, "workers": 2}),
    ],
)
def test_what_is_not_said_follows(said, right):
    layout = Layout.for_ranks(**said)
    assert layout == Layout(**right) and layout.ranks == said["ranks"]


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ({"ranks": 1}, ["1 rank, but an asynchronous run needs a master and a worker: at least 2"]),
        ({"ranks": 0}, ["0 ranks, but an asynchronous run"]),
        ({"ranks": 1, "masters": 2}, ["a master and a worker: at least 5"]),
        # 1 + 2 (1 + w): 5, 7, 9, ...
        ({"ranks": 8, "masters": 2}, ["8 ranks", "7 ranks for", "9 ranks for", "8 fit masters 1"]),
        ({"ranks": 7, "devices": 4}, ["5 ranks for", "9 ranks for", "workers 2 x devices 3"]),
        (
            {"ranks": 8, "workers": 3, "devices": 2},
            ["for any number of masters", "7 ranks for masters 1 x", "15 ranks for masters 2 x"],
        ),
        (
            {"ranks": 6, "masters": 1, "workers": 2, "devices": 2},
            ["6 ranks, but masters 1 x workers 2 x devices 2 need 5", "nearest that fit"],
        ),
        ({"ranks": 20, "groups": 2, "folds": 3}, ["groups 2 x folds 3, ", "19 ranks", "25 ranks"]),
    ],
)
def test_ranks_that_fit_nothing(said, parts):
    with pytest.raises(ValueError) as error:
        Layout.for_ranks(**said)
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


@settings(max_examples=60, deadline=None)
@given(numbers, some.integers(1, 40))
def test_what_a_message_names_does_fit(layout, ranks):
    """Every 'N fit masters ...' and 'N ranks for masters ...' in a message is true."""
    if layout.ranks == ranks:
        assert layout.check_ranks(ranks) is None
        return
    with pytest.raises(ValueError) as error:
        layout.check_ranks(ranks)
    told, _, near = str(error.value).partition("; ")
    assert told == f"{counted(ranks, 'rank')}, but {counts.in_words(layout)} need {layout.ranks}"
    named = near.removeprefix("nearest that fit: ").replace(", or ", ", ").split(", ")
    named = named if near else []  # no smaller number of anything needs fewer ranks
    exact = f"{ranks} fit" in near
    for one in named:
        count, _, what = one.partition(" for ")
        what = what or one.removeprefix(f"{ranks} fit ")
        given = {pair.split()[0]: int(pair.split()[1]) for pair in what.split(" x ")}
        other = Layout(**given, search=layout.search)
        assert other.ranks == (ranks if exact else int(count.split()[0]))
        assert sum(getattr(layout, name) != value for name, value in given.items()) == 1
    if not exact:  # no layout that differs in one number fits exactly
        for name, value in product(("masters", "workers", "devices"), range(1, ranks + 1)):
            given = {n: getattr(layout, n) for n in ("groups", "folds", "masters", "workers")}
            given |= {"devices": layout.devices, "search": layout.search, name: value}
            assert Layout(**given).ranks != ranks


# Text and figures ------------------------------------------------------------------------------


def test_a_tree_leaves_out_what_is_too_much():
    lines = str(Layout(workers=12)).splitlines()
    assert lines[0] == "masters 1 x workers 12 x devices 1: 13 ranks"
    assert lines[-2:] == ["├─ ... 5 more", "└─ worker 11     rank 12"] and len(lines) == 10
    lines = str(Layout(groups=2, masters=0, workers=2, devices=8)).splitlines()
    assert lines[1:4] == [
        "coordinator           rank 0",
        "├─ group 0, fold 0",
        "│  ├─ worker 0        ranks 1 to 8",
    ]
    assert str(Layout(masters=0)).splitlines()[1] == "worker 0    rank 0"


def test_a_tree_has_workers_in_their_order_wherever_their_masters_are():
    nodes = [rank % 2 for rank in range(15)]
    lines = Layout(masters=2, workers=3, devices=2).text(nodes).splitlines()
    assert [line.split("worker ")[1].split()[0] for line in lines if "worker " in line] == [
        *"012345"
    ]


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_figure_has_each_rank_once_and_the_nodes():
    layout = Layout(masters=2, workers=2, devices=2)
    drawn = Counter(texts(layout.figure()))
    assert all(drawn[str(rank)] == 1 for rank in range(11))
    assert drawn["master"] == drawn["sub-masters"] == drawn["workers"] == 1
    assert all(drawn[f"worker {worker}"] == 1 for worker in range(4))
    with_nodes = Counter(texts(layout.figure(["left"] * 6 + ["right"] * 5)))
    assert all(with_nodes[str(rank)] == 2 for rank in range(11))
    assert with_nodes["left"] == with_nodes["right"] == 1
    assert not any("dashed" in text for text in with_nodes)
    assert any("dashed" in text for text in texts(Layout(devices=2).figure([0, 1, 2])))


@pytest.mark.parametrize(
    "layout",
    [
        Layout(masters=0),
        Layout(masters=0, workers=3, devices=2),
        Layout(groups=2, folds=2, masters=0, workers=3),
        Layout(groups=3, folds=4, masters=2, workers=4, devices=4),
        Layout(workers=20, devices=64),
    ],
    ids=lambda layout: str(layout).splitlines()[0],
)
def test_any_layout_can_be_drawn(layout):
    nodes = [rank // 16 for rank in range(layout.ranks)]
    figure = plotting.draw_layout(layout, nodes, title="Who is who")
    assert figure.axes[0].get_title("left") == "Who is who"
    width, height = figure.get_size_inches()
    assert width < 22 and height < 8
    if layout.ranks > 100:
        assert any("more" in text for text in texts(figure))
    if layout.ranks == 1:
        assert "image/png" in layout._repr_mimebundle_()  # as a notebook does
        with style.axes() as ax:
            assert plotting.draw_layout(layout, ax=ax) is ax.figure

"""Schedules of pipelines: complete, free of deadlock, with the bubbles and memory of the papers."""

import doctest
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tutorial_dl.model_parallel import check, draw_schedule, held, schedules, simulate
from tutorial_dl.model_parallel.checking import as_far_as_it_runs
from tutorial_dl.model_parallel.schedules import (
    SCHEDULES,
    Action,
    Schedule,
    ScheduleError,
    gpipe,
    interleaved,
    named,
    of,
    one_f_one_b,
    zb_h1,
)
from tutorial_dl.model_parallel.simulating import played

SIZES = list(product(range(1, 7), range(1, 13)))  # stages, micro-batches


def test_the_example():
    found = doctest.testmod(schedules)
    assert found.attempted and not found.failed


def test_actions_print_and_parse():
    for words in ("F0", "B12", "W3.1", "send F3", "recv B10.2"):
        assert str(Action.parse(words)) == words
    assert Action.parse("recv B10.2") == Action("B", 10, 2, "recv")
    for words in ("G1", "F", "send W1", "F1.", "-1", "F1 F2"):
        with pytest.raises(ScheduleError, match="is no action: expected F3, B3 or W3"):
            Action.parse(words)


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_rank_computes_everything_once(name):
    for stages, batches in SIZES:
        chunks = 3 if name == "interleaved" else 1
        if name == "interleaved" and batches % stages:
            continue
        made = check(named(name, stages, batches, chunks))
        for rank in range(stages):
            expected = {Action(*one) for one in product("FBW", range(batches), range(chunks))}
            assert set(made.computed(rank)) == expected
            assert len(made.computed(rank)) == len(expected)
        words = [" ".join(map(str, actions)) for actions in made.ranks]
        assert of(words, name).ranks == made.ranks


@given(
    some.integers(1, 6), some.integers(1, 12),
    some.floats(0.5, 2), some.floats(0.5, 2), some.floats(0.5, 2),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_gpipe_and_1f1b_have_the_bubble_of_the_formula(stages, batches, f, b, w):
    """(S - 1) (F + B + W) seconds, (S - 1) / (m + S - 1) of the time, whatever F, B and W are."""
    for make in (gpipe, one_f_one_b):
        table = simulate(make(stages, batches), f, b, w)
        assert table.seconds == pytest.approx((batches + stages - 1) * (f + b + w))
        assert table.bubble == pytest.approx((stages - 1) / (batches + stages - 1))


@given(some.integers(1, 5), some.integers(1, 4), some.integers(1, 4), some.floats(0.5, 2))
@settings(max_examples=40, deadline=None)
def test_chunks_divide_the_bubble(stages, groups, chunks, f):
    """A stage of a v-th of the layers takes 1 / v of the time; so does what is lost."""
    batches, b, w = groups * stages, 1.3, 0.7
    table = simulate(interleaved(stages, batches, chunks), f / chunks, b / chunks, w / chunks)
    expected = (batches + (stages - 1) / chunks) * (f + b + w)
    assert table.seconds == pytest.approx(expected)
    assert len(interleaved(stages, batches, chunks).ranks[0]) >= 3 * batches * chunks


def test_zero_bubble_h1():
    """It loses (S - 1) (F + B - W), a third of 1F1B's, if there are as many micro-batches."""
    for stages, batches in SIZES:
        lost = simulate(zb_h1(stages, batches)).seconds - 3 * batches
        plain = simulate(one_f_one_b(stages, batches)).seconds - 3 * batches
        if batches >= stages:
            assert lost == pytest.approx(stages - 1) and plain == 3 * (stages - 1)
        assert lost <= plain
        if batches == stages > 1:
            bubbles = [simulate(make(stages, batches)).bubble for make in (zb_h1, one_f_one_b)]
            assert bubbles[0] <= 2 / 3 * bubbles[1]


def test_activations_held():
    """GPipe holds m micro-batches, 1F1B S - r on rank r, ZB-H1 S on every rank."""
    for s, m in SIZES:
        assert held(gpipe(s, m)) == [m] * s
        assert held(one_f_one_b(s, m)) == [min(s - r, m) for r in range(s)]
        assert held(zb_h1(s, m)) == [min(s, m)] * s
    # Of chunks, which hold 1 / v of a stage each: at most (v - 1) S + 2 (S - r - 1) + 1.
    assert held(interleaved(4, 8, 2)) == [11, 9, 7, 5]


def test_times_per_stage_and_of_messages():
    """Two stages, one micro-batch: F0, send, F1, B1, W1, send, B0, W0 one after the other."""
    table = simulate(gpipe(2, 1), F=[1, 2], B=[4, 8], W=[16, 32], send=0.5)
    assert table.seconds == 1 + 0.5 + 2 + 8 + 32 + 0.5 + 4 + 16
    assert table.busy(0) == 21 and table.busy(1) == 42
    early = zb_h1(2, 1)  # the gradient goes back before W1
    assert simulate(early, send=0.5).seconds == 1 + 0.5 + 1 + 1 + 0.5 + 1 + 1
    with pytest.raises(ValueError, match="W must be a time of at least 0, or one per stage"):
        simulate(gpipe(2, 1), W=[1, 2, 3])


def test_it_is_printed_and_drawn():
    assert str(simulate(one_f_one_b(2, 2))) == (
        "rank 0: F0 F1 .  .  B0 W0 .  B1 W1\nrank 1: .  F0 B0 W0 F1 B1 W1 .  ."
    )
    figure = draw_schedule(one_f_one_b(2, 3))
    ax = figure.axes[0]
    assert ax.get_title(loc="left") == "1f1b: bubble 25 %"
    words = [text.get_text() for text in ax.texts]
    assert words.count("2") == 6 and words[-2:] == ["holds 2", "holds 1"]


def first_wrong(*lists, **options):
    with pytest.raises(ScheduleError) as error:
        check(of(lists, **options))
    assert "\n" not in str(error.value)
    return str(error.value)


FIRST = "F0 send F0 F1 send F1 recv B0 B0 W0 recv B1 B1 W1"
LAST = "recv F0 F0 B0 W0 send B0 recv F1 F1 B1 W1 send B1"


def test_the_first_wrong_action_is_named():
    check(of([FIRST, LAST]))
    expected = {
        "rank 0, action 4 (B0): B needs the activations of F, so F0 must come before it": (
            "F1 send F1 recv B1 recv B0 B0 F0 send F0 W0 B1 W1", LAST),
        "rank 0, action 5 (W0): W needs the gradients that B passes through, so B0 must": (
            FIRST.replace("B0 W0 recv", "W0 B0 recv"), LAST),
        "rank 1, action 0 (F0): its inputs come from another rank, so recv F0 must come": (
            FIRST, LAST.replace("recv F0 F0", "F0 recv F0")),
        "rank 1, action 3 (send B0): only what has been computed can be sent, so B0 must": (
            FIRST, "recv F0 F0 recv F1 send B0 B0 W0 F1 B1 W1 send B1"),
        "rank 0, action 4 (F1): it was already done, as action 2": (
            FIRST.replace("send F1", "send F1 F1"), LAST),
        "rank 0 never does W1: each rank needs F, B and W of each micro-batch": (
            FIRST.replace(" W1", ""), LAST),
        "rank 0 never does send F1": (FIRST.replace(" send F1", ""), LAST),
        "rank 1 never does F1": (FIRST, LAST[: LAST.index(" recv F1")]),
        "rank 1, action 2 (send F0): stage 1 of 2 has no such neighbour on another rank": (
            FIRST, LAST.replace("recv F0 F0", "recv F0 F0 send F0")),
    }  # fmt: skip
    for words, lists in expected.items():
        assert words in first_wrong(*lists)
    outside = Schedule("own", (tuple(map(Action.parse, ["F0", "F5"])),), 2)
    with pytest.raises(ScheduleError, match=r"action 1 \(F5\): there are micro-batches 0 to 1"):
        check(outside)
    with pytest.raises(ScheduleError, match="rank 1: 'G0' is no action"):
        of(["F0", "G0"])
    with pytest.raises(ScheduleError, match="at least one rank and one action"):
        of([])


def test_a_deadlock_is_a_circle_of_ranks():
    """Rank 0 wants B0 before it sends F1, which rank 1 wants before it computes B0."""
    found = first_wrong(
        "F0 send F0 recv B0 B0 W0 F1 send F1 recv B1 B1 W1",
        "recv F0 F0 recv F1 F1 B0 W0 send B0 B1 W1 send B1",
    )
    assert found == (
        "deadlock: rank 0 waits in action 2 (recv B0) for send B0 of rank 1, which comes later; "
        "rank 1 waits in action 2 (recv F1) for send F1 of rank 0, which comes later"
    )


@given(some.data())
@settings(max_examples=60, deadline=None)
def test_a_schedule_in_another_order_is_right_or_refused(data):
    """Two actions of a rank exchanged: either all can run in some order, or a line says why not."""
    name = data.draw(some.sampled_from(["gpipe", "1f1b", "zb_h1"]))
    made = named(name, data.draw(some.integers(2, 4)), data.draw(some.integers(2, 5)))
    ranks = [list(actions) for actions in made.ranks]
    actions = ranks[data.draw(some.integers(0, len(ranks) - 1))]
    a, b = (data.draw(some.integers(0, len(actions) - 1)) for _ in range(2))
    actions[a], actions[b] = actions[b], actions[a]
    changed = Schedule("own", tuple(map(tuple, ranks)), made.batches)
    part = as_far_as_it_runs(changed)
    assert played(part)[1] == [len(actions) for actions in part.ranks]  # it runs to its end
    assert all(
        whole[: len(one)] == one for one, whole in zip(part.ranks, changed.ranks, strict=True)
    )
    try:
        check(changed)
    except ScheduleError as error:
        assert a != b and part != changed
        for rank, place in (error.place,) if error.place else error.circle:
            assert len(part.ranks[rank]) <= place
        return
    assert part == changed
    assert simulate(changed).seconds >= 3 * made.batches


def test_what_cannot_be_made_is_refused():
    for line, make in {
        "needs a multiple of 3 micro-batches, got 4; use 6, or schedule 1f1b": (
            lambda: interleaved(3, 4)),
        "schedule 'fast': expected gpipe, 1f1b, interleaved, zb_h1": (lambda: named("fast", 2, 2)),
        "'1f1b' has one stage per rank, got 2: use interleaved": (lambda: named("1f1b", 2, 2, 2)),
        "at least 1 stage and 1 micro-batch, got 0 and 2": (lambda: gpipe(0, 2)),
        "chunks must be at least 1, got 0": (lambda: interleaved(2, 2, 0)),
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=line):
            make()

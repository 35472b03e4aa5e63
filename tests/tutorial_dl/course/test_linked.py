"""Links and devices sleep for the time of what is sent and computed."""

from types import SimpleNamespace

import numpy as np
import pytest

from tutorial_dl.course import linked


@pytest.fixture
def slept(monkeypatch):
    naps = []
    monkeypatch.setattr(linked.time, "sleep", naps.append)
    monkeypatch.setattr(linked, "sent", {})
    monkeypatch.setitem(linked.links, "between", 1e6)
    return naps


def test_a_transfer_takes_the_slowest_link_of_its_ranks(slept):
    for size, ranks in ((32e6, [0, 1]), (3e6, [1, 2]), (16e6, [3, 2])):
        linked.transfer("data", size, ranks)
    assert slept == [2.0, 3.0, 1.0] and linked.sent == {"data": 51e6}


@pytest.mark.parametrize(
    ("block", "forward", "backward"),
    [(0, [], []), (1, [], [320 / 1e6]), (2, [320 / 1e6], []), (3, [], [])],
)
def test_a_device_takes_its_share_and_the_edges_of_its_stage(
    slept, monkeypatch, block, forward, backward
):
    """Four blocks in two stages, on ranks 0 and 2, which lie on two nodes; two tensor slices."""
    grid = SimpleNamespace(pipe=SimpleNamespace(size=2), tensor=SimpleNamespace(size=2))
    monkeypatch.setattr(linked, "members", lambda team: [0, 2])
    device = linked.Device("d", block, 4, grid, seconds=24.0)
    x = np.ones((4, 10))  # 320 bytes
    assert device.forward(x, None, None) == (x, None)
    assert device.backward_inputs(None, None, x) == (x, None)
    assert slept == [*forward, 4 * 3.0 / 3, *backward, 4 * 3.0 * 2 / 3]

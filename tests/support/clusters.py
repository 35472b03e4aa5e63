"""Clusters of engines that tests share: the fixtures `shared_cluster` and `own_cluster`.

A start costs 3 to 5 s of processor time, and an engine that is blocked in an MPI call keeps a
processor busy. So each session (each worker of pytest-xdist) keeps two clusters for all files. A
test that blocks ranks frees them again, and engines that don't answer are replaced before the
next test.
"""

from __future__ import annotations

import time
from pathlib import Path

import leftovers
import pytest

SECONDS = 300
SETUP = """
import time
from mpi4py import MPI
import numpy as np
from numba_kernels import Team
comm = MPI.COMM_WORLD
rank = comm.rank
kept = 10 * rank
"""


class Kept:
    """A cluster of n engines that have run SETUP; its files are in its own folder."""

    def __init__(self, n: int, folder: Path):
        self.n, self.folder, self.cluster = n, folder, None

    def ready(self):
        """The cluster, after its engines have answered."""
        from tutorial_dl import cluster
        from tutorial_dl.cluster.cell_errors import CellError

        if self.cluster is None:
            self.cluster = cluster.start(n=self.n, timeout=SECONDS)
        else:
            try:
                self.cluster.run("pass", timeout=20)
            except CellError:
                self.cluster.restart()
        self.cluster.run(SETUP)
        self.stays()
        return self.cluster

    def stays(self) -> None:
        """Tell `leftovers` that the cluster's processes may stay when a test ends."""
        record = self.cluster._record
        for guard in (record.controller, record.engines):
            leftovers.stay(int(guard[0]))

    def stop(self) -> None:
        self.cluster.stop()
        deadline = time.monotonic() + 60
        while (left := list(self.folder.glob("tutorial_dl*"))) and (time.monotonic() < deadline):
            time.sleep(0.05)
        assert not left


@pytest.fixture(scope="session")
def _kept_clusters(tmp_path_factory, _marked):
    """{name: Kept} of the clusters that tests have asked for."""
    kept: dict[str, Kept] = {}

    def get(name: str, n: int) -> Kept:
        if name not in kept:
            kept[name] = Kept(n, tmp_path_factory.mktemp("ipython"))
        return kept[name]

    yield get
    for each in kept.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("IPYTHONDIR", str(each.folder))
            each.stop()


def _lent(kept: Kept, monkeypatch):
    from tutorial_dl.cluster import engines

    monkeypatch.setenv("IPYTHONDIR", str(kept.folder))
    monkeypatch.setattr(engines, "_running", None)  # allow several clusters side by side
    yield kept.ready()
    kept.stays()  # including engines that a restart has started


@pytest.fixture
def shared_cluster(_kept_clusters, monkeypatch):
    """Three engines for tests that neither block nor end them."""
    yield from _lent(_kept_clusters("shared", 3), monkeypatch)


@pytest.fixture
def own_cluster(_kept_clusters, monkeypatch):
    """Two engines that a test may kill or restart."""
    yield from _lent(_kept_clusters("own", 2), monkeypatch)

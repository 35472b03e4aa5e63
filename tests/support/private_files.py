"""The fixture `private` gives a test of clusters its own folders for everything kept on disk."""

import time

import pytest


@pytest.fixture
def private(tmp_path, monkeypatch):
    """The test's own IPython folder, which must hold no cluster's profile afterwards.

    The user's configuration and the working folder are below `tmp_path`, too.
    """
    from tutorial_dl.cluster import engines

    folder = tmp_path / "ipython"
    folder.mkdir()
    monkeypatch.setenv("IPYTHONDIR", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    yield folder
    if engines._running is not None:
        engines._running.stop()
    deadline = time.monotonic() + 5  # a guard removes the folder after the processes
    while (left := list(folder.glob("tutorial_dl*"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left

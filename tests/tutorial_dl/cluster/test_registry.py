"""Where clusters keep their files when the home folder is full, or can't be written."""

import errno
import json
import os
import re
import stat
import tempfile
from types import SimpleNamespace

import pytest

from tutorial_dl.cluster import registry


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_full_disk_is_named_and_nothing_stays(tmp_path, monkeypatch):
    folder = tmp_path / "ipython" / f"{registry.PREFIX}local"
    says = f"cannot write {folder}: No space left on device; make room there, or set IPYTHONDIR"
    with monkeypatch.context() as full:
        full.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=1, f_frsize=4096))
        with pytest.raises(registry.ClusterError, match=re.escape(says)):
            registry.take_folder(None, "local")
    assert not list((tmp_path / "ipython").iterdir())
    name, taken = registry.take_folder(None, "local")
    assert (name, taken) == ("local", folder)

    def dump(*_):  # as by a quota, of which statvfs knows nothing
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(json, "dump", dump)
    says = f"cannot write {folder / 'cluster.json.new'}: Disk quota exceeded; make room there"
    with pytest.raises(registry.ClusterError, match=re.escape(says)):
        registry.Record(name, 2, "file", str(folder)).save()
    assert not list(folder.iterdir())


def test_a_home_that_cannot_be_written(tmp_path, monkeypatch):
    """Clusters share one private folder then, which IPython's processes use too; it goes again."""
    monkeypatch.setenv("IPYTHONDIR", "/proc/no-such-folder")  # root can't write there either
    monkeypatch.setattr(registry, "_can_make", lambda folder: str(folder).startswith(str(tmp_path)))
    folder = tmp_path / f"tutorial_dl-{os.getuid()}"
    assert registry.home() == registry.home() == folder
    assert os.environ["IPYTHONDIR"] == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    registry._remove_unused(folder)
    assert not folder.exists()
    folder.mkdir(mode=0o755)  # made by somebody else, for example
    folder.chmod(0o755)
    monkeypatch.setenv("IPYTHONDIR", "/proc/no-such-folder")
    with pytest.raises(registry.ClusterError, match=f"{folder} must be a folder that only you can"):
        registry.home()


def test_a_folder_can_be_made_below_one_that_can_be_written(tmp_path):
    assert registry._can_make(tmp_path) and registry._can_make(tmp_path / "a" / "b")


def test_a_home_below_a_folder_that_is_another_users(tmp_path, monkeypatch):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    inner = locked / "home" / ".ipython"
    real, effective, saved = os.getresuid()
    if effective == 0:  # root may go anywhere
        os.setresuid(65534, 65534, 0)
    try:
        assert not registry._can_make(inner)
    finally:
        os.setresuid(real, effective, saved)
        locked.chmod(0o700)

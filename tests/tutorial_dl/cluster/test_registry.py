"""Where clusters keep their files when the home folder is full, or can't be written."""

import errno
import json
import os
import re
from types import SimpleNamespace

import pytest

from tutorial_dl.cluster import registry


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


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


def test_a_home_that_cannot_be_written_is_named(monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", "/proc/no-such-folder")  # root can't write there either
    assert registry.load_all() == []
    says = "cannot write /proc/no-such-folder/tutorial_dl_local: .*; make room there, or set IPYTHO"
    with pytest.raises(registry.ClusterError, match=says):
        registry.take_folder(None, "local")

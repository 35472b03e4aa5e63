"""Copies on a local disk: one per node, always whole, and never out of date."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from tutorial_dl.data import DataError, local_copy

COPIES = """
import json, sys
from pathlib import Path
from tutorial_dl.data import local_copy
copy = local_copy._copy
def counted(path, *rest):
    with open(sys.argv[1], "a") as log:
        log.write(f"{path.name}\\n")
    return copy(path, *rest)
local_copy._copy = counted
files = [Path(f) for f in sys.argv[3:]]
print("\\n".join(map(str, local_copy.copies(files, Path(sys.argv[2])))))
"""


def random_files(folder, n=6, size=3 << 20):
    folder.mkdir(exist_ok=True)
    files = [folder / f"{i}.h5" for i in range(n)]
    for file in files:
        file.write_bytes(os.urandom(size))
    return files


def test_processes_of_a_node_copy_each_file_once(tmp_path):
    files = random_files(tmp_path / "source")
    same_name = random_files(tmp_path / "other", n=1)
    log, cache = tmp_path / "log", tmp_path / "new" / "cache"
    words = [sys.executable, "-c", COPIES, str(log), str(cache), *map(str, files + same_name)]
    ranks = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [rank.communicate(timeout=600)[0].splitlines() for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks) and said == [said[0]] * 4
    assert sorted(log.read_text().split()) == sorted(f.name for f in files + same_name)
    for file, copy in zip(files + same_name, said[0], strict=True):
        with open(copy, "rb") as one:
            assert one.read() == file.read_bytes()
    assert not list(cache.glob("*.part"))


@pytest.fixture
def one(tmp_path):
    (file,) = random_files(tmp_path / "source", 1, 1000)
    return file, tmp_path / "cache"


def made(monkeypatch):
    """A list that gets the files that are copied from now on."""
    names, copy = [], local_copy._copy
    monkeypatch.setattr(
        local_copy, "_copy", lambda p, *rest: names.append(p.name) or copy(p, *rest)
    )
    return names


def test_a_copy_is_made_again_when_its_source_has_changed(one, monkeypatch):
    file, cache = one
    copied = made(monkeypatch)
    (place,) = local_copy.copies([file], cache)
    assert local_copy.copies([file], cache) == [place] and copied == ["0.h5"]
    file.write_bytes(b"another size")
    local_copy.copies([file], cache)
    assert place.read_bytes() == b"another size" and len(copied) == 2
    stat = file.stat()
    file.write_bytes(b"ANOTHER SIZE")  # of the same size, a nanosecond later
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    local_copy.copies([file], cache)
    assert place.read_bytes() == b"ANOTHER SIZE" and len(copied) == 3
    place.write_bytes(b"half")  # changed in any way
    local_copy.copies([file], cache)
    assert place.read_bytes() == b"ANOTHER SIZE" and len(copied) == 4


def test_what_another_process_made_meanwhile_is_not_made_again(one, monkeypatch):
    file, cache = one
    (place,) = local_copy.copies([file], cache)
    copied, same, asked = made(monkeypatch), local_copy._same, []
    # The copy is missing at the first look, and is there when this process has the lock.
    monkeypatch.setattr(
        local_copy, "_same", lambda *a: bool(asked.append(a) or asked[1:]) and same(*a)
    )
    assert local_copy.copies([file], cache) == [place] and len(asked) == 2 and not copied


def test_what_an_ended_process_left_is_no_copy(one, monkeypatch):
    file, cache = one
    ended = subprocess.run(
        [sys.executable, "-c", COPIES.replace("local_copy._copy = counted", """
import os, shutil
def dies(original, copy, length):
    copy.write(original.read(500)); copy.flush()
    os._exit(9)
shutil.copyfileobj = dies
"""), str(cache / "log"), str(cache), str(file)]
    )  # fmt: skip
    assert ended.returncode == 9
    (part,) = cache.glob("*.part")
    assert part.stat().st_size == 500 and not list(cache.glob("*.h5"))
    (place,) = local_copy.copies([file], cache)
    assert place.read_bytes() == file.read_bytes() and not list(cache.glob("*.part"))


def test_what_can_go_wrong(one, monkeypatch):
    file, cache = one

    def fails(message, **patches):
        with monkeypatch.context() as patch, pytest.raises(DataError, match=message) as error:
            for name, value in patches.items():
                patch.setattr(shutil, name, value)
            local_copy.copies([file], cache)
        assert "\n" not in str(error.value)
        assert not list(cache.glob("*.part")) and not list(cache.glob("*.h5"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied", str(cache / "x"))

    def changes(original, copy, length):
        copy.write(original.read())
        file.write_bytes(b"changed meanwhile")

    usage = shutil.disk_usage(file.parent)
    tiny = lambda folder: usage._replace(free=999)  # noqa: E731
    no_space = r"cache .*/cache: no space for .*/0.h5: it needs 0\.0 MiB, \d+\.\d are free"
    fails(no_space, disk_usage=tiny)
    fails(no_space, copyfileobj=full)
    fails(r"cache .*/cache: .*/0.h5 can't be copied there: Permission denied", copyfileobj=denied)
    fails(r".*/0.h5: it changed while it was copied to cache", copyfileobj=changes)
    file.unlink()
    fails(r".*/0.h5: it can't be copied to cache .*/cache: No such file or directory")
    for folder in (file.parent / "a" / "b", "/proc/nothing"):
        (file.parent / "a").touch()
        with pytest.raises(DataError, match=rf"^cache {folder}: it can't be created: "):
            local_copy.copies([file], type(file)(folder))


def test_another_process_is_waited_for_as_long_as_it_copies(one):
    file, cache = one
    (place,) = local_copy.copies([file], cache)
    place.unlink()
    part = place.with_name(place.name + ".part")
    with open(place.with_name(place.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match=r"lock of .*/0.h5 and has copied nothing for 0\.3 s"):
            local_copy.copies([file], cache, seconds=0.3)

        def slowly():
            for i in range(10):  # in all, longer than the limit of 2 s
                part.write_bytes(bytes(100 * i))
                time.sleep(0.25)
            part.write_bytes(file.read_bytes())
            os.utime(part, ns=(0, file.stat().st_mtime_ns))
            part.rename(place)

        thread = threading.Thread(target=slowly)
        thread.start()
        assert local_copy.copies([file], cache, seconds=2) == [place]
        thread.join()

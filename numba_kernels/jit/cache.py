"""Cache compiled kernels on disk, one file each; any number of ranks may read and write at once.

    ~/.cache/numba_kernels/<hash of the sources>/<function>-<hash of types, processor, versions>

Numba's own cache is not used, because all of these cases occur on a cluster:

- A function *called by a kernel* has changed. Numba would not rebuild the kernel; here the folder
  name changes.
- Ranks compile at the same time. Numba reads, changes and writes an index, so two ranks can give
  one file to different argument types. Here the file name identifies the content, and a file is
  written under another name and renamed. Ranks also take turns (turns.py), so that each kernel is
  compiled once.
- A file is truncated or damaged. Numba would raise or crash; here a checksum is verified first.
- The home folder is full or read-only, as on many compute nodes. Existing kernels are still loaded;
  new ones go to the temporary folder, and if that fails too, training goes on without a cache.
- Thirty learners start at once. Whoever keeps the environment for all compiles kernels in advance
  (preparing.py): they are looked for first, and checked as one's own are.
- A process only loads kernels. Numba would import everything that compiling needs (such as scipy),
  which takes five times as long as loading.
"""

import gc
import hashlib
import os
import pickle
import re
import secrets
import shutil
import sys
import tempfile
import time
import warnings
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path

import llvmlite
import numba
from numba.core import config
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from . import compiling, turns

DAY = 86400.0  # seconds
UNUSED = 30 * DAY  # kernels of other source versions are removed if unused for this long
VERSIONS = f"{sys.implementation.cache_tag} {numba.__version__} {llvmlite.__version__}"
PREPARED = "NUMBA_KERNELS_PREPARED"  # environment variable: see `for_all`
PROCESSOR = "processor"  # the file that says what kernels in a folder were compiled for
AGAIN = "python -m numba_kernels compile prepares them again"
REMEDY = "set NUMBA_CACHE_DIR to a folder that you may write to"


@cache
def version() -> str:
    """Return the name of the folder of kernels of these sources."""
    sources = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        sources.update(file.read_bytes())
    return sources.hexdigest()[:16]


@cache
def folders() -> tuple[Path, ...]:
    """Return the folders to search for kernels; new kernels go to the first writable one.

    If NUMBA_CACHE_DIR is set, it is the only one. This function writes nothing.
    """
    name = version()
    if config.CACHE_DIR:
        return (Path(config.CACHE_DIR) / "numba_kernels" / name,)
    places = []
    with suppress(RuntimeError):  # a user without a home
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        places.append(home / "numba_kernels" / name)
    with suppress(OSError):  # no temporary folder
        places.append(Path(tempfile.gettempdir()) / f"numba_kernels-{os.getuid()}" / name)
    return tuple(places)


def cache_folder() -> Path:
    """Return the folder for new kernels; raise OSError if none can be written."""
    why = "there is neither a home nor a temporary folder"
    for folder in folders():
        try:
            prepare(folder)
            tempfile.TemporaryFile(dir=folder).close()
            return folder
        except OSError as error:
            why = f"cannot write to {folder}: {error.strerror}"
    raise OSError(why)


def prepare(folder: Path) -> None:
    """Create `folder` if needed; raise OSError if that fails, or if other users may write to it."""
    if not folder.is_dir():
        mode = 0o777 if config.CACHE_DIR else 0o700
        folder.parent.mkdir(mode=mode, parents=True, exist_ok=True)
        folder.mkdir(mode=mode, exist_ok=True)
        remove_unused(folder.parent)
    check_owner(folder)


def check_owner(folder: Path, *owners: int) -> None:
    """Raise PermissionError if the machine code in `folder` may be another user's.

    `owners`: further users who are trusted.
    """
    if config.CACHE_DIR and not owners:
        return  # a user who names a folder trusts it
    for each in (folder.parent, folder):
        status = each.stat()
        if status.st_uid not in (os.getuid(), *owners) or status.st_mode & 0o022:
            raise PermissionError(0, "other users may write there", str(each))


def remove_unused(place: Path) -> None:
    """Remove folders of other source versions that no process has used for UNUSED seconds."""
    for folder in place.iterdir():
        with suppress(OSError):  # another rank may be removing it
            if re.fullmatch("[0-9a-f]{16}", folder.name) and age(folder) > UNUSED:
                shutil.rmtree(folder, ignore_errors=True)


def age(folder: Path) -> float:
    return time.time() - folder.lstat().st_mtime


def for_all() -> Path:
    """Return the folder of kernels compiled in advance, for all who use this environment."""
    return Path(os.environ.get(PREPARED) or Path(sys.prefix, "share")) / "numba_kernels"


@cache
def prepared(processor: tuple[str, ...]) -> Path | None:
    """Return the folder in `for_all` with kernels of these sources, for this processor, or None.

    Its owner is this user, root, or the owner of this package's files.
    """
    place = for_all()
    if not place.is_dir():
        return None
    folder = place / version()
    try:
        check_owner(folder, 0, Path(__file__).stat().st_uid)
        theirs = (folder / PROCESSOR).read_text()
    except FileNotFoundError:
        why = "are of another version of this package"
    except OSError as error:
        why = f"are not trusted: {error.strerror}"
    else:
        if theirs == str(processor):
            return folder
        why = f"are for another processor than this {processor[1]}"
    _warn(f"the kernels in {place} {why}, so that each user compiles some; {AGAIN}")
    return None


def read(file: Path) -> bytes | None:
    """Return what `write` stored in `file`; None if it is missing or damaged."""
    try:
        check_owner(file.parent)
        content = file.read_bytes()
    except OSError:
        return None
    return checked(content)


def checked(content: bytes) -> bytes | None:
    """Return the code in a file's content; None if it is damaged."""
    digest, code = content[:32], content[32:]
    return code if hashlib.sha256(code).digest() == digest else None


def write(file: Path, code: bytes) -> None:
    """Write `code` to `file` atomically, so that several processes may do it at once."""
    prepare(file.parent)
    aside = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        aside.write_bytes(hashlib.sha256(code).digest() + code)
        aside.replace(file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


class KernelCache(NullCache):
    """The cache of one function, with the interface that Numba's dispatchers call.

    Functions without a source file (entered in a notebook) and closures are not cached: their
    source does not determine what they do.
    """

    def __init__(self, function):
        source = Path(function.__code__.co_filename)
        self._usable = source.is_file() and not function.__closure__
        self._turns: list[turns.Turn] = []
        if self._usable:
            place = f"{function.__module__}.{function.__qualname__}"
            stamp = hashlib.sha256(source.read_bytes()).hexdigest()
            self._origin = f"{place} {function.__code__.co_firstlineno} {stamp} {VERSIONS}"
            self._name = re.sub(r"[^\w.]", "", place)[:100]

    @property
    def cache_path(self) -> str:
        return str(folders()[0]) if folders() else ""

    def in_turn(self, kernel):
        """Return a `compile` for the dispatcher `kernel` that gives this process's turn back."""
        right, kernel = type(kernel).compile, weakref.ref(kernel)  # so that it can be freed

        def compile(sig):
            # Other threads compile, too, for other types
            with compiling.counted(), global_compiler_lock:
                before = len(self._turns)
                collects = gc.isenabled()
                gc.disable()  # compiling makes many objects and little garbage; this saves 8%
                try:
                    return right(kernel(), sig)
                finally:
                    if collects:
                        gc.enable()
                    while len(self._turns) > before:
                        turns.give(self._turns.pop())

        return compile

    def flush(self) -> None:
        """Stop caching: a user who recompiles has changed something that file names don't show."""
        self._usable = False

    def load_overload(self, sig, target_context) -> CompileResult | None:
        if not self._usable:
            return None
        codegen = target_context.codegen()
        name, code = self._file_name(sig, codegen), None
        if (folder := prepared(codegen.magic_tuple())) is not None:
            with suppress(OSError):  # it has no such kernel
                code = checked((folder / name).read_bytes())
        code = code or self._kept(name)
        if code is None:
            compiling.begins()
            self._take_turn(name)
            code = self._kept(name)
        if code is None:
            return None
        rtsys.initialize(target_context)  # loading needs nothing else
        return CompileResult._rebuild(target_context, *pickle.loads(code))

    def _kept(self, name: str) -> bytes | None:
        for folder in folders():
            code = read(folder / name)
            if code is not None:
                with suppress(OSError):
                    if age(folder) > DAY:
                        os.utime(folder)  # mark it as used
                return code
        return None

    def _take_turn(self, name: str) -> None:
        """Wait until this process may compile, or need not; `in_turn` gives the turn back."""
        for folder in folders():
            with suppress(OSError):  # a folder that can't be written
                prepare(folder)
                if (turn := turns.take(folder / name)) is not None:
                    self._turns.append(turn)
                return

    def save_overload(self, sig, data: CompileResult) -> None:
        if not self._usable or data.library.has_dynamic_globals:
            return
        name, code = self._file_name(sig, data.codegen), dumps(data._reduce())
        why = ""
        for folder in folders():
            try:
                return write(folder / name, code)
            except OSError as error:
                why = f" in {folder} ({error.strerror})"
        _warn(f"kernels can't be cached{why}, so every start compiles them; {REMEDY}")

    def _file_name(self, sig, codegen) -> str:
        depends = f"{self._origin} {codegen.magic_tuple()} {sig}"
        return f"{self._name}-{hashlib.sha256(depends.encode()).hexdigest()[:32]}"


@cache
def _warn(what: str) -> None:
    warnings.warn(what, RuntimeWarning, stacklevel=2)

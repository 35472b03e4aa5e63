"""Find the files that `--data` names: a list, a pattern, or a text file of paths."""

import glob
import os
from collections.abc import Iterable
from pathlib import Path

ENDINGS = (".h5", ".hdf5", ".hdf", ".he5")
LISTS = (".txt", ".list", ".lst")  # text files of paths


class DataError(ValueError):
    """A data file can't be used; the message is one line and names the file."""


def named(spec: object) -> bool:
    """Whether `spec` names files rather than a built-in dataset or a user's function."""
    if not isinstance(spec, str):
        return isinstance(spec, Path) or (
            isinstance(spec, (list, tuple))
            and all(isinstance(one, (str, os.PathLike)) for one in spec)
        )
    ends = spec.lower().endswith((*ENDINGS, *LISTS))
    return ends or any(c in spec for c in "*?[,") or (":" not in spec and os.sep in spec)


def paths(spec: str | os.PathLike | Iterable[str | os.PathLike], what: str = "data") -> list[Path]:
    """Return the files that `spec` names, in order; opens only text files of paths.

    Args:
        spec: Paths and patterns (`*`, `?`, `[]`; sorted by name), joined by commas or as a list.
            A path that ends in .txt, .list or .lst is a text file of paths and patterns, one per
            line, relative to its own folder; # begins a comment.
        what: What the files are for, in error messages.

    DataError if a file is missing or named twice, a pattern matches nothing, or no file is named.
    """
    if isinstance(spec, (str, os.PathLike)):
        spec = str(spec).split(",") if isinstance(spec, str) else [spec]
    found = []
    for one in spec:
        text = str(one).strip()
        if text.lower().endswith(LISTS):
            found += _listed(Path(text), what)
        elif text:
            found += _matching(text, what)
    if not found:
        raise DataError(f"{what}: no files are named; expected at least one HDF5 file")
    seen: dict[str, Path] = {}
    for path in found:
        _check_there(path, what)
        known = seen.setdefault(os.path.realpath(path), path)
        if known is not path:
            raise DataError(f"{what}: {path} is named twice; its samples would count twice")
    return found


def _listed(path: Path, what: str) -> list[Path]:
    _check_there(path, what)
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{what}: {path} can't be read as a list of paths: {error}") from None
    words = [line.partition("#")[0].strip() for line in lines]
    found = [f for word in words if word for f in _matching(str(path.parent / word), what)]
    if not found:
        raise DataError(f"{what}: {path} names no files; expected one path per line")
    return found


def _matching(pattern: str, what: str) -> list[Path]:
    pattern = os.path.expanduser(pattern)
    if os.path.exists(pattern) or not glob.has_magic(pattern):
        return [Path(pattern)]
    found = sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise DataError(f"{what}: no file matches {pattern}")
    return [Path(one) for one in found]


def _check_there(path: Path, what: str) -> None:
    if path.is_dir():
        raise DataError(f"{what}: {path} is a folder; expected files, for example {path}/*.h5")
    if not path.is_file():
        raise DataError(f"{what}: there is no file {path}")
    if not os.access(path, os.R_OK):
        raise DataError(f"{what}: {path} can't be read: permission denied")

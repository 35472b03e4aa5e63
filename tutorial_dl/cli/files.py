"""The files that commands write."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

FIGURES = (".png", ".svg", ".pdf")


def check_writable(*names: str | Path | None) -> None:
    """Raise OSError if one of these files can't be written, before it fails after training.

    None is no file, and "-" is the standard output.
    """
    for path in (Path(name) for name in names if name not in (None, "-")):
        if path.is_dir():
            raise OSError(f"{path} is a folder; it must be a file")
        if not path.parent.is_dir():
            raise OSError(f"cannot write {path}: there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise OSError(f"cannot write {path}: permission denied")
        if not path.exists():
            try:  # a file system may refuse what the permissions allow, as /proc does
                with tempfile.TemporaryFile(dir=path.parent):
                    pass
            except OSError as error:
                raise OSError(f"cannot write {path}: {error.strerror}") from None


def check_figure(file: str | None) -> None:
    """Raise ValueError or OSError if a figure can't be written to this file; None is no file."""
    if file is not None and not file.lower().endswith(FIGURES):
        raise ValueError(
            f"--figure must be a file name that ends in {', '.join(FIGURES)}, got {file!r}"
        )
    check_writable(file)


def replace(path: Path | str, text: str) -> None:
    """Write a file at once: another process sees the old one or the new one."""
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def print_or_write(found: Any, file: str | None, words: str, indent: int | None = None) -> None:
    """Print `words`, and write what was found to a file, as JSON; file "-": print that instead."""
    if file not in (None, "-"):
        Path(file).write_text(json.dumps(found, indent=indent) + "\n")
    print(json.dumps(found) if file == "-" else words, flush=True)

"""Checkpoints: folders that are either complete or absent, written by all ranks in parallel.

    checkpoints/
        step_00000200/
            rank_00000.npz      slice 0 of the vectors, and arrays that only rank 0 has
            rank_00001.npz      slice 1, and arrays that only rank 1 has
            manifest            numbers, and size and checksum of every file
        step_00000300/

A checkpoint is written to a hidden folder, flushed to disk, and renamed last. Renaming is atomic,
so a process killed meanwhile leaves the previous checkpoint intact. Reading checks sizes and
checksums; a damaged checkpoint is reported, and the one before it is used. Arrays are in NumPy's
own format without pickle, so nothing in a checkpoint is ever executed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zlib
from copy import copy
from pathlib import Path

import numpy as np

FORMAT = 1
NAME = re.compile(r"step_(\d{8,})")
BLOCK = 1 << 22  # bytes read at once


class CheckpointError(RuntimeError):
    """A checkpoint can't be written or used; the message says why."""


class Checkpoints:
    """The checkpoints of a run in `folder`, which all ranks of `team` see. Methods are collective.

    The newest `keep` are kept; at least 2, as the newest may be damaged.
    """

    def __init__(self, team, folder: str | os.PathLike, keep: int = 3):
        if keep < 2:
            raise ValueError(f"keep must be at least 2, as a checkpoint may be damaged, got {keep}")
        self.team, self.folder, self.keep = team, Path(folder), keep

    def steps(self) -> list[int]:
        """The steps with checkpoints, damaged ones included; not collective."""
        if not self.folder.is_dir():
            return []
        return sorted(int(m[1]) for m in map(NAME.fullmatch, os.listdir(self.folder)) if m)

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step:08}"

    # Writing

    def write(self, step: int, values: dict, vectors: dict, own: dict) -> Path:
        """Write the checkpoint of `step`, remove the oldest beyond `keep`, and return its folder.

        `values` must suit JSON, and rank 0's are written; `vectors` are slices `team.slice_of(n)`
        (of the last axis) of arrays (..., n); `own` are arrays that only this rank has.

        If it can't be written, raises CheckpointError (PeerError on other ranks). The folder then
        is unchanged, except for a hidden partial checkpoint that the next one overwrites.
        """
        team, part = self.team, self.folder / f".step_{step:08}.part"
        arrays = {f"vector:{name}": a for name, a in vectors.items()}
        arrays |= {f"own:{name}": a for name, a in own.items()}
        try:
            if team.rank == 0:
                self.folder.mkdir(parents=True, exist_ok=True)
                for old in self.folder.glob(".step_*"):
                    shutil.rmtree(old)
                part.mkdir()
            team.barrier()
            size, checksum = write_arrays(part / file_of(team.rank), arrays)
            table = team.allgather(np.array([size, checksum])).tolist()
            if team.rank == 0:
                files = {file_of(r): {"bytes": b, "crc32": c} for r, (b, c) in enumerate(table)}
                content = {"format": FORMAT, "ranks": team.size, "files": files, "values": values}
                write_manifest(part / "manifest", content)
                self._publish(part, self.path(step))
            team.barrier()
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {self.path(step)} can't be written: {error.strerror or error}"
            ) from error
        return self.path(step)

    def _publish(self, part: Path, path: Path) -> None:
        sync_folder(part)
        if path.exists():  # it is damaged, or from a run that was resumed from an earlier step
            os.rename(path, part.with_suffix(".old"))
        os.rename(part, path)
        sync_folder(self.folder)
        shutil.rmtree(part.with_suffix(".old"), ignore_errors=True)
        for step in self.steps()[: -self.keep]:
            os.rename(self.path(step), part)  # hide it first, in case this process dies
            shutil.rmtree(part)

    # Reading

    def newest(self) -> Snapshot | None:
        """The newest complete checkpoint, the same on all ranks; None if there is none.

        Each damaged checkpoint is reported in a line on stderr; raises CheckpointError if all are.
        """
        steps = self.steps() if self.team.rank == 0 else []
        count = int(self.team.broadcast(np.array([len(steps)]))[0])
        if count == 0:
            return None
        steps = self.team.broadcast(np.array(steps if steps else [0] * count, np.int64))
        for step in steps[::-1]:
            problem = self._problem(self.path(int(step)))
            if not self.team.allreduce(np.array([float(problem is not None)]), "max")[0]:
                return Snapshot(self.path(int(step)))
            if problem is not None:
                print(f"warning: checkpoint {problem}; trying the one before it", file=sys.stderr)
        raise CheckpointError(f"all checkpoints in {self.folder} are damaged")

    def _problem(self, path: Path) -> str | None:
        """What is wrong with the files of this checkpoint that this rank checks; None: nothing."""
        team = self.team
        try:
            content = read_manifest(path / "manifest")
            files = sorted(content["files"].items())
            for name, says in files[team.rank :: team.size]:
                size, checksum = measure(path / name)
                if size != says["bytes"]:
                    return f"{path / name} has {size} bytes of {says['bytes']}"
                if checksum != says["crc32"]:
                    return f"{path / name} is damaged: its checksum is wrong"
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            file = getattr(error, "filename", None) or path / "manifest"
            return f"{file} can't be read: {why}"
        return None


class Snapshot:
    """A checkpoint that was read: its `values`, its number of `ranks`, and its arrays."""

    prefix = ""

    def __init__(self, path: Path):
        content = read_manifest(path / "manifest")
        self.path, self.values, self.ranks = path, content["values"], content["ranks"]

    def with_prefix(self, prefix: str, values: dict) -> Snapshot:
        """The arrays whose names begin with `prefix`, under the rest of their names."""
        found = copy(self)
        found.prefix, found.values = prefix, values
        return found

    def vector(self, name: str, first: int, last: int) -> np.ndarray:
        """Elements [first, last) of a vector (of an array's last axis), from all ranks' files."""
        sizes = self.values["slices"]
        starts = self.values.get("starts", np.cumsum([0, *sizes[:-1]]).tolist())
        pieces = []
        for rank in sorted(range(self.ranks), key=lambda r: (starts[r], sizes[r])):
            low = starts[rank]
            a, b = max(first, low), min(last, low + sizes[rank])
            if a < b:
                pieces.append(self._read(rank, "vector", name)[..., a - low : b - low])
        if not pieces:  # no elements, but the right shape
            return self._read(0, "vector", name)[..., :0]
        return np.concatenate(pieces, axis=-1)

    def own(self, name: str, rank: int) -> np.ndarray:
        """The array that only `rank` (a rank of the run that wrote it) had."""
        return self._read(rank, "own", name)

    def has_own(self, name: str) -> bool:
        with np.load(self.path / file_of(0), allow_pickle=False) as file:
            return f"own:{self.prefix}{name}" in file.files

    def _read(self, rank: int, kind: str, name: str) -> np.ndarray:
        with np.load(self.path / file_of(rank), allow_pickle=False) as file:
            return file[f"{kind}:{self.prefix}{name}"]


# Files -----------------------------------------------------------------------------------------


def file_of(rank: int) -> str:
    return f"rank_{rank:05}.npz"


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> tuple[int, int]:
    """Write and flush to disk; returns size and checksum of the file as read back."""
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    return measure(path)


def measure(path: Path) -> tuple[int, int]:
    size = checksum = 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return size, checksum


def write_manifest(path: Path, content: dict) -> None:
    text = json.dumps(content, default=lambda number: number.item()) + "\n"  # NumPy scalars
    with open(path, "w") as file:
        file.write(f"{zlib.crc32(text.encode()):08x} {text}")
        file.flush()
        os.fsync(file.fileno())


def read_manifest(path: Path) -> dict:
    """Read a manifest; raises ValueError if its checksum or format is wrong."""
    checksum, _, text = path.read_text().partition(" ")
    if checksum != f"{zlib.crc32(text.encode()):08x}":
        raise ValueError("its checksum is wrong")
    content = json.loads(text)
    if content["format"] != FORMAT:
        raise ValueError(f"it has format {content['format']}, not {FORMAT}")
    return content


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

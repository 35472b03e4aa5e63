"""`hdf5`: a Dataset from HDF5 files. `write_hdf5`: samples to an HDF5 file."""

import os
from math import prod
from pathlib import Path
from typing import Any

from tutorial_dl.data.dataset import Data, Dataset, by_name, classes
from tutorial_dl.data.files import DataError, paths
from tutorial_dl.data.hdf5 import WINDOW, Hdf5Data
from tutorial_dl.data.hdf5_files import Table, look

SHARE = 0.2  # default share of the samples that is held out for validation


def hdf5(
    files: Any,
    features: Any = "features",
    labels: Any = "labels",
    validation: Any = SHARE,
    cache: str | os.PathLike | None = None,
    window: int = WINDOW,
    name: str | None = None,
) -> Dataset:
    """Build a Dataset from HDF5 files; samples are read only when they are needed.

    Args:
        files: Paths and patterns, as `files.paths` takes them.
        features, labels: Name of the dataset in every file. For a model with several inputs or
            outputs: several names, joined by commas or as a tuple; or a dict from the model's names
            to the datasets' names, as text "image=pixels,angle=alpha".
        validation: Validation files; or the share of the samples to hold out, from 0 to below 1:
            always the same samples, in stretches at equal distances (`Hdf5Data.split`).
        cache: Folder on a disk of this node, to which files are copied first (local_copy.py).
        window: Bytes that are shuffled and read together, over all ranks; at most two windows are
            held in memory.
        name: Name of the dataset.

    Returns:
        A Dataset whose parts are `Hdf5Data`. DataError says what is wrong with which file.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1 byte, got {window}")
    inputs, targets = names(features, "features"), names(labels, "labels")
    keys = [*by_name(inputs).values(), *by_name(targets).values()]
    share, others = share_or_files(validation)
    table = _table(paths(files), keys, cache)
    train = Hdf5Data(table, inputs, targets, window=window)
    if others is None:
        train, kept = train.split(share) if share else (train, None)
        if len(train) == 0:
            raise DataError(
                f"{table.shown[0]}: {sum(table.rows)} samples in all, none left to train on after "
                f"a share of {share} is held out for validation"
            )
    else:
        kept = Hdf5Data(_table(others, keys, cache, table), inputs, targets, window=window)
    name = name or (files if isinstance(files, str) else str(table.shown[0]))
    return Dataset(name, train, kept, classes(train, kept))


def share_or_files(validation: Any) -> tuple[float, list[Path] | None]:
    """Return (share to hold out, None) or (0, files), depending on `validation`."""
    try:
        share = float(validation)
    except (TypeError, ValueError):
        return 0.0, paths(validation, "validation")
    if not 0 <= share < 1:
        raise ValueError(
            f"validation {validation}: expected a share from 0 to below 1, or HDF5 files"
        )
    return share, None


def names(spec: Any, what: str) -> Any:
    """Parse dataset names: one string, or a tuple or dict of strings.

    >>> names("features", ""), names("a,b", ""), names("x=a,y=b", "")
    ('features', ('a', 'b'), {'x': 'a', 'y': 'b'})
    """
    given = spec
    if isinstance(spec, str):
        parts = tuple(part.strip() for part in spec.split(","))
        if all("=" in part for part in parts):
            pairs = [[side.strip() for side in part.split("=", 1)] for part in parts]
            if len(dict(pairs)) < len(pairs):
                raise ValueError(f"{what} '{spec}': expected every input's name only once")
            spec = dict(pairs)
        else:
            spec = parts if len(parts) > 1 else parts[0]
    elif isinstance(spec, list):
        spec = tuple(spec)
    every = by_name(spec).values()
    if not every or not all(isinstance(n, str) and n and "=" not in n for n in every):
        raise ValueError(f"{what} {given!r}: expected NAME, NAME,NAME or INPUT=NAME,INPUT=NAME")
    return spec


def _table(files: list[Path], keys: list[str], cache: Any, like: Table | None = None) -> Table:
    if cache is None:
        return look(files, keys, like=like)
    from tutorial_dl.data.local_copy import copies

    return look(copies(files, Path(cache)), keys, shown=files, like=like)


def write_hdf5(
    data: Data | Hdf5Data,
    path: str | os.PathLike,
    features: Any = "features",
    labels: Any = "labels",
    **options: Any,
) -> Path:
    """Write samples to a new HDF5 file (complete or not at all) and return its path.

    Args:
        data: For example `dataset.train`, or `data.shard(dataset.train, i, n)` for the i-th of n
            files.
        path: The file; an existing one is replaced.
        features, labels: Names of the datasets in the file, in the same structure as the data's
            inputs and targets (see `hdf5`).
        options: Options of h5py's create_dataset: compression="gzip", chunks=(100, 338, 20).
    """
    import h5py

    path, keys = Path(path), []
    for spec, what in ((features, "inputs"), (labels, "targets")):
        whole, spec = getattr(data, what), names(spec, what)
        arrays, named = by_name(whole), by_name(spec)
        if named.keys() != arrays.keys():
            raise ValueError(
                f"names {spec!r} don't fit the data's {what}: expected one for each of "
                + (f"{sorted(whole)}" if isinstance(whole, dict) else f"{len(arrays)}")
            )
        keys += [named[place] for place in arrays]
    if len(set(keys)) < len(keys):
        raise ValueError(f"datasets {', '.join(keys)}: expected each name only once")
    columns = [*by_name(data.inputs).values(), *by_name(data.targets).values()]
    here = path.with_name(f"{path.name}.{os.getpid()}.part")
    step = max(1, (1 << 20) // max(1, sum(c.dtype.itemsize * prod(c.shape[1:]) for c in columns)))
    try:
        with h5py.File(here, "w") as file:
            for key, column in zip(keys, columns, strict=True):
                file.create_dataset(key, column.shape, column.dtype, **options)
            for first in range(0, len(data), step):
                batch = data.take(slice(first, first + step))
                arrays = (array for part in batch for array in by_name(part).values())
                for key, array in zip(keys, arrays, strict=True):
                    file[key][first : first + len(array)] = array
        os.replace(here, path)
    finally:
        here.unlink(missing_ok=True)
    return path

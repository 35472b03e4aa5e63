"""Runs on each rank of `launching.run`: calls the function and writes its result to a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from numba_kernels import launch
from numba_kernels.errors import TeamError

from .pickles import dumps, loads


def main(folder: Path) -> None:
    rank = launch.rank()
    found = json.loads((folder / "path").read_text())
    sys.path += [place for place in found if place not in sys.path]
    try:
        function, args, kwargs = loads(np.fromfile(folder / "call", np.int64))
        result = dumps(function(*args, **kwargs))
    except BaseException as error:
        followed = ".followed" if isinstance(error, TeamError) else ""
        text = f"rank {rank} failed: {type(error).__name__}: {error}"
        (folder / f"failed-{rank}{followed}").write_text(text)
        raise
    unfinished = folder / f"unfinished-{rank}"
    result.tofile(unfinished)
    unfinished.rename(folder / f"result-{rank}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

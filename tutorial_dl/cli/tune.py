"""`python -m tutorial_dl tune`: checks before ranks are started, and the work of one rank."""

import os
import signal
import sys
from functools import partial
from pathlib import Path

from numba_kernels import launch

from ..config import OPTIONS, RunConfig
from ..runtime.termination import WARNINGS
from ..tuning.coordinator import Refused
from ..tuning.options import config_of
from ..tuning.search import Search
from ..tuning.space import Space
from . import ranks as ranks_of
from .files import check_writable, print_or_write, replace
from .train import check as check_training
from .train import leave, preload, put_back, report


def search_of(
    space: str, study: str | None, resume: bool, base: dict, json: str | None, report: str | None,
    best_to: str | None, **more,
) -> tuple[Search, dict[str, str | None]]:  # fmt: skip
    """The search that the options ask for, and the files to write: options of `tune`."""
    file = Path(study) if study else None
    files = {"json": json, "report": report, "best_to": best_to}
    return Search(Space.read(space), RunConfig.of(**base), file, resume, **more), files


def check(asked: int | None, requeue: bool, **options) -> int:
    """Check everything that can be checked; returns the ranks in all.

    `asked` is the number of ranks asked for.
    """
    search, files = search_of(**options)
    if requeue and not search.resume:
        raise ValueError("--requeue has no effect without --resume")
    if files["best_to"] and len(search.merits) > 1:
        raise ValueError(
            f"--best-to writes the best set, and {search.merit} may have several: use --json FILE"
        )
    launch.check_ranks(2 if asked is None else asked)
    here = launched() if launch.under_mpi() else asked
    each = search.ranks_each(here)
    check_training(search.base)
    search.check(each)
    check_writable(*files.values(), search.file)
    return 1 + search.cells * each


def launched() -> int:
    from mpi4py import MPI

    return MPI.COMM_WORLD.size


def start(ranks: int, options: dict) -> int:
    """Start the ranks, and return the exit status of rank 0."""
    model = options["base"].get("model", OPTIONS["model"].default)
    needed = preload(model) or "tutorial_dl.cli.search_ranks"
    return ranks_of.start("tune", ranks, options, survive=True, preload=needed).returncode


def work(requeue: bool, **options) -> int:
    """The work of one rank; returns the exit status.

    It is 0, 1 if no trial was completed, 2, 130, or 75 (EX_TEMPFAIL) after a batch system warned.
    """
    import numpy as np

    from numba_kernels.team.team import Team

    from ..tuning.running import run

    np.seterr(all="ignore")
    search, files = search_of(**options)
    team = Team()
    launch.can_be_lost()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    status, warnings = 0, []
    for number in WARNINGS if search.file is not None else ():
        signal.signal(number, partial(end_early, warnings, team.rank))
    try:
        found = run(search, team, say)
        if found is not None:
            status = finish(search, *found, files, team.size)
    except KeyboardInterrupt:
        status = 130
    except Refused as error:  # by all cells, which leave by themselves
        print(f"error: {error}", file=sys.stderr, flush=True)
        status = 2
    except BaseException as error:
        of_input = isinstance(error, ValueError)
        report(team, error, setting_up=of_input)
        status = 2 if of_input else 1
    if warnings and status == 130:
        status = os.EX_TEMPFAIL
        say(f"ended by a signal; {search.file} has the trials, --resume goes on", None)
        if requeue:
            put_back()
    leave(status)  # lost ranks would never reach MPI_Finalize
    return status


def end_early(warnings: list, rank: int, number: int, frame: object) -> None:
    """The coordinator ends the search when its batch system warns; the others end with it."""
    if rank == 0 and not warnings:
        warnings.append(number)
        raise KeyboardInterrupt


def say(text: str, row: dict | None) -> None:
    print(text, file=sys.stderr, flush=True)


def finish(search: Search, study, outcome, files: dict[str, str | None], ranks: int) -> int:
    """Write what was asked for, and print the outcome."""
    from ..tuning.report import page, summary
    from ..tuning.study import row_of

    best, higher = study.best, search.higher
    result = {
        "best": best and {
            "number": best.number,
            "params": dict(best.params),
            "value": best.value,
            "folds": best.user_attrs.get("folds", [best.value]),
        },
        "front": [row_of(trial) for trial in study.front],
        "merit": search.merit,
        "maximise": higher[0] if len(higher) == 1 else higher,
        "sampler": search.sampler,
        "groups": search.groups,
        "folds": search.folds,
        "sizes": [search.ranks_each(ranks)] * search.cells,
        "ranks": ranks,
        "trials": study.rows(),
        "seconds": outcome.seconds,
        "utilisation": outcome.utilisation,
        "lost": outcome.lost,
        "stopped": outcome.stopped,
    }  # fmt: skip
    print_or_write(result, files["json"], summary(study, outcome), indent=1)
    if files["best_to"] and best is not None:
        each = best.user_attrs.get("ranks", result["sizes"][0])
        config = config_of(search.base, best.params)
        config = RunConfig.of(**config.values() | ({"ranks": each} if each > 1 else {}))
        replace(files["best_to"], config.toml())
    if files["report"]:
        title = f"Search by {search.sampler}: {search.merit}"
        replace(files["report"], page(study, outcome, title))
    if outcome.stopped == "interrupted":
        return 130
    if outcome.stopped:
        print(f"error: {outcome.stopped}", file=sys.stderr, flush=True)
    elif not result["front"]:
        print("error: no trial was completed", file=sys.stderr, flush=True)
    return 1 if outcome.stopped or not result["front"] else 0

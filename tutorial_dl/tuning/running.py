"""A search on the ranks of an MPI job: rank 0 coordinates, the others train in cells.

Some ranks after rank 0 may choose sets of values (suggester.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from .. import data as datasets
from ..config import RunConfig
from . import folds
from .space import Space

DEADLINE = 3600.0
LONGEST = 1e9  # seconds that a timer takes
FURTHER = 7919  # between the seeds of suggesters; studies that go on count by thousands
MANY = 32  # folds; more are checked before so many ranks are started


@dataclass(frozen=True)
class Search:
    """What to search, and how. `base` are the options that all trainings have in common.

    Args:
        space: The parameters.
        base: Options of `train`; those of the space replace them.
        sampler, trials, pruner: See `study.Study`.
        groups, folds: Sets of values at once, and trainings of each.
        merit: A column of the history, or a function of the trainer, "module:function".
        maximise: Whether higher is better; None: by the column's name.
        deadline: Seconds that one training may take.
        file: Where the study is kept; `resume`: go on with it.
        sizes: Ranks per training of each group, if they differ; else `groups` says how many.
        suggesters: Ranks that choose sets of values (N_SK); 0: rank 0 chooses.

    Raises:
        ValueError: In one line, if these do not fit together.
    """

    space: Space
    base: RunConfig
    sampler: str = "bayesian"
    trials: int = 20
    groups: int = 1
    folds: int = 1
    merit: str = "val_loss"
    maximise: bool | None = None
    pruner: str = "none"
    deadline: float = DEADLINE
    file: Path | None = None
    resume: bool = False
    suggesters: int = 0
    sizes: tuple[int, ...] | None = None

    def __post_init__(self):
        if self.sizes is not None:
            if not self.sizes or min(self.sizes) < 1:
                raise ValueError(f"sizes must be at least 1 each, got {self.sizes}")
            if self.groups not in (1, len(self.sizes)):
                raise ValueError(
                    f"sizes of {len(self.sizes)} groups, but groups {self.groups}: leave one out"
                )
            object.__setattr__(self, "groups", len(self.sizes))
        for name in ("trials", "groups", "folds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.suggesters < 0:
            raise ValueError(f"suggesters must be at least 0, got {self.suggesters}")
        if not 0 < self.deadline <= LONGEST:
            raise ValueError(
                f"deadline must be above 0 s and at most {LONGEST:g} s, got {self.deadline:g}"
            )

    @property
    def cells(self) -> int:
        return self.groups * self.folds

    @property
    def higher(self) -> bool:
        from .merit import is_higher_better

        return is_higher_better(self.merit) if self.maximise is None else self.maximise

    def sizes_of(self, ranks: int | None) -> list[int]:
        """Ranks of each cell, of `ranks` for all trainings, or of as many as it needs (None)."""
        from ..training.setup import ranks_of

        if self.sizes is not None:
            found = [size for size in self.sizes for _ in range(self.folds)]
            if ranks not in (None, sum(found)):
                raise ValueError(
                    f"groups of {', '.join(map(str, self.sizes))} ranks with {self.folds} folds "
                    f"need {sum(found)} ranks for training, there are {ranks}"
                )
            return found
        if ranks is None:
            return [ranks_of(self.base) or 1] * self.cells
        each, rest = divmod(ranks, self.cells)
        if rest or each < 1:
            more = f"{self.suggesters} suggesters + " if self.suggesters else ""
            alone = 1 + self.suggesters
            near = [alone + self.cells * number for number in (max(1, each), each + 1)]
            raise ValueError(
                f"a search needs 1 + {more}{self.groups} groups x {self.folds} folds x ranks per "
                f"training: {' or '.join(map(str, dict.fromkeys(near)))} ranks, got "
                f"{alone + ranks}"
            )
        return [each] * self.cells

    def members(self, sizes: list[int], first: int) -> list[list[int]]:
        """The ranks of each cell, from rank `first` on."""
        ends = np.cumsum([first, *sizes])
        return [list(range(a, b)) for a, b in itertools.pairwise(map(int, ends))]

    def check(self, sizes: list[int]) -> None:
        """Check everything that can be checked before ranks are started, with cells of `sizes`.

        What needs the data or the model is checked by the cells (`Cell.check`).
        """
        from . import merit, options, samplers, study

        merit.check_source(self.merit)
        if self.folds > MANY and self.base.data.data in datasets.NAMES:
            folds.check(datasets.load(self.base.data.data), self.folds)
        samplers.check(self.sampler)
        samplers.check_suggesters(self.sampler, self.suggesters)
        if self.sampler == "grid":
            samplers.check_grid(self.space, self.trials)
        study.check_pruner(self.pruner)
        for size in set(sizes):
            options.check(self.space, self.base, size)
        if self.file is not None and self.file.exists() and not self.resume:
            raise ValueError(
                f"study {self.file} exists; resume it (--resume), or choose another file"
            )

    def study(self):
        from .study import Study

        given = self.base.tables()
        about = {n: given.get(n) for n in ("data", "optimizer", "schedule", "strategy")}
        return Study(
            self.space, self.sampler, self.trials, maximise=self.higher, pruner=self.pruner,
            epochs=self.base.schedule.epochs, seed=self.base.data.seed, file=self.file,
            resume=self.resume, about=about | {"merit": self.merit, "folds": self.folds},
        )  # fmt: skip

    def study_of(self, suggester: int, after: int):
        """An empty study in memory, with a seed of its own, for a suggester that begins `after` so
        many trials."""
        from .study import Study

        return Study(
            self.space, self.sampler, self.trials, maximise=self.higher,
            seed=self.base.data.seed + FURTHER * suggester + 1000 * after,
        )  # fmt: skip


def run(search: Search, team, tell: Callable[[str, dict | None], None] = lambda text, row: None):
    """Search on the ranks of `team`. Collective; returns (study, outcome) on rank 0, else None.

    Raises:
        Refused: On rank 0, if nothing can be trained as asked; the other ranks return.
    """
    from .cell import Cell, MpiLink
    from .coordinator import Coordinator, Refused
    from .lifelines import connected
    from .mpi_port import MpiPort
    from .suggester import Suggester, serve

    alone = 1 + search.suggesters  # ranks that do not train
    sizes = search.sizes_of(team.size - alone)
    members = search.members(sizes, alone)
    study = None
    if team.rank == 0:
        study = search.study()  # an error here ends all ranks before they split
    comm = team.duplicate(team.comm)
    line = connected(team)
    members += [[rank] for rank in range(1, alone)]
    mine = next((i for i, ranks in enumerate(members) if team.rank in ranks), len(members))
    part = team.split(mine)
    if team.rank:
        link = MpiLink(team, comm, line)
        if team.rank < alone:
            serve(Suggester(partial(search.study_of, team.rank)), link)
            return None
        Cell(link, part, search.space, search.base, search.folds, search.merit).serve()
        return None
    port = MpiPort(team, comm, members, line)
    coordinator = Coordinator(
        study, port, search.cells, search.folds, search.deadline, tell,
        suggesters=search.suggesters, sizes=sizes,
    )  # fmt: skip
    try:
        outcome = coordinator.run()
        port.mail.flush(5.0)
    except BaseException as error:
        if isinstance(error, Refused):
            port.mail.flush(5.0)
        study.discard()  # the file stays, unless it is new and nothing was tried
        raise
    finally:
        study.close()
        if line is not None:
            line.close()
    return study, outcome

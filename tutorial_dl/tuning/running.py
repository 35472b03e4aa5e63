"""A search on the ranks of an MPI job: rank 0 coordinates, the others choose and train in cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .. import data as datasets
from ..config import RunConfig
from . import folds
from .space import Space

DEADLINE = 3600.0
LONGEST = 1e9  # seconds that a timer takes
MANY = 32  # folds; more are checked before so many ranks are started
GONE = {  # options of earlier versions, and what to write now
    "suggesters": "each group chooses its own sets; leave it out, and start that many fewer ranks",
    "sizes": "all groups have as many ranks; write groups, and a number of ranks that it divides",
}


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

    def __post_init__(self):
        for name in ("trials", "groups", "folds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
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

    def ranks_each(self, ranks: int | None) -> int:
        """Ranks of each cell, of `ranks` in all, or of as many as it needs (None)."""
        from ..training.ranks import ranks_of

        if ranks is None:
            return ranks_of(self.base) or 1
        each, rest = divmod(max(0, ranks - 1), self.cells)
        if rest or each < 1:
            near = [1 + self.cells * number for number in (max(1, each), each + 1)]
            raise ValueError(
                f"a search needs 1 + {self.groups} groups x {self.folds} folds x ranks per "
                f"training: {' or '.join(map(str, dict.fromkeys(near)))} ranks, got {ranks}"
            )
        return each

    def members(self, each: int, first: int) -> list[list[int]]:
        """The ranks of each cell, from rank `first` on."""
        return [
            list(range(first + cell * each, first + (cell + 1) * each))
            for cell in range(self.cells)
        ]

    def leader(self, cell: int):
        """What chooses sets of values on a rank of this cell."""
        from .leader import Leader

        return Leader(self.space, self.sampler, self.base.data.seed, cell)

    def check(self, each: int) -> None:
        """Check everything that can be checked before ranks are started, with `each` in a cell.

        What needs the data or the model is checked by the cells (`Cell.check`).
        """
        from . import merit, options, samplers, space, study

        merit.check_source(self.merit)
        if self.folds > MANY and self.base.data.data in datasets.NAMES:
            folds.check(datasets.load(self.base.data.data), self.folds)
        samplers.check(self.sampler)
        if self.sampler == "grid":
            samplers.check_grid(self.space, self.trials)
        space.check_name("pruner", self.pruner, study.PRUNERS)
        options.check(self.space, self.base, each)
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


def run(search: Search, team, tell: Callable[[str, dict | None], None] = lambda text, row: None):
    """Search on the ranks of `team`. Collective; returns (study, outcome) on rank 0, else None.

    Raises:
        Refused: On rank 0, if nothing can be trained as asked; the other ranks return.
    """
    from .cell import Cell, MpiLink
    from .coordinator import Coordinator, Refused
    from .lifelines import connected
    from .mpi_port import MpiPort

    members = search.members(each := search.ranks_each(team.size), 1)
    study = None
    if team.rank == 0:
        study = search.study()  # an error here ends all ranks before they split
    comm = team.duplicate(team.comm)
    line = connected(team)
    mine = next((i for i, ranks in enumerate(members) if team.rank in ranks), len(members))
    part = team.split(mine)
    if team.rank:
        Cell(
            MpiLink(team, comm, line), part, search.space, search.base, search.folds, search.merit,
            search.leader(mine),
        ).serve()  # fmt: skip
        return None
    port = MpiPort(team, comm, members, line)
    coordinator = Coordinator(
        study, port, search.cells, search.folds, search.deadline, tell, ranks=each
    )
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

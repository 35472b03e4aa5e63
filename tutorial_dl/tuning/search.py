"""`Search`: what to search, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import data as datasets
from .. import user_function
from ..config import SEARCH, RunConfig, SearchConfig
from . import folds
from .space import Space

MANY = 32  # folds; more are checked before so many ranks are started
GONE = {  # options of earlier versions, and what to write now
    "suggesters": "each group chooses its own sets; leave it out, and start that many fewer ranks",
    "sizes": "all groups have as many ranks; write groups, and a number of ranks that it divides",
}


@dataclass(frozen=True)
class Search(SearchConfig):
    """What to search, and how.

    Args:
        space: The parameters.
        base: Options of `train` that all trainings have in common; those of the space replace them.
        file: Where the study is kept; `resume`: go on with it.

    Others are those of `SearchConfig` (config.py), by name: sampler, trials, groups, folds, merit,
    maximise, pruner, deadline.

    Raises:
        ValueError: In one line, if these do not fit together.
    """

    space: Space
    base: RunConfig
    file: Path | None = None
    resume: bool = False

    def __post_init__(self):
        for name, one in SEARCH.items():
            one.checked(getattr(self, name))

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

    def check(self, each: int) -> None:
        """Check everything that can be checked before ranks are started, with `each` in a cell.

        What needs the data or the model is checked by the cells (`Cell.check`).
        """
        from . import options, samplers, space, study

        if user_function.is_reference(self.merit):
            user_function.check(self.merit, "merit")
        if self.folds > MANY and self.base.data.data in datasets.NAMES:
            folds.fold_of(datasets.load(self.base.data.data), 0, self.folds)
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

"""`Search`: what to search, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import data as datasets
from .. import user_function
from ..config import SEARCH, RunConfig, SearchConfig
from ..options import directions_of
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
    maximise, directions, pruner, population, deadline, retry.

    Raises:
        ValueError: In one line, if these do not fit together.
    """

    space: Space
    base: RunConfig
    file: Path | None = None
    resume: bool = False

    def __post_init__(self):
        for name, one in SEARCH.items():  # a list of names becomes a text
            object.__setattr__(self, name, one.checked(getattr(self, name)))
        object.__setattr__(self, "merit", ",".join(map(str.strip, self.merits)))
        if not all(self.merits) or len(set(self.merits)) < len(self.merits):
            raise ValueError(f"merit must be names that differ, with commas, got {self.merit!r}")
        if self.directions is not None and self.maximise is not None:
            raise ValueError("both say which way is better: give directions or maximise, not both")
        if len(self.higher) != len(self.merits):
            raise ValueError(
                f"directions {self.directions} must be as many as figures of merit: {self.merit}"
            )
        if self.retry and not self.resume:
            raise ValueError("--retry tries what failed in an earlier search: it needs --resume")

    @property
    def cells(self) -> int:
        return self.groups * self.folds

    @property
    def merits(self) -> list[str]:
        return self.merit.split(",")

    @property
    def higher(self) -> list[bool]:
        """For each figure of merit, whether higher is better."""
        from .merit import is_higher_better

        if self.directions is not None:
            return directions_of(self.directions)
        if self.maximise is not None:
            return [self.maximise] * len(self.merits)
        return [is_higher_better(name) for name in self.merits]

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
        from . import options, samplers, study

        for name in filter(user_function.is_reference, self.merits):
            user_function.check(name, "merit")
        if self.folds > MANY and self.base.data.data in datasets.NAMES:
            folds.fold_of(datasets.load(self.base.data.data), 0, self.folds)
        samplers.check(self.sampler)
        goes_on = self.resume and self.file is not None and self.file.exists()
        if self.sampler == "grid" and not goes_on:  # else some sets may have failed
            samplers.check_grid(self.space, self.trials)
        study.pruner_of(self.pruner, 1, len(self.merits))
        options.check(self.space, self.base, each)
        if self.population is not None:
            self._check_population()
        if self.file is not None and self.file.exists() and not self.resume:
            raise ValueError(
                f"study {self.file} exists; resume it (--resume), or choose another file"
            )

    def _check_population(self) -> None:
        """Raise ValueError, in one line, unless groups can copy each other (population.py)."""
        from ..training.optimizer_choice import OF_RULES

        known = ("learning_rate", *OF_RULES)
        others = [name for name in self.space.names if name not in known]
        if others or self.space.when:
            raise ValueError(
                f"--population changes values while it trains: {', '.join(known)}, without "
                f"conditions; got {', '.join(others) or 'conditions'}"
            )
        schedule = self.base.schedule
        if schedule.schedule != "constant" or schedule.warm_up or schedule.batch_rule is not None:
            raise ValueError(
                "--population finds a schedule: leave --schedule, --warm-up and --batch-rule out"
            )
        if schedule.patience is not None or schedule.target is not None:
            raise ValueError(
                "--population trains all groups for equally many epochs: leave --patience and "
                "--target out"
            )
        if self.folds > 1 or self.pruner != "none" or self.resume or len(self.merits) > 1:
            raise ValueError(
                "--population compares groups by one figure of merit, in one run: leave --folds, "
                "--pruner, --resume and further merits out"
            )
        if self.groups < 2:
            raise ValueError(f"--population needs --groups of at least 2, got {self.groups}")
        for name in ("trials", "deadline"):
            if getattr(self, name) != SEARCH[name].default:
                raise ValueError(
                    f"--{name} has no effect with --population, which trains each group once, to "
                    "its end: leave it out"
                )

    def study(self):
        from .study import Study

        given = self.base.tables()
        about = {n: given.get(n) for n in ("data", "optimizer", "schedule", "strategy")}
        return Study(
            self.space, self.sampler, self.trials if self.population is None else self.groups,
            maximise=self.higher, merits=self.merits,
            pruner=self.pruner, epochs=self.base.schedule.epochs, seed=self.base.data.seed,
            file=self.file, resume=self.resume, retry=self.retry,
            about=about | {"merit": self.merit, "folds": self.folds},
        )  # fmt: skip

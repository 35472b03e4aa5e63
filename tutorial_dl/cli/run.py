"""`python -m tutorial_dl run`: trains on the same digits by each strategy, on 1 to 4 ranks.

Every row is a separate `train` command, in processes of its own, so it shows what a user would get.
Each trains an epoch that does not count first (--rehearse), because compiling would be most of the
time of so short a run. The last run trains a GAN, which is not compared with the others: the report
shows what it draws, epoch by epoch. For serial and synchronous training the speed-up is also
predicted, from the serial run alone (simulate/steps.py). Every rank has one thread; otherwise
the serial run would already use all cores.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import psutil

from numba_kernels import launch

from ..config import RunConfig
from ..simulate.steps import copy_bandwidth, speed_up
from . import ranks as ranks_of
from .outcome import IN_STEP, of_gan, outcome
from .report import COLUMNS, table, write
from .train import preload

SECONDS = 300  # a run takes about 10 s; after this time it counts as failed

# Learning rates were chosen on these digits: docs/asynchronous.md has the losses of others.
ADAM = {"learning_rate": 0.001}
ELASTIC = {"learning_rate": 0.4, "momentum": 0.8}
ENERGY = {"learning_rate": 0.4}


class Case(NamedTuple):
    model: str
    strategy: str
    ranks: int
    batch_size: int
    epochs: int
    more: dict[str, float] = {}  # noqa: RUF012  (nobody changes it)
    rehearse: bool = True

    def options(self, **more) -> dict:
        """The options of the `train` command for this run."""
        own = {name: getattr(self, name) for name in self._fields if name not in ("ranks", "more")}
        return RunConfig.of(data="digits", **own, **self.more, **more).changed()


CASES = (
    Case("dense", "serial", 1, 256, 60, ADAM),
    Case("dense", "synchronous", 1, 256, 60, ADAM),
    Case("dense", "synchronous", 2, 256, 60, ADAM),
    Case("dense", "synchronous", 4, 256, 60, ADAM),
    Case("dense", "downpour", 3, 256, 60, ADAM),
    Case("dense", "elastic_averaging", 3, 256, 60, ELASTIC),
    Case("dense", "gradient_energy_matching", 3, 256, 60, ENERGY),
    Case("dense", "hogwild", 2, 256, 60, ADAM),
    Case("cnn", "serial", 1, 64, 6),
    Case("cnn", "synchronous", 2, 64, 6),
)
GAN = Case("digits-gan", "synchronous", 2, 32, 30, rehearse=False)


def run(most_ranks: int, report: Path, json_to: str | None) -> int:
    """Train every run of at most `most_ranks` ranks; return the exit status, 1 if one failed."""
    # If the results go to standard output, everything else goes to standard error.
    with contextlib.redirect_stdout(sys.stderr if json_to == "-" else sys.stdout):
        others: list[float] = []
        results = train_all(most_ranks, others)
        if not results:
            return 1
        *compared, gan = results
        rows = compare(compared, launch.usable_cores(), copy_bandwidth())
        table(rows)
        said = [*outcome(rows, launch.usable_cores(), max(others)), of_gan(gan)]
        print("\n".join(said))
        write(report, rows, compared, said, gan)
        print(f"report: {report}")
    if json_to == "-":
        print(json.dumps(results))
    elif json_to:
        Path(json_to).write_text(json.dumps(results, indent=1) + "\n")
    return 0


def train_all(most_ranks: int, others: list[float]) -> list[dict]:
    """The results of all runs of at most `most_ranks` ranks, the GAN's last; none if one failed.

    Before each run, the number of cores that other programs keep busy is added to `others`.
    """
    results = []
    runs = [r for r in CASES if r.ranks <= most_ranks]
    runs.append(GAN._replace(ranks=min(GAN.ranks, most_ranks)))
    one_thread = dict.fromkeys(launch.THREAD_VARIABLES, "1")
    for number, one in enumerate(runs, 1):
        what = f"{one.model}, {one.strategy}, {one.ranks} rank{'s' * (one.ranks > 1)}"
        print(f"[{number}/{len(runs)}] {what}", file=sys.stderr, flush=True)
        others.append(psutil.cpu_percent(interval=0.2) / 100 * psutil.cpu_count())
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "result.json")
            options = one.options(json=str(file), quiet=True)
            try:
                done = ranks_of.start(
                    "train", one.ranks, options, timeout=SECONDS, env=one_thread,
                    preload=preload(one.model),
                )  # fmt: skip
                problem = done.returncode and f"ended with status {done.returncode}"
            except subprocess.TimeoutExpired:
                problem = f"not finished within {SECONDS} s"
            if problem:
                print(f"error: {what}: {problem}", file=sys.stderr)
                return []
            results.append(json.loads(file.read_text()))
    return results


def compare(results: list[dict], cores: int, bandwidth: float) -> list[dict]:
    """One row per result, with its speed-up over the serial run of the same model.

    `cores` are those that the ranks share; one of them copies `bandwidth` bytes per second.
    """
    serial = {r["model"]: r for r in results if r["strategy"] == "serial"}
    rows = []
    for result in results:
        base = serial[result["model"]]
        profile = base["profile"]
        row = {name: result[name] for name in COLUMNS if name in result}
        row["speed_up"] = result["samples_per_second"] / base["samples_per_second"]
        row["predicted"] = None
        if result["strategy"] in IN_STEP:
            row["predicted"] = speed_up(
                result["ranks"],
                gradient_seconds={int(p): s for p, s in profile["gradient_seconds"].items()},
                update_seconds=profile["update_seconds"],
                parameters=base["parameters"],
                cores=cores,
                bytes_per_second=bandwidth,
            )
        rows.append(row)
    return rows

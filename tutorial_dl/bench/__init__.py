"""`python -m tutorial_dl bench`: whole training steps of networks, compared with Keras and PyTorch.

On two ranks or more, it also measures the bubble of pipelines (pipelines.py). `bench pipelines`
measures only these, and their throughput (pipeline_throughput.py); `bench tensor` that of a tensor
group (tensor_throughput.py). `bench gans` measures GANs (gans.py), `bench gan-strategies` trains
one by every strategy (gan_strategies.py), and `bench digits-gan` and `shower-gan` train these GANs
with several seeds (gan_quality.py). `bench sharding` measures the memory of ranks that divide a
model (sharding.py).

Ranks are started several times. PyTorch (DistributedDataParallel, or its pipelines) takes its turn
between two starts, if torch is in this environment or in that of the Python named by
TUTORIAL_DL_TORCH.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from numba_kernels import launch
from numba_kernels.bench import check_file, facts, one_run, two_nodes
from numba_kernels.bench.rows import merge, table

STARTS, SECONDS = 3, 60.0  # starts of the ranks; seconds of measuring in all starts, DDP excluded
NETWORK_STEPS, PIPELINE_STEPS, TENSOR, SHARDING = "networks", "pipelines", "tensor", "sharding"
GANS, GAN_STRATEGIES = "gans", "gan-strategies"
GAN_RUNS = "digits-gan", "shower-gan"
KINDS = NETWORK_STEPS, PIPELINE_STEPS, TENSOR, GANS, GAN_STRATEGIES, *GAN_RUNS, SHARDING
GAN_PART, OVERLAP = "tutorial_dl.bench.gans", "tutorial_dl.bench.gan_overlap"
PART, PIPELINES = "tutorial_dl.bench.networks", "tutorial_dl.bench.pipelines"
THROUGHPUT = "tutorial_dl.bench.pipeline_throughput"
TENSOR_PART = "tutorial_dl.bench.tensor_throughput"
PIPELINES_SHARE = 0.4  # of the seconds, in addition
TORCH = "TUTORIAL_DL_TORCH"
DDP, TORCH_PIPELINE = "torch DDP over gloo", "torch pipelining over gloo"


# The networks. An MLP computes little per weight, so its step shows the cost of reducing weights; a
# CNN and an LSTM compute more. The LSTM, for sequences of 338 particles, is that of MPI-Learn.


@dataclass(frozen=True)
class Network:
    """A network: shape of one sample, and number of samples per rank and step."""

    name: str
    shape: tuple[int, ...]
    samples: int
    classes: int = 10

    def build(self, keras):
        """The network in Keras, not compiled; its outputs are logits."""
        dense, conv = keras.layers.Dense, keras.layers.Conv2D
        hidden = {
            "mlp": lambda: [dense(512, "relu"), dense(512, "relu")],
            "cnn": lambda: [
                conv(32, 3, activation="relu"),
                conv(64, 3, activation="relu"),
                keras.layers.MaxPooling2D(2),
                keras.layers.Flatten(),
                dense(128, "relu"),
            ],
            "lstm": lambda: [keras.layers.Masking(), keras.layers.LSTM(20)],
        }[self.name]()
        return keras.Sequential([keras.Input(self.shape), *hidden, dense(self.classes)])

    def batches(self, count: int, seed: int) -> Iterator[tuple]:
        """`count` batches of random numbers: inputs (samples, *shape) float32, labels int64."""
        random = np.random.default_rng(seed)
        for _ in range(count):
            x = random.random((self.samples, *self.shape), np.float32)
            yield x, random.integers(0, self.classes, self.samples)


NETWORKS = {
    "mlp": Network("mlp", (784,), 32),
    "cnn": Network("cnn", (28, 28, 1), 32),
    "lstm": Network("lstm", (338, 20), 100, 3),
}


def main(
    ranks: int,
    seconds: float | None,
    file: str | None,
    what: str = NETWORK_STEPS,
    seeds: int | None = None,
    first_seed: int | None = None,
    epochs: int | None = None,
) -> None:
    """Measure, print the table, and write the rows as JSON to `file` ("-" prints them instead).

    `seeds`, `first_seed`, `epochs`: see gan_quality.py.
    """
    launch.check_ranks(ranks)
    if what not in KINDS:
        raise ValueError(f"expected one of {', '.join(KINDS)}, got {what!r}")
    if seconds is not None and what in (GAN_STRATEGIES, *GAN_RUNS, SHARDING):
        raise ValueError(f"--seconds has no effect on {what}: its runs have fixed lengths")
    seconds = SECONDS if seconds is None else seconds
    if not 0 < seconds < 3600:
        raise ValueError(f"--seconds must be more than 0 and less than 3600, got {seconds}")
    path = check_file(file) if file and file != "-" else None
    of_runs = {"--seeds": (seeds, 1), "--first-seed": (first_seed, 0), "--epochs": (epochs, 1)}
    for flag, (value, least) in of_runs.items():
        if value is not None and what not in GAN_RUNS:
            raise ValueError(f"{flag} is for {' and '.join(GAN_RUNS)}, it has no effect on {what}")
        if value is not None and value < least:
            raise ValueError(f"{flag} must be at least {least}, got {value}")
    if what == GAN_STRATEGIES:
        from . import gan_strategies

        finish(gan_strategies.compare(ranks), path, file, gan_strategies.table_of)
        return
    if what == SHARDING:
        from . import sharding

        finish(sharding.measure(ranks), path, file, sharding.table_of)
        return
    if what in GAN_RUNS:
        from . import gan_quality

        first = first_seed or 0
        chosen = range(first, first + (gan_quality.SEEDS[what] if seeds is None else seeds))
        result = gan_quality.compare(what, ranks, chosen, epochs, path)
        finish(result, path, file, gan_quality.table_of)
        return
    if what == GANS:
        if ranks % 2:
            raise ValueError(f"-n must be even for gans: two nodes of equally many, got {ranks}")
        about = facts()
        overlap = one_run(OVERLAP, ranks, seconds / 3, full=False)
        if two_nodes.possible():
            overlap += one_run(OVERLAP, ranks, seconds / 6, False, ranks // 2)
        found = merge([overlap + one_run(GAN_PART, ranks, seconds * 2 / 3, full=False)])
        finish(about({GAN_PART: 1, OVERLAP: 1}, found), path, file, gans_table)
        return
    if what in (PIPELINE_STEPS, TENSOR) and ranks < 2:
        raise ValueError(f"-n must be at least 2 for {what}, got {ranks}")
    if what == TENSOR:
        from .tensor_throughput import text

        about = facts()
        starts = [one_run(TENSOR_PART, ranks, seconds / STARTS, full=False) for _ in range(STARTS)]
        found = about({TENSOR_PART: STARTS}, merge(starts))
        finish(found, path, file, lambda result: f"{table(result)}\n\n{text(result['rows'])}")
        return
    torch = torch_python()
    what_for = "pipelining" if what == PIPELINE_STEPS else "DDP"
    measured = measure_pipelines if what == PIPELINE_STEPS else measure
    finish(measured(ranks, seconds, torch), path, file, tables)
    if torch is None:
        words = f"note: no torch found; set {TORCH}=/path/to/python to compare with {what_for}"
        print(words, file=sys.stderr)


def gans_table(result: dict) -> str:
    """The table, and the rounds' ratios: overlapped over one after the other."""
    lines = [
        f"{one['what']}: overlapped / one after the other {one['median_of_ratios']:.3f}, median of "
        f"{one['rounds']} rounds (95%: {one['median_from']:.3f} to {one['median_to']:.3f})"
        for one in result["rows"]
        if "median_of_ratios" in one
    ]
    return "\n".join([table(result), "", *lines])


def tables(result: dict) -> str:
    """The table of all rows, and those of pipelines if there are any."""
    from . import pipeline_throughput, pipelines

    texts = (one.text(result["rows"]) for one in (pipelines, pipeline_throughput))
    return "\n\n".join(filter(None, (table(result), *texts)))


def finish(result: dict, path: Path | None, file: str | None, table: Callable) -> None:
    """Write the result to `path`, and print it, or its table."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if file == "-" else table(result))


def torch_python() -> str | None:
    """The path of a Python that has torch, or None; raises ValueError if TORCH names no program."""
    named = os.environ.get(TORCH)
    if named:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise ValueError(f"{TORCH} must be the path of a Python that has torch, got {named}")
        return named
    return sys.executable if find_spec("torch") else None


def measure(ranks: int, seconds: float, torch: str | None) -> dict:
    """Measure; returns what --json writes, as `numba_kernels.bench.measure` does."""
    about = facts()
    starts = []
    for _ in range(STARTS):
        ours = one_run(PART, ranks, seconds / STARTS, full=False)
        theirs = {}
        if torch:
            theirs = unless_it_fails(DDP, torch_steps, torch, ranks, seconds / STARTS / 3)
            torch = torch if theirs else None
        # One row of each network again, with DDP's times in place of its peer's.
        firsts = {one["network"]: one for one in reversed(ours)}
        against = [
            one | {"peer": DDP, "peer_us": [1e6 * t for t in theirs[network]],
                   "peer_samples": one["samples"]}
            for network, one in firsts.items() if network in theirs
        ]  # fmt: skip
        starts.append(ours + against)
    if torch is None:  # or it has failed since the first start
        starts = [[one for one in start if one["peer"] != DDP] for start in starts]
    rows = merge(starts)
    order = list(dict.fromkeys(one["network"] for one in rows))
    rows.sort(key=lambda one: order.index(one["network"]))
    if ranks > 1:
        from .pipelines import merged

        each = PIPELINES_SHARE * seconds / STARTS
        rows += merged([one_run(PIPELINES, ranks, each, full=False) for _ in range(STARTS)])
    return about({PART: STARTS} | ({PIPELINES: STARTS} if ranks > 1 else {}), rows)


def measure_pipelines(ranks: int, seconds: float, torch: str | None) -> dict:
    """As `measure`: bubbles, throughput against one rank, and against PyTorch's pipelines."""
    from . import pipeline_throughput, pipelines

    about, size, bubbles, starts = facts(), pipeline_throughput.size(), [], []
    for _ in range(STARTS):
        bubbles.append(one_run(PIPELINES, ranks, 0.4 * seconds / STARTS, full=False))
        ours = one_run(THROUGHPUT, ranks, 0.4 * seconds / STARTS, full=False)
        theirs, each = {}, 0.2 * seconds / STARTS
        if torch:
            theirs = unless_it_fails(TORCH_PIPELINE, torch_pipeline, torch, ranks, each, size)
            torch = torch if theirs else None
        starts.append(ours + pipeline_throughput.against(ours, theirs, TORCH_PIPELINE))
    if torch is None:  # or it has failed since the first start
        starts = [[one for one in start if one["peer"] != TORCH_PIPELINE] for start in starts]
    rows = pipelines.merged(bubbles) + merge(starts)
    return about({PIPELINES: STARTS, THROUGHPUT: STARTS}, rows)


def unless_it_fails(peer: str, run: Callable[..., dict], *arguments) -> dict:
    """What run(*arguments) returns; {} and a note if PyTorch fails.

    Its processes have been seen to abort, and our own rows are worth keeping.
    """
    try:
        return run(*arguments)
    except ValueError as error:
        print(f"note: without rows of {peer}: {error}", file=sys.stderr)
        return {}


def torch_steps(python: str, ranks: int, seconds: float) -> dict[str, list[float]]:
    """{network: seconds per step in each round} of DistributedDataParallel on `ranks` ranks."""
    return by_torch(python, "torch_ddp.py", ranks, seconds)


def torch_pipeline(python: str, ranks: int, seconds: float, size: dict) -> dict[str, dict]:
    """What torch_pipeline.py writes, of a model of this size."""
    return by_torch(python, "torch_pipeline.py", ranks, seconds, json.dumps(size))


def by_torch(python: str, name: str, ranks: int, seconds: float, *more: str) -> dict:
    """Run a program of this folder with a Python that has torch; returns what it writes."""
    program = Path(__file__).with_name(name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "times.json")
        words = [python, str(program), str(ranks), str(seconds), str(file), *more]
        # The guard leaves none of its processes behind.
        guarded, limit = launch.guarded(words, os.getpid()), 120 + 5 * seconds
        with subprocess.Popen(guarded, stdout=-1, stderr=-1, text=True) as process:
            try:
                _, said = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                process.terminate()  # the guard then ends all that is below it
                process.communicate()
                raise ValueError(f"{python} {program.name}: not done in {limit:g} s") from None
        if process.returncode:
            why = said.strip().splitlines()[-1:] or [f"status {process.returncode}"]
            raise ValueError(f"{python} {program.name} failed: {why[0]}")
        return json.loads(file.read_text())

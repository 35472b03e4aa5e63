"""`python -m tutorial_dl bench`: whole training steps of three networks, compared with Keras.

Ranks are started several times. networks.py says what they measure. `bench time-to-accuracy` trains
until models are good, by several optimizers (time_to_accuracy.py). The folder benchmarks/ of the
repository has what research measured: PyTorch, pipelines, tensor groups, memory, GANs, samplers.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numba_kernels import launch
from numba_kernels.bench import check_file, facts, one_run
from numba_kernels.bench.rows import merge, table

STARTS, SECONDS = 3, 60.0  # starts of the ranks; seconds of measuring in all starts
PART = "tutorial_dl.bench.networks"
RACE, RACE_SECONDS = "time-to-accuracy", 300.0  # after 120 + 5 times as many, it has failed
# What `bench` measured once, and where that is now
MOVED = "pipelines", "tensor", "gans", "gan-strategies", "digits-gan", "shower-gan", "sharding"


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


def main(ranks: int, seconds: float | None, file: str | None, words: Sequence[str] = ()) -> None:
    """Measure, print the table, and write the rows as JSON to `file` ("-" prints them instead).

    Raises ValueError for further words of the command line, but for "networks" and RACE.
    """
    for word in words:
        if word in MOVED:
            raise ValueError(
                f"bench {word} is now, in a copy of the repository: python -m benchmarks {word}"
            )
        if word not in ("networks", RACE) or len(words) > 1:
            raise ValueError(f"bench measures networks or {RACE}, and takes no {' '.join(words)}")
    launch.check_ranks(ranks)
    if RACE in words:
        if seconds is not None:
            raise ValueError(f"--seconds has no effect on bench {RACE}: leave it out")
        return race(ranks, file)
    seconds = SECONDS if seconds is None else seconds
    path = check_seconds_and_file(seconds, file)
    about = facts()
    rows = merge([one_run(PART, ranks, seconds / STARTS, full=False) for _ in range(STARTS)])
    finish(about({PART: STARTS}, rows), path, file)


def race(ranks: int, file: str | None) -> None:
    """Measure the seconds until models are good, on one start of the ranks."""
    from . import time_to_accuracy

    path = check_seconds_and_file(RACE_SECONDS, file)
    about = facts()
    rows = one_run(time_to_accuracy.__name__, ranks, RACE_SECONDS, full=False)
    result = about({RACE: 1}, rows) | {"commit": time_to_accuracy.commit()}
    finish(result, path, file, time_to_accuracy.table)


def check_seconds_and_file(seconds: float, file: str | None) -> Path | None:
    """The path that the result goes to, if any."""
    if not 0 < seconds < 3600:
        raise ValueError(f"--seconds must be more than 0 and less than 3600, got {seconds}")
    return check_file(file) if file and file != "-" else None


def finish(
    result: dict, path: Path | None, file: str | None, as_text: Callable[[dict], str] = table
) -> None:
    """Write the result to `path`, and print it, or its table."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if file == "-" else as_text(result))

"""`python -m tutorial_dl generate`: text, or samples of a GAN's checkpoint to an HDF5 file."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from .. import config as configs
from .. import data as datasets
from .. import models
from ..data import characters as text
from ..data.dataset import Data
from ..options import model_arguments_of
from ..replica import sampling
from ..replica.gan import in_memory
from . import applying

ENDINGS = (".h5", ".hdf5")


def write_text(
    model_file: str, model: str | None, prompt: str, characters: int, temperature: float, seed: int
) -> None:
    """Print the prompt and what the model writes after it; ValueError if it is no such model."""
    applying.check("generate", model_file, model, "text", "train")
    if not prompt:
        raise ValueError("--prompt needs at least one character")
    replica = applying.load(model_file, model, datasets.load("text"))
    shape = None
    if replica.traits.library == "keras":
        shape = replica.model.output_shape
    elif hasattr(replica, "positions"):
        shape = (None, replica.positions, replica.segments[-1].size)
    if shape is None or len(shape) != 3 or shape[2] != len(text.ALPHABET):
        raise ValueError(
            f"{Path(model_file)} has no model of the next of {len(text.ALPHABET)} characters: "
            "train gpt or transformer on data 'text'"
        )
    print(prompt, end="", flush=True)
    start = text.encode(prompt)
    for token in sampling.tokens(replica, start, characters, shape[1], temperature, seed):
        print(text.decode([token]), end="", flush=True)
    print()


def check(checkpoint: str, n: int, out: str) -> configs.RunConfig:
    """Check what can be checked before anything is loaded; returns the run's configuration."""
    folder = Path(checkpoint)
    if not folder.is_dir() or not (folder / "run.toml").is_file():
        raise ValueError(
            f"{folder} is no folder of checkpoints with a run.toml, as train --checkpoint writes it"
        )
    if n < 1:
        raise ValueError(f"-n must be at least 1, got {n}")
    if Path(out).suffix not in ENDINGS:
        raise ValueError(f"samples go to a file that ends in {' or '.join(ENDINGS)}, got {out!r}")
    return configs.RunConfig.of(**configs.read(folder / "run.toml"))


def generate(
    config: configs.RunConfig, checkpoint: str, n: int, out: str, seed: int, asked: float | None
) -> int:
    """Write `n` samples of the averaged generator; the work of this process alone.

    Args:
        asked: The class or the energy (GeV) of all samples; None: classes in turn, or the
            conditions of the training data, by turns.
    """
    data = config.data
    dataset = in_memory(datasets.load(data.data, **config.data.files))
    arguments = model_arguments_of(data.model_arguments, data.model)
    game = models.build(data.model, dataset, data.seed, arguments)
    if not hasattr(game, "discriminator"):
        raise ValueError(f"{checkpoint} is of model {data.model!r}, which is no GAN")
    step = restore(game, checkpoint, config.with_master)
    y = conditions(dataset, n, asked)
    game.sample(y[:1], 1, seed)  # what is compiled at the first call does not count
    since = time.perf_counter()
    samples = game.sample(y, n, seed)
    seconds = time.perf_counter() - since
    write(samples, y, out)
    print(
        f"{n} samples of {data.model} after step {step} in {out}: {n / seconds:,.0f} per second",
        file=sys.stderr,
    )
    return 0


def restore(game: Any, checkpoint: str, with_master: bool) -> int:
    """Load the generator of the newest checkpoint: averaged weights if there are some.

    Returns the step.
    """
    from mpi4py import MPI

    from numba_kernels.team.team import Team

    from ..checkpoint.contents import check_model, model_of
    from ..checkpoint.format import CheckpointError, Checkpoints
    from ..runtime.game import Together

    replica = Together(game) if with_master else game.generator
    try:
        saved = Checkpoints(Team(MPI.COMM_SELF), checkpoint).newest()
        if saved is None:
            raise ValueError(f"there is no checkpoint in {checkpoint} yet")
        ours = model_of(replica.segments, replica.parameters.dtype)
        check_model(saved.path, ours, saved.values["model"])
    except CheckpointError as error:
        raise ValueError(str(error)) from None
    n = replica.parameters.size
    name = "parameters"
    for number, (callback, _, names) in enumerate(saved.values["callbacks"]):
        if callback == "Average" and names:
            name = f"callback_{number}:weights"
    replica.parameters[:] = saved.vector(name, 0, n)
    return int(saved.values["place"]["steps"])


def conditions(dataset: Any, n: int, asked: float | None) -> Any:
    """The conditions (n,) of n samples."""
    targets = dataset.train.targets
    if isinstance(targets, tuple | dict) or not len(targets):
        if asked is not None:
            raise ValueError(f"data {dataset.name!r} have no classes or energies to ask for")
        return np.zeros(n, np.int64)  # no energies: see `write`
    if dataset.classes is not None:
        if asked is None:
            return np.arange(n) % dataset.classes
        if asked not in range(dataset.classes):
            raise ValueError(
                f"--condition must be a class, 0 to {dataset.classes - 1}, got {asked:g}"
            )
        return np.full(n, int(asked))
    if asked is not None:
        low, high = float(targets.min()), float(targets.max())
        if not low <= asked <= high:
            raise ValueError(
                f"--condition must be as in the training data, {low:g} to {high:g}, got {asked:g}"
            )
        return np.full(n, asked, np.float32)
    return np.resize(np.asarray(targets[:]).reshape(-1), n).astype(np.float32)


def write(samples: np.ndarray, y: np.ndarray, out: str) -> None:
    """Showers (layers, x, y) in the layout of CaloChallenge, in MeV; others as features, labels."""
    if samples.ndim == 4 and y.dtype.kind == "f":
        from ..data import showers

        voxels = (1000 * samples).astype(np.float32)
        showers.write(out, showers.Showers(y.astype(np.float64), voxels))
    else:
        datasets.write_hdf5(Data.of(samples, y), out)

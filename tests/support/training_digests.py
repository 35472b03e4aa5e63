"""Digests of the weights after 20 steps, for every strategy, cut and replica.

A change that keeps the mathematics keeps the bits. They differ between processors, so nothing is
stored: write the digests of two commits on one machine, one after the other, and compare.

    python tests/support/training_digests.py write before.json [PART OF A NAME ...]
    python tests/support/training_digests.py compare before.json after.json

Each case is a command, `python -m tutorial_dl train ... --save`, which users can rely on. Of a
Keras model, the digest of the saved optimizer is apart. A case whose order is not determined
(workers that race) is marked `races`; of it, only the names and shapes of arrays are compared.
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
LIMIT = 300  # seconds for one command
HERE = "tests/support/training_digests.py"


def tokens():
    """195 sequences of 16 tokens each, and the tokens after them: 20 batches of 10, one of 5."""
    from tutorial_dl.data import Data, Dataset

    drawn = np.random.default_rng(0).integers(0, 12, (219, 17))
    drawn[:, 1::2] = (drawn[:, :-1:2] * 5 + 1) % 12  # something to learn
    data = Data.of(drawn[:, :-1], drawn[:, 1:])
    parts = [Data.of(*data.take(slice(*ends))) for ends in ((0, 195), (195, 219))]
    return Dataset("tokens", *parts, 12)


def series():
    """195 series of 8 steps with 3 features, in 4 classes."""
    from tutorial_dl.data import Data, Dataset

    generator = np.random.default_rng(1)
    labels = generator.integers(0, 4, 219)
    values = generator.normal(size=(219, 8, 3)).astype(np.float32) + labels[:, None, None]
    parts = [Data.of(values[a:b], labels[a:b]) for a, b in ((0, 195), (195, 219))]
    return Dataset("series", *parts, 4)


DIGITS = "--data digits --batch-size 72"
DATA = {
    "curve": "--data curve --batch-size 10",
    "softmax": DIGITS, "dense": DIGITS, "mlp": DIGITS, "cnn": DIGITS,
    "transformer": f"--data {HERE}:tokens --batch-size 10",
    "gpt": f"--data {HERE}:tokens --batch-size 10",
    "lstm": f"--data {HERE}:series --batch-size 10",
    "one-dimensional-gan": "--data curve --batch-size 10",
    "digits-gan": DIGITS, "digits-conv-gan": DIGITS,
    "shower-gan": "--data small-showers --batch-size 64",
}  # fmt: skip

EVERYWHERE = ["--strategy serial", "-n 2", "-n 3"]
CUTS = ["-n 2 --pipeline 2", "-n 2 --tensor 2", "-n 2 --shard 2", "-n 2 --shard 3"]
GRIDS = ["-n 2 --context 2", "-n 4 --context 2", "-n 4 --context 2 --pipeline 2"]
SCHEDULES = [
    "-n 2 --pipeline 2 --pipeline-schedule gpipe --clip-norm .5", "-n 2 --pipeline 2 --recompute",
    "-n 2 --pipeline 2 --pipeline-schedule zb_h1",
    "-n 2 --pipeline 2 --pipeline-schedule interleaved --chunks 2 --micro-batches 4",
]  # fmt: skip
CASES: dict[str, list[str]] = {
    "curve": EVERYWHERE,
    "softmax": EVERYWHERE,
    "dense": [
        *EVERYWHERE, "-n 2 --shard 0", "-n 2 --one-copy", "-n 2 --accumulate 3",
        "-n 2 --clip-norm .5", "-n 2 --compression fp16", "-n 2 --compression top_k",
        "-n 2 --compression powersgd", "-n 2 --compression adasum", "-n 2 --optimizer lamb",
        "-n 2 --optimizer lars --learning-rate .1", "-n 2 --optimizer sgd --learning-rate .1",
        "-n 2 --schedule cosine --warm-up .3", "-n 2 --batch-rule linear",
        "-n 2 --strategy downpour --workers 1", "-n 3 --strategy downpour --synchronous",
        "-n 3 --strategy downpour --workers 1 --devices 2",
        "-n 2 --strategy downpour --every 3 --staleness-aware --optimizer momentum",
        "-n 2 --strategy elastic_averaging --every 2",
        "-n 3 --strategy elastic_averaging --synchronous",
        "-n 2 --strategy gradient_energy_matching", "-n 1 --strategy hogwild",
        "-n 3 --strategy downpour", "-n 3 --strategy hogwild",
        "-n 5 --strategy downpour --masters 2 --workers 1 --synchronous",
    ],
    "transformer": [*EVERYWHERE, "-n 2 --pipeline 2", *SCHEDULES, "-n 4 --pipeline 2"],
    "mlp": [
        *EVERYWHERE, *CUTS, "-n 2 --one-copy", "-n 2 --accumulate 2", "-n 2 --clip-norm .5",
        "-n 2 --compression bf16", "-n 2 --compile xla", "-n 2 --optimizer lamb",
        "-n 3 --strategy downpour --synchronous", "-n 2 --strategy elastic_averaging",
        "-n 2 --strategy gradient_energy_matching", "-n 4 --tensor 2 --pipeline 2",
        "-n 3 --shard 3 --clip-norm .5 --optimizer lamb", "-n 2 --shard 2 --accumulate 2",
    ],
    "cnn": [
        *EVERYWHERE, *CUTS, "-n 2 --accumulate 2", "-n 4 --pipeline 2", "-n 4 --tensor 2",
        "-n 2 --tensor 2 --clip-norm .5", "-n 3 --pipeline 3 --clip-norm .5",
    ],
    "lstm": [*EVERYWHERE, "-n 2 --compile xla"],
    "gpt": [
        *EVERYWHERE, *CUTS, *GRIDS, *SCHEDULES, "-n 4 --context 2 --tensor 2",
        "-n 4 --tensor 2 --pipeline 2 --clip-norm .5", "-n 2 --tensor 2 --sequence-parallel",
        "-n 2 --context 2 --clip-norm .5 --accumulate 2", "-n 2 --context 2 --compression fp16",
    ],
    "one-dimensional-gan": [*EVERYWHERE, "-n 3 --strategy downpour --synchronous"],
    "digits-gan": [
        *EVERYWHERE, "-n 2 --gan-turns simultaneous", "-n 2 --strategy downpour",
        "-n 2 --gan-loss wasserstein --gradient-penalty 10", "-n 2 --strategy elastic_averaging",
        "-n 2 --label-smoothing .1", "-n 2 --discriminator-steps 2",
    ],
    "digits-conv-gan": ["-n 2"],
    "shower-gan": ["-n 2"],
}  # fmt: skip
RACES = {"dense -n 3 --strategy downpour", "dense -n 3 --strategy hogwild"}


# By default, models are cut by measured cost, which differs from run to run.
CUT_AT = {
    "transformer": {2: "block_2_attend", 4: "block_1_mlp,block_2_attend,block_2_mlp"},
    "gpt": {2: "block_2_norm_1", 4: "block_1_norm_2,block_2_norm_1,block_2_norm_2"},
    "mlp": {2: "dense_2"},
    "cnn": {2: "dense", 3: "conv_2,dense"},
}


def cases() -> dict[str, list[str]]:
    """The words of each case after `train`, by its name."""
    found = {}
    for model, listed in CASES.items():
        for options in listed:
            words = ["--model", model, *DATA[model].split(), *options.split()]
            if "--pipeline" in words:
                stages = int(words[words.index("--pipeline") + 1]) * (1 + ("--chunks" in words))
                words += ["--cut-at", CUT_AT[model][stages]]
            found[f"{model} {options}"] = words
    return found


def arrays_of(file: Path) -> dict[str, np.ndarray]:
    """All arrays in a saved model, by name."""
    if file.suffix == ".npz":
        with np.load(file) as saved:
            return dict(saved)
    import h5py

    found = {}
    with zipfile.ZipFile(file) as parts:
        for name in parts.namelist():
            if name.endswith(".h5"):
                with h5py.File(io.BytesIO(parts.read(name))) as tree:
                    tree.visititems(
                        lambda path, it, name=name: (
                            found.update({f"{name}/{path}": it[()]})
                            if isinstance(it, h5py.Dataset)
                            else None
                        )
                    )
    return found


def digest(arrays: dict[str, np.ndarray], bits: bool = True) -> str:
    made = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        made.update(f"{name} {array.dtype} {array.shape}".encode())
        if bits:
            made.update(array.tobytes())
    return made.hexdigest()[:16]


def run(name: str, words: list[str]) -> dict:
    """The digests of one case, or the last line of its error."""
    began = time.monotonic()
    keras = name.startswith(("mlp", "cnn", "lstm", "gpt", "digits", "shower"))
    keras = keras and not (name.startswith("digits") and "--strategy" in name and "-n" in name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.keras" if keras else "model.npz")
        command = [sys.executable, "-m", "tutorial_dl", "train", *words, "--epochs", "1", "--quiet"]
        done = subprocess.run(
            [*command, "--seed", "7", "--save", str(file)], cwd=ROOT, capture_output=True,
            text=True, timeout=LIMIT, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip
        if done.returncode:
            found = {"error": (done.stderr.strip().splitlines() or ["no words"])[-1]}
        else:
            arrays = arrays_of(file)
            optimizer = {n: a for n, a in arrays.items() if "optimizer" in n}
            weights = {n: a for n, a in arrays.items() if n not in optimizer}
            bits = name not in RACES
            found = {"weights": digest(weights, bits), "optimizer": digest(optimizer, bits)}
    print(f"{time.monotonic() - began:5.1f} s  {name}: {found}", file=sys.stderr, flush=True)
    return found


def write(file: str, *parts: str) -> int:
    chosen = {n: w for n, w in cases().items() if not parts or any(p in n for p in parts)}
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(chosen, pool.map(run, chosen, chosen.values()), strict=True))
    Path(file).write_text(json.dumps(found, indent=1))
    return 0


def compare(before: str, after: str) -> int:
    """Print each case that differs; 1 if there is one."""
    old, new = (json.loads(Path(file).read_text()) for file in (before, after))
    differ = [name for name in old | new if old.get(name) != new.get(name)]
    for name in differ:
        print(f"{name}: {old.get(name)} before, {new.get(name)} after")
    print(f"{len(old | new) - len(differ)} of {len(old | new)} cases are equal")
    return bool(differ)


if __name__ == "__main__":
    raise SystemExit({"write": write, "compare": compare}[sys.argv[1]](*sys.argv[2:]))

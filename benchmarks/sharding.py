"""Bench: what a rank holds while ranks divide a model's weights, gradients and state (ZeRO).

    python -m benchmarks sharding -n 4

A network of equal dense layers whose data-parallel training takes more than 6 GB on a rank is
trained with Adam, a few steps: by one rank that holds everything (stage 0), and by N ranks in
stages 2 and 3. keras_sharding.py does the same with a smaller model of Keras. Rows:

    weights to state    sizes of the arrays that a rank holds between two steps, beside the paper's
                        formulas (Rajbhandari et al., arXiv 1910.02054, figure 1)
    activations         what the forward pass keeps for the backward pass, of 1/N of the samples
    layers in use       of whole layers, the weights of two and the gradient of one
    making, most        the most memory that a rank had to itself while the model was made, and
                        while it was trained (private pages of /proc/self/smaps_rollup, read 50
                        times a second), with Python and all libraries; `before`: these alone
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np

from numba_kernels import optimizers
from numba_kernels.bench import facts, one_run
from numba_kernels.team.team import Team
from tutorial_dl.model_parallel.zero import ZeRO, formulas
from tutorial_dl.replica.layers import Activation, Dense

WIDTH, LAYERS, SAMPLES, STEPS = 4096, 24, 64, 3
KINDS = ("weights", "gradients", "state", "activations", "layers in use")
GB = 1e9
NUMPY, KERAS = "benchmarks.sharding", "benchmarks.keras_sharding"


def private() -> int:
    """Bytes of pages that only this process has (Linux 4.14 or newer)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    pages = {name: int(kib) for name, kib, *_ in map(str.split, lines)}
    return 1024 * (pages["Private_Clean:"] + pages["Private_Dirty:"])


class Most:
    """Within, `bytes` becomes the most private memory of this process."""

    def __enter__(self) -> Most:
        self.bytes, self._over = private(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.bytes = max(self.bytes, private())

    def __exit__(self, *error) -> None:
        self._over.set()
        self._thread.join()
        self.bytes = max(self.bytes, private())


def rows(stage: float, full: bool) -> list[dict]:
    """The row of one start: of this stage (where other benches have seconds)."""
    return [trained(Team(), int(stage))]


def trained(team: Team, stage: int, width: int = WIDTH, layers: int = LAYERS) -> dict:
    """Train a few steps; the largest numbers of any rank."""
    x = np.random.default_rng(1).standard_normal((SAMPLES, width), np.float32)
    x = x[slice(*team.slice_of(SAMPLES))].copy()
    before, began = private(), time.perf_counter()
    layer = (width * width + width) * 4
    with Most() as making:
        chain = []
        for i in range(layers):
            chain += [Dense(f"layer {i}", width, width), Activation(f"tanh {i}", "tanh")]
        one = ZeRO(team, chain, optimizers.get("adam"), stage, "mse")
    ready = time.perf_counter()
    with Most() as most:
        losses = [one.step((x, x))[0] for _ in range(STEPS)]
    ended = time.perf_counter()
    held = one.held() | {"activations": one.activations, "layers in use": one.most_in_use}
    # Each layer keeps its inputs, which are the outputs of the activation before it; the last
    # activation keeps its outputs, too.
    expected = formulas(one.n, team.size, stage) | {
        "activations": (layers + 1) * -(-SAMPLES // team.size) * width * 4,
        "layers in use": {0: 0, 1: 0, 2: 1, 3: 3}[stage] * layer,
    }
    seconds = {"making": ready - began, "step": (ended - ready) / STEPS}
    numbers = {"making": making.bytes, "most": most.bytes, "before": before}
    return {"what": "numpy", "stage": stage, "ranks": team.size, "parameters": one.n,
            "samples": SAMPLES, "losses": losses, "expected": expected} | largest(
        team, {"held": held, "bytes": numbers, "seconds": seconds}
    )  # fmt: skip


def largest(team: Team, groups: dict[str, dict]) -> dict[str, dict]:
    """The largest of each number that any rank has. Collective."""
    numbers = np.array([x for group in groups.values() for x in group.values()], np.float64)
    found = iter(team.allreduce(numbers, "max").tolist())
    return {name: {key: next(found) for key in group} for name, group in groups.items()}


def measure(ranks: int) -> dict:
    """What --json writes: stage 0 on one rank, stages 2 and 3 on `ranks`, each of two models."""
    about, cases = facts(), ((0, 1), (2, ranks), (3, ranks))
    parts = NUMPY, KERAS
    found = [one_run(part, on, stage, full=False)[0] for part in parts for stage, on in cases]
    return about(dict.fromkeys(parts, len(cases)), found)


def table_of(result: dict) -> str:
    """A table for each row: measured GB beside the formulas."""
    blocks = []
    for one in result["rows"]:
        lines = [
            f"{one['what']}, stage {one['stage']}, {one['ranks']} ranks, {one['parameters']:,} "
            f"parameters, Adam, {one['samples']} samples: GB on a rank",
            f"{'':16}{'measured':>10}{'formula':>10}",
        ]
        held, right = one["held"], one["expected"]
        rows = [(kind, held[kind], right[kind]) for kind in KINDS if kind in held]
        rows.append(("sum", sum(held.values()), sum(right.values())))
        lines += [f"{kind:16}{ours / GB:10.3f}{theirs / GB:10.3f}" for kind, ours, theirs in rows]
        lines += [f"{kind:16}{size / GB:10.3f}" for kind, size in one["bytes"].items()]
        step, making = one["seconds"]["step"], one["seconds"]["making"]
        lines.append(f"{step:.1f} s per step; {making:.1f} s to make the model")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)

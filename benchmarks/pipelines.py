"""Bench: a step of a pipeline by its schedule, and the bubble: the time in which ranks only wait.

Stages are equal: blocks of two dense layers, narrow to wide and back, as in a transformer. F, B and
W of a layer are products of matrices of the same sizes, so they cost nearly the same; and what goes
from stage to stage is narrow, so messages and the loss cost little. A row compares

- ours: a step of the pipeline, from a barrier until the slowest rank has done its last action, with
- its peer: what the ranks computed in this very step, on average over them. It is the same step
  without messages, without Python between actions, and without a bubble.

So 1 - `ratio` is the bubble of a typical step, and the limit is what the schedule allows: this work
/ (1 - bubble), with the bubble that `simulate` predicts from the order of actions alone, where
F = B = W. `bubble` is that of the quickest step, because other programs can only add time.

`lost` says what a typical step takes beyond that bubble, as shares of it. The step is replayed from
the times that its actions took (`replay`):

- *ranks*: F, B and W of one rank take longer than those of the other, on average over the step;
- *actions*: one F takes longer than another on the same rank, likewise B and W;
- *rest*: messages, waking up, and Python between actions.

Ranks need a core each. Where they share one, they wait for each other, and not for messages.
"""

import statistics
import time

import numpy as np

from numba_kernels.bench.rows import merge, row
from numba_kernels.bench.timing import keep_memory
from numba_kernels.team.team import Team
from tutorial_dl.model_parallel.grid import Grid
from tutorial_dl.model_parallel.pipelined import PipelinedReplica
from tutorial_dl.model_parallel.schedules import Action
from tutorial_dl.model_parallel.simulating import Timetable, played, simulate
from tutorial_dl.replica.layered import LayeredReplica
from tutorial_dl.replica.layers import At, Dense

SCHEDULES, MICRO_BATCHES = ("gpipe", "1f1b", "zb_h1"), (2, 4, 8, 16)
NARROW, WIDE, SAMPLES, BLOCKS = 256, 1024, 128, 12  # samples of a micro-batch; blocks per rank
ROUNDS = 2  # at least
PEER = "the work of a rank"
LOST = "ranks", "actions", "rest"


def rows(seconds: float, full: bool) -> list[dict]:
    """The rows of one start: each schedule with each number of micro-batches."""
    team = Team()
    keep_memory()
    cases = [(name, m) for m in MICRO_BATCHES for name in SCHEDULES]
    made = {case: pipeline(team, *case) for case in cases}
    found: dict[tuple, list] = {case: [] for case in cases}
    for replica, batch in made.values():  # the first step allocates memory
        replica.compute_gradient(batch)
    end, more = time.perf_counter() + seconds, True
    while more:
        for case, (replica, batch) in made.items():
            found[case].append(measured(team, replica, batch))
        left = np.array([end - time.perf_counter()])
        more = len(found[cases[0]]) < ROUNDS or team.allreduce(left, "min")[0] > 0
    n = team.size * BLOCKS * (2 * NARROW * WIDE + NARROW + WIDE)
    every = []
    for (name, m), times in found.items():
        step, work, *lost = np.array(times).T
        bubble = simulate(made[name, m][0].schedule).bubble
        sent = 2 * (team.size - 1) * m * SAMPLES * NARROW * 4
        size, algorithm = {"parameters": n}, f"{name}, m = {m}"
        one = row("pipeline", team.size, size, algorithm, step, PEER, work, sent, 1.0)
        limit = 1e6 * float(np.median(work)) / (1 - bubble)
        shares = {name: (part / step).tolist() for name, part in zip(LOST, lost, strict=True)}
        every.append(one | {"limit_us": limit, "predicted_bubble": bubble, "lost": shares})
    return every


def pipeline(team: Team, name: str, m: int) -> tuple[PipelinedReplica, tuple]:
    """This rank's part of the model, and a batch of m micro-batches."""
    whole, x, grid = model(BLOCKS * team.size), inputs(m, SAMPLES), Grid(team, team.size)
    layers = cuts(BLOCKS, team.size)
    return PipelinedReplica(whole, grid, name, m, layers=layers, sample=x[:1]), (x, x)


def model(blocks: int) -> LayeredReplica:
    """The whole model; torch_pipeline.py draws the same weights."""
    layers = []
    for block in range(blocks):
        layers.append(Dense(f"block_{block}", NARROW, WIDE))
        layers.append(Dense(f"block_{block}_back", WIDE, NARROW))
    return LayeredReplica(layers, "mse")


def inputs(m: int, samples: int) -> np.ndarray:
    return np.random.default_rng(m).standard_normal((m * samples, NARROW), np.float32)


def cuts(blocks: int, ranks: int) -> list[str]:
    """The layers at which stages of so many blocks begin."""
    return [f"block_{block}" for block in range(blocks, blocks * ranks, blocks)]


def measured(team: Team, replica: PipelinedReplica, batch: tuple) -> tuple[float, ...]:
    """Seconds of a step on the slowest rank, those that a rank computes on average, and `LOST`."""
    team.barrier()
    began = time.perf_counter()
    replica.pipeline.train(*batch, At(training=True))
    step = np.array([time.perf_counter() - began])
    team.allreduce(step, "max")
    table, taken = replica.pipeline.timetable(), float(step[0])
    work = sum(map(table.busy, range(team.size))) / team.size
    alike, by_rank, by_action = (replay(table, how).seconds for how in ("all", "ranks", ""))
    return taken, work, by_rank - alike, by_action - by_rank, taken - by_action


def replay(table: Timetable, alike: str = "") -> Timetable:
    """The step of a measured timetable, as if messages and Python between actions took no time.

    Args:
        table: What was measured.
        alike: "" replays each action as long as it took; "ranks" gives all F of a rank its mean
            time, and likewise B and W; "all" gives all F of all ranks their mean time.
    """
    found: dict[tuple, list[float]] = {}

    def key(rank: int, action: Action) -> tuple:
        return {"": (rank, action), "ranks": (rank, action.kind), "all": (action.kind,)}[alike]

    for one in table.spans:
        if not one.action.message:
            found.setdefault(key(one.rank, one.action), []).append(one.end - one.begin)
    means = {name: sum(times) / len(times) for name, times in found.items()}
    spans, _ = played(table.schedule, lambda rank, action: means[key(rank, action)])
    return Timetable(table.schedule, tuple(spans))


def merged(starts: list[list[dict]]) -> list[dict]:
    """The rows of all starts; `bubble` is that of the quickest step, the median over starts.

    `lost` are medians over all steps.
    """
    rows = merge(starts)
    for one, versions in zip(rows, zip(*starts, strict=True), strict=True):
        quickest = [min(zip(v["ours_us"], v["peer_us"], strict=True)) for v in versions]
        one["bubble"] = statistics.median(1 - work / step for step, work in quickest)
        one["lost"] = {
            name: statistics.median(share for v in versions for share in v["lost"][name])
            for name in LOST
        }
    return rows


def text(rows: list[dict]) -> str:
    """The measured bubbles beside the predicted ones, a line per row of a pipeline."""
    heads = f"{'bubble of pipelines':24s}  measured   predicted  ratio  in a typical step"
    lines = [f"{heads}  lost by {', '.join(LOST)}"]
    for one in rows:
        if "bubble" in one:
            bubble, right = one["bubble"], one["predicted_bubble"]
            lost = "".join(f"{one['lost'][name]:8.3f}" for name in LOST)
            lines.append(
                f"{one['algorithm']:24s}{bubble:10.3f}  {right:10.3f}  {bubble / right:5.2f}"
                f"{1 - one['ratio']:19.3f} {lost}"
            )
    return "\n".join(lines) if len(lines) > 1 else ""

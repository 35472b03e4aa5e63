"""Peer of the benchmark: torch.distributed.pipelining over gloo, on the model of pipelines.py.

    python torch_pipeline.py RANKS SECONDS FILE '{"narrow": ..., "wide": ..., "samples": ...,
                                                   "blocks": ..., "micro_batches": ...}'

This is a separate program, because torch may be in another environment; it imports nothing else.
Each rank has one thread on one core (gloo's threads may use all cores, as they would be slower on
their rank's core). `blocks` are per rank. Weights and inputs are drawn as replica/layered.py and
pipelines.py draw them. Rank 0 writes {schedule: {"seconds": of a step in each round, "loss",
"gradient": norm of its stage's}}.
"""

import json
import os
import sys
import time

if __name__ == "__main__":  # ranks inherit it
    os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

SCHEDULES, LEAST = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}, 3


def build(size: dict, rank: int, ranks: int) -> nn.Sequential:
    """This rank's stage; all ranks draw all weights."""
    random, layers = np.random.default_rng(0), []
    for block in range(size["blocks"] * ranks):
        for inputs, outputs in ((size["narrow"], size["wide"]), (size["wide"], size["narrow"])):
            limit = np.sqrt(6 / (inputs + outputs))
            kernel = random.uniform(-limit, limit, (inputs, outputs)).astype(np.float32)
            if block // size["blocks"] == rank:
                layer = nn.Linear(inputs, outputs)
                with torch.no_grad():
                    layer.weight.copy_(torch.from_numpy(kernel.T.copy()))
                    layer.bias.zero_()
                layers.append(layer)
    return nn.Sequential(*layers)


def rank_of(rank: int, ranks: int, seconds: float, file: str, size: dict) -> None:
    """Measure all schedules; runs on every rank."""
    cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # In the folder of the results, which is this user's; a port would be open to others.
    store = f"file://{os.path.abspath(file)}.store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    os.sched_setaffinity(0, {cores[rank % len(cores)]})  # this thread, not gloo's
    m = size["micro_batches"]
    shape = m * size["samples"], size["narrow"]
    x = torch.from_numpy(np.random.default_rng(m).standard_normal(shape, np.float32))
    found = {}
    for name, schedule in SCHEDULES.items():
        found[name] = measure(build(size, rank, ranks), schedule, rank, ranks, x, m, seconds / 2)
    if rank == 0:
        with open(file, "w") as out:
            json.dump(found, out)
    dist.destroy_process_group()


def measure(module, schedule, rank: int, ranks: int, x, m: int, seconds: float) -> dict:
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    runs = schedule(stage, m, loss_fn=nn.functional.mse_loss)
    last = rank == ranks - 1

    def step() -> tuple[float, float]:
        """(Seconds of the slowest rank, mean loss) of a step from gradients of zero."""
        losses: list = []
        for one in module.parameters():
            if one.grad is not None:
                one.grad.zero_()  # in place: fresh memory would be slower
        dist.barrier()
        began = time.perf_counter()
        inputs = (x,) if rank == 0 else ()
        runs.step(*inputs, target=x if last else None, losses=losses if last else None,
                  return_outputs=False)  # fmt: skip
        taken = torch.tensor([time.perf_counter() - began])
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        loss = torch.tensor([sum(one.item() for one in losses) / m if last else 0.0])
        dist.all_reduce(loss)
        return taken.item(), loss.item()

    loss = step()[1]
    squares = sum(float(one.grad.double().square().sum()) for one in module.parameters())
    once = step()[0]  # the first step also learns shapes
    count = torch.tensor([max(LEAST, int(seconds / once))])
    dist.broadcast(count, 0)
    times = [step()[0] for _ in range(int(count))]
    return {"seconds": times, "loss": loss, "gradient": squares**0.5}


if __name__ == "__main__":
    ranks, seconds, file = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    arguments = (ranks, seconds, file, json.loads(sys.argv[4]))
    multiprocessing.spawn(rank_of, arguments, nprocs=ranks)

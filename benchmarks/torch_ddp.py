"""Peer of the benchmark: PyTorch's DistributedDataParallel (DDP) over gloo, on the same networks.

    python torch_ddp.py RANKS SECONDS FILE

This is a separate program, because torch may be in another environment; it imports nothing else.
Each rank has one thread on one core (gloo's threads may use all cores, as they would be slower on
their rank's core), fused Adam, and different batches in turn. Rank 0 writes {network: seconds per
step in each round}.
"""

import json
import os
import sys
import time
from itertools import cycle

if __name__ == "__main__":  # ranks inherit it
    os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist
from torch import multiprocessing, nn

BATCHES, ROUNDS, WARM = 16, 9, 5
NETWORKS = {  # inputs, samples per rank, classes
    "mlp": ((784,), 32, 10),
    "cnn": ((1, 28, 28), 32, 10),
    "lstm": ((338, 20), 100, 3),
}


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.dense = nn.LSTM(20, 20, batch_first=True), nn.Linear(20, 3)

    def forward(self, x):
        return self.dense(self.lstm(x)[0][:, -1])


def build(name: str) -> nn.Module:
    if name == "mlp":
        sizes = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)
        return nn.Sequential(sizes[0], nn.ReLU(), sizes[1], nn.ReLU(), sizes[2])
    if name == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip
    return Lstm()


def rank_of(rank: int, ranks: int, seconds: float, file: str) -> None:
    """Measure all networks; runs on every rank."""
    cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # In the folder of the results, which is this user's; a port would be open to others.
    store = f"file://{os.path.abspath(file)}.store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    os.sched_setaffinity(0, {cores[rank % len(cores)]})  # this thread, not gloo's
    times = {name: measure(name, seconds / len(NETWORKS)) for name in NETWORKS}
    if rank == 0:
        with open(file, "w") as out:
            json.dump(times, out)
    dist.destroy_process_group()


def measure(name: str, seconds: float) -> list[float]:
    """Seconds per step in each of ROUNDS rounds; all ranks do equally many steps."""
    shape, samples, classes = NETWORKS[name]
    model = nn.parallel.DistributedDataParallel(build(name))
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-3, fused=True), nn.CrossEntropyLoss()
    inputs = (torch.rand(samples, *shape) for _ in range(BATCHES))
    batches = cycle([(x, torch.randint(0, classes, (samples,))) for x in inputs])

    def steps(count: int) -> float:
        dist.barrier()
        started = time.perf_counter()
        for _ in range(count):
            x, y = next(batches)
            optimizer.zero_grad()
            of_batch = loss(model(x), y)
            of_batch.backward()
            optimizer.step()
            of_batch.item()
        dist.barrier()
        return (time.perf_counter() - started) / count

    once = torch.tensor([steps(WARM)])
    dist.all_reduce(once, dist.ReduceOp.MAX)
    count = max(1, int(seconds / ROUNDS / once.item()))
    return [steps(count) for _ in range(ROUNDS)]


if __name__ == "__main__":
    ranks, seconds, file = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    arguments = (ranks, seconds, file)
    multiprocessing.spawn(rank_of, arguments, nprocs=ranks)

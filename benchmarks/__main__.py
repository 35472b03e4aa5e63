"""`python -m benchmarks WHAT -n RANKS`: research measurements; README.md describes them."""

import sys
from subprocess import TimeoutExpired
from typing import Annotated

import typer

from benchmarks import (
    gan_quality,
    gan_strategies,
    population,
    seldom_talk,
    stragglers,
    torch_peers,
    two_nodes,
)
from numba_kernels import launch
from numba_kernels.bench import exits_on_sigterm, facts, one_run
from numba_kernels.bench.rows import merge, table
from tutorial_dl.bench import PART, SECONDS, STARTS, check_seconds_and_file, finish

GANS, TENSOR = "benchmarks.gans", "benchmarks.tensor_throughput"
PIPELINES, THROUGHPUT = "benchmarks.pipelines", "benchmarks.pipeline_throughput"

NODES = "benchmarks.between_nodes", "benchmarks.step_between"
PREDICTIONS = "benchmarks.predictions"

Ranks = Annotated[int, typer.Option("-n", "--ranks", help="Number of ranks to start.")]
Seconds = Annotated[float, typer.Option(help="Approximate time to measure, in seconds.")]
File = Annotated[str | None, typer.Option(metavar="FILE", help="Rows as JSON; - prints them.")]
app = typer.Typer(
    help=__doc__, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False
)


def starts(
    part: str, ranks: int, seconds: float, count: int = STARTS, start=None
) -> list[list[dict]]:
    return [one_run(part, ranks, seconds / count, False, start) for _ in range(count)]


def at_least_two(what: str, ranks: int) -> None:
    if ranks < 2:
        raise ValueError(f"-n must be at least 2 for {what}, got {ranks}")


@app.command("ddp")
def ddp(ranks: Ranks = 2, seconds: Seconds = SECONDS, json: File = None) -> None:
    """Training steps of three networks against PyTorch's DistributedDataParallel."""
    path, about = check_seconds_and_file(seconds, json), facts()

    def against(ours: list[dict], theirs: dict) -> list[dict]:
        # One row of each network again, with DDP's times in place of its peer's
        firsts = {one["network"]: one for one in reversed(ours)}
        return [
            one | {"peer": torch_peers.DDP, "peer_us": [1e6 * t for t in theirs[network]],
                   "peer_samples": one["samples"]}
            for network, one in firsts.items() if network in theirs
        ]  # fmt: skip

    found = torch_peers.starts(
        torch_peers.DDP, STARTS, lambda: one_run(PART, ranks, 0.75 * seconds / STARTS, full=False),
        lambda torch: torch_peers.run(torch, "torch_ddp.py", ranks, 0.25 * seconds / STARTS),
        against,
    )  # fmt: skip
    rows = merge(found)
    order = list(dict.fromkeys(one["network"] for one in rows))
    rows.sort(key=lambda one: order.index(one["network"]))
    finish(about({PART: STARTS}, rows), path, json)


@app.command("pipelines")
def pipelines(ranks: Ranks = 2, seconds: Seconds = SECONDS, json: File = None) -> None:
    """Bubbles of pipelines, and their throughput against one rank and PyTorch's pipelines."""
    from benchmarks import pipeline_throughput as throughput
    from benchmarks import pipelines as bubbles

    at_least_two("pipelines", ranks)
    path, about = check_seconds_and_file(seconds, json), facts()
    each, size = seconds / STARTS, throughput.size()
    found = starts(PIPELINES, ranks, 0.4 * seconds)
    against = torch_peers.starts(
        torch_peers.PIPELINE, STARTS, lambda: one_run(THROUGHPUT, ranks, 0.4 * each, full=False),
        lambda torch: torch_peers.run(torch, "torch_pipeline.py", ranks, 0.2 * each, size),
        lambda ours, theirs: throughput.against(ours, theirs, torch_peers.PIPELINE),
    )  # fmt: skip
    result = about({PIPELINES: STARTS, THROUGHPUT: STARTS}, bubbles.merged(found) + merge(against))
    texts = table, lambda result: bubbles.text(result["rows"]), lambda r: throughput.text(r["rows"])
    finish(result, path, json, lambda result: "\n\n".join(text(result) for text in texts))


@app.command("between-nodes")
def between_nodes(ranks: Ranks = 2, seconds: Seconds = SECONDS, json: File = None) -> None:
    """Allreduce and the synchronous step between two emulated nodes of -n ranks each."""
    path, about = check_seconds_and_file(seconds, json), facts()
    launch.check_ranks(2 * ranks)
    with exits_on_sigterm():
        of_each = [merge(starts(part, 2 * ranks, seconds, start=two_nodes.run)) for part in NODES]
    rows = [row for rows in of_each for row in rows]
    finish(about(dict.fromkeys(NODES, STARTS), rows), path, json)


@app.command("predictions")
def predictions(ranks: Ranks = 2, seconds: Seconds = SECONDS, json: File = None) -> None:
    """Every allreduce beside the time that numba_kernels.allreduce.costs predicts."""
    at_least_two("an allreduce", ranks)
    path, about = check_seconds_and_file(seconds, json), facts()
    finish(about({PREDICTIONS: STARTS}, merge(starts(PREDICTIONS, ranks, seconds))), path, json)


@app.command("tensor")
def tensor(ranks: Ranks = 2, seconds: Seconds = SECONDS, json: File = None) -> None:
    """Steps of a Keras model whose layers are cut over the ranks, against one rank."""
    from benchmarks.tensor_throughput import text

    at_least_two("tensor", ranks)
    path, about = check_seconds_and_file(seconds, json), facts()
    result = about({TENSOR: STARTS}, merge(starts(TENSOR, ranks, seconds)))
    finish(result, path, json, lambda result: f"{table(result)}\n\n{text(result['rows'])}")


@app.command("sharding")
def sharding(ranks: Ranks = 2, json: File = None) -> None:
    """Memory of ranks that divide a model's weights, gradients and optimizer state."""
    from benchmarks import sharding as memory

    path = check_seconds_and_file(SECONDS, json)
    launch.check_ranks(ranks)
    finish(memory.measure(ranks), path, json, memory.table_of)


@app.command("gans")
def gans(ranks: Ranks = 2, seconds: Seconds = SECONDS, json: File = None) -> None:
    """A round of the GAN of 25^3 showers against its gradients; showers made per second."""
    path, about = check_seconds_and_file(seconds, json), facts()
    finish(about({GANS: 1}, merge(starts(GANS, ranks, seconds, 1))), path, json)


@app.command("gan-strategies")
def strategies(ranks: Ranks = 2, json: File = None) -> None:
    """A GAN of numbers by every strategy, with 5 seeds."""
    path = check_seconds_and_file(SECONDS, json)
    at_least_two("gan-strategies, a master and a worker", ranks)
    finish(gan_strategies.compare(ranks), path, json, gan_strategies.table_of)


Seeds = Annotated[int | None, typer.Option(min=1, help="Number of seeds; the model's by default.")]
First = Annotated[int, typer.Option(min=0, help="The first of them.")]
Epochs = Annotated[int, typer.Option(min=1, help="The most epochs of a seed.")]


def quality(model: str, ranks: int, seeds: int | None, first: int, epochs: int, json: str | None):
    path = check_seconds_and_file(SECONDS, json)
    chosen = range(first, first + (seeds or gan_quality.SEEDS[model]))
    result = gan_quality.compare(model, ranks, chosen, epochs, path)
    finish(result, path, json, gan_quality.table_of)


@app.command("digits-gan")
def digits(
    ranks: Ranks = 2, seeds: Seeds = None, first_seed: First = 0,
    epochs: Epochs = gan_quality.EPOCHS, json: File = None,
) -> None:  # fmt: skip
    """Quality of the GAN of digits after training, with 5 seeds, minutes each."""
    quality("digits-gan", ranks, seeds, first_seed, epochs, json)


@app.command("shower-gan")
def showers(
    ranks: Ranks = 2, seeds: Seeds = None, first_seed: First = 0,
    epochs: Epochs = gan_quality.EPOCHS, json: File = None,
) -> None:  # fmt: skip
    """Quality of the GAN of showers after training, with 3 seeds, minutes each."""
    quality("shower-gan", ranks, seeds, first_seed, epochs, json)


@app.command("seldom")
def seldom(ranks: Ranks = 2, epochs: Epochs = 4, json: File = None) -> None:
    """Ten million parameters on two emulated nodes of -n ranks: synchronous, DiLoCo, and int8."""
    path = check_seconds_and_file(SECONDS, json)
    launch.check_ranks(2 * ranks)
    with exits_on_sigterm():
        finish(seldom_talk.compare(ranks, epochs), path, json, seldom_talk.table_of)


@app.command("staleness")
def staleness(ranks: Ranks = 3, seeds: Seeds = 5, epochs: Epochs = 100, json: File = None) -> None:
    """Digits to .97 by every rule with -n workers, of which one is ten times slower."""
    path = check_seconds_and_file(SECONDS, json)
    at_least_two("staleness", ranks)
    finish(stragglers.staleness(ranks, seeds, epochs), path, json, seldom_talk.table_of)


@app.command("chaos")
def chaos(ranks: Ranks = 7, seeds: Seeds = 1, epochs: Epochs = 120, json: File = None) -> None:
    """A quorum of two, while workers are stopped and killed at random; and undisturbed."""
    path = check_seconds_and_file(SECONDS, json)
    launch.check_ranks(ranks)
    finish(stragglers.chaos(ranks, epochs, seeds), path, json, seldom_talk.table_of)


@app.command("population")
def of_populations(
    models: Annotated[str, typer.Option(help="cnn, gpt or both, with a comma.")] = "cnn,gpt",
    seeds: Seeds = 5, json: File = None,
) -> None:  # fmt: skip
    """Population based training against random search, at an equal budget."""
    path = check_seconds_and_file(SECONDS, json)
    finish(population.compare(seeds, models.split(",")), path, json, population.table_of)


def main() -> None:
    try:
        app(prog_name="python -m benchmarks")
    except (ValueError, launch.LaunchError, OSError, TimeoutExpired) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

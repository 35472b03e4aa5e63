"""The options of a training run: a dataclass per component and per strategy, each option once.

The command line, `--config` files, the `config` of JSON results and of checkpoint folders, and the
table of options in docs/training.md (`python -m tutorial_dl.config` prints it) are all derived from
these fields. Values are numbers, texts and booleans; None means "not given". Nothing is built here.

    config = RunConfig.of(strategy="downpour", every=3)  # config.strategy: DownpourConfig(every=3)
    config.check()                           # ValueError with one line
    Path("run.toml").write_text(config.toml())
    RunConfig.of(**read(Path("run.toml")))   # the same again
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import Field, dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

from numba_kernels.compression import NAMES as COMPRESSION_NAMES
from numba_kernels.optimizers import NAMES as OPTIMIZER_NAMES

from .options import (
    Option,
    check_log,
    check_timeline,
    check_upward,
    class_weight_of,
    directions_of,
    model_arguments_of,
    monitor_of,
    option,
    target_of,
    tensor_rules_of,
)
from .words import near


# fmt: off
@dataclass(frozen=True)
class DataConfig:
    panel = "Model and data"
    model: str = option(
        "Model: a name (curve, softmax, dense, transformer, mlp, cnn, lstm, gpt, "
        "one-dimensional-gan, digits-gan, digits-conv-gan, shower-gan), or module:function; for a "
        "GAN of your own generator,discriminator.", "dense")
    model_arguments: str | None = option(
        "Arguments of the model's function, as JSON: '{\"width\": 64}'.", metavar="JSON")
    data: str = option(
        "Data: a name (digits, curve, events, text, showers, small-showers), module:function, or "
        "HDF5 files (paths separated by commas, a pattern in quotes, or a .txt file that lists "
        "paths).", "digits")
    batch_size: int = option(
        "Samples per update, over all ranks; with asynchronous workers, per worker.", 32, least=1)
    accumulate: int = option(
        "Micro-batches per batch, computed one after the other to save memory.", 1, least=1)
    seed: int = option("Seed of initial weights and sample order.", 0, least=0)
    keep_order: bool = option("Do not shuffle the samples; each epoch has their order.", False)
    compile: str = option(
        "How TensorFlow computes a Keras model: by its graph or compiled by XLA. Long runs measure "
        "both (auto).", "auto", choices=("auto", "graph", "xla"))
    sync_batch_norm: bool = option(
        "Normalise batches of a Keras model over the samples of all ranks.", False)
    features: str | None = option(
        "Names of the input datasets in HDF5 files; default: features.", metavar="NAME[,NAME]")
    labels: str | None = option(
        "Names of the target datasets in HDF5 files; default: labels.", metavar="NAME[,NAME]")
    validation: str | None = option(
        "HDF5 files to validate on, or the fraction of --data to hold out; default: 0.2. Not for "
        "data that have a validation part.",
        metavar="FILES|SHARE")
    class_weight: str | None = option(
        "Weights of classes in the loss of training, such as 0=1,1=5; balanced: all count alike.",
        metavar="WEIGHTS", form=class_weight_of)
    cache: str | None = option(
        "Local folder for copies of HDF5 files, made once per node.", metavar="DIR")

    @property
    def files(self) -> dict[str, str | None]:
        """The options about HDF5 files, as `data.load` takes them."""
        names = ("features", "labels", "validation", "cache")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class OptimizerConfig:
    panel = "Optimizer"
    optimizer: str | None = option(
        "Optimizer; default: the one that a Keras model was compiled with, else adam, or what the "
        "strategy needs.", choices=OPTIMIZER_NAMES)
    learning_rate: float | None = option("Learning rate; default: the optimizer's own.", least=0.0)
    momentum: float | None = option(
        "Momentum: of elastic averaging (default: 0), of energy matching (default: 0.9), else of "
        "the optimizer.", least=0.0, below=1.0)
    weight_decay: float | None = option("Weight decay, of an optimizer that has one.", least=0.0)
    beta_1: float | None = option(
        "Decay of the mean of gradients, in optimizers of Adam's kind and lion.", least=0.0,
        below=1.0)
    beta_2: float | None = option(
        "Decay of the mean of their squares, likewise.", least=0.0, below=1.0)
    clip_norm: float | None = option("Clip gradients to this global norm.", above=0.0)
    ema: float | None = option(
        "Validate and save an exponential average of the weights, of which an update keeps this "
        "share, such as 0.999 (synchronous).", least=0.0, below=1.0)
    look_ahead: int | None = option(
        "Lookahead: every so many updates, go back by half of the way (synchronous).", least=2,
        metavar="UPDATES")


@dataclass(frozen=True)
class ScheduleConfig:
    panel = "Schedule"
    epochs: int = option("Number of passes through the data.", 5, least=1)
    schedule: str = option(
        "How the learning rate decays over the epochs.", "constant",
        choices=("constant", "step", "exponential", "cosine"))
    warm_up: float = option(
        "Raise the learning rate over the first EPOCHS epochs.", 0.0, least=0.0, metavar="EPOCHS")
    batch_rule: str | None = option(
        "Scale the learning rate by a rule of batch size / base batch size; or double the batch "
        "while its noise is large, at a constant rate (noise, synchronous).",
        choices=("linear", "square-root", "noise"))
    base_batch_size: int = option("Batch size for which the learning rate was tuned.", 32, least=1)
    patience: int | None = option(
        "Stop after EPOCHS epochs without a lower validation loss (or better --monitor); of a GAN, "
        "without better samples.", least=1, metavar="EPOCHS")
    monitor: str | None = option(
        "Metric for --patience and --save-best; default: val_loss. NAME:max or NAME:min says which "
        "is better, where the name does not.", metavar="NAME[:max|:min]", form=monitor_of)
    target: str | None = option(
        "Stop when METRIC reaches X, for example val_accuracy=0.97.", metavar="METRIC=X",
        form=target_of)


def check_shard(stage: int, one_copy: bool = False) -> None:
    """Raise ValueError for a stage of ZeRO that does not exist, or does not fit one_copy."""
    if stage > 3:
        raise ValueError(f"shard must be 0 to 3, the stage of ZeRO, got {stage}")
    if stage > 1 and one_copy:
        raise ValueError(f"one_copy does not fit shard {stage}: leave one of them out")
    if stage == 0 and one_copy:
        raise ValueError("one_copy divides the optimizer's state, too: leave shard out")


@dataclass(frozen=True)
class StrategyConfig:
    """A strategy without options; a subclass for each that has some. It refuses those of others.

    `takes` names what it takes besides: options of other components, or arguments of its class.
    """

    panel = "Strategy"
    takes: ClassVar[tuple[str, ...]] = ()
    strategy: str = option("Rule by which the ranks train together.", "synchronous")

    def taken(self) -> set[str]:
        return {*self.takes, *(one.name for one in fields(self))} - {"strategy"}


@dataclass(frozen=True)
class SynchronousConfig(StrategyConfig):
    one_copy: bool = option("Keep one copy of the weights per node, to save memory.", False)
    compression: str | None = option(
        "Reduce gradients by this compression method.", choices=COMPRESSION_NAMES)
    shard: int = option(
        "Stage of ZeRO: ranks divide the optimizer's state (1), also gradients (2), also weights "
        "(3), or nothing (0).", 1, least=0)
    noise_scale: bool = option(
        "Measure the critical batch size in each epoch, from the ranks' gradients.", False)

    def __post_init__(self):
        check_shard(self.shard, self.one_copy)
        if self.one_copy and self.compression is not None:
            raise ValueError("one_copy and compression exclude each other; choose one")
        if self.shard > 1 and self.compression is not None:
            raise ValueError(
                f"compression does not fit shard {self.shard}, which reduces layer by layer: use "
                "shard 1"
            )


@dataclass(frozen=True)
class LocalConfig(StrategyConfig):
    """What strategies have whose ranks make several steps of their own between exchanges."""

    inner_steps: int = option(
        "Steps that a rank makes on its own between two exchanges.", 50, least=1, metavar="STEPS")
    outer_rate: float = option(
        "Learning rate by which the common weights follow the ranks' own.", 0.7, above=0.0)


@dataclass(frozen=True)
class LocalStepsConfig(LocalConfig):
    takes = ("layout",)
    strategy: str = "local_steps"
    outer_optimizer: str = option(
        "Optimizer of the common weights.", "nesterov",
        choices=tuple(name for name in OPTIMIZER_NAMES if not name.startswith("schedule_free")))
    compression: str | None = option("As for synchronous.", choices=COMPRESSION_NAMES)


@dataclass(frozen=True)
class GossipConfig(LocalConfig):
    takes = ("layout",)
    strategy: str = "gossip"
    peer_momentum: float = option(
        "Momentum by which weights follow the mean of a pair.", 0.3, least=0.0, below=1.0)


class WithMaster(StrategyConfig):
    takes = ("layout", "upward")


@dataclass(frozen=True)
class Exchanging(WithMaster):
    every: int = option(
        "Steps of a worker per exchange with its master.", 1, least=1, metavar="STEPS")
    synchronous: bool = option("Make the master wait for all of its workers.", False)


@dataclass(frozen=True)
class DownpourConfig(Exchanging):
    strategy: str = "downpour"
    staleness_aware: bool = option(
        "Divide the learning rate of an update by 1 + its staleness.", False)
    lower_momentum: bool = option("Reduce momentum by the implicit momentum of asynchrony.", False)
    discard: int | None = option(
        "Discard gradients of staleness R or more.", least=1, metavar="R")
    delay_compensation: float | None = option(
        "Correct stale gradients to first order, by so much.", above=0.0, metavar="LAMBDA")


@dataclass(frozen=True)
class ElasticAveragingConfig(Exchanging):
    takes = (*WithMaster.takes, "momentum")
    strategy: str = "elastic_averaging"
    moving_rate: float = option(
        "Moving rate: number of workers times alpha.", 0.9, above=0.0, below=2.0)


@dataclass(frozen=True)
class GradientEnergyMatchingConfig(WithMaster):
    takes = (*WithMaster.takes, "momentum")
    strategy: str = "gradient_energy_matching"
    kappa: float = option(
        "Energy factor; 1 matches the pace of momentum SGD.", 1.0, above=0.0)


@dataclass(frozen=True)
class DilocoAsyncConfig(LocalConfig, WithMaster):
    strategy: str = "diloco_async"
    outer_momentum: float = option(
        "Momentum of the common weights.", 0.5, least=0.0, below=1.0)
    quorum: int | None = option(
        "Workers that make a round; default: no rounds, each worker is served at once.", least=1,
        metavar="WORKERS")
    grace: float = option(
        "Seconds that a round waits for others once it has its quorum.", 1.0, least=0.0,
        metavar="SECONDS")


@dataclass(frozen=True)
class GanConfig:
    """Options of a GAN; None: what the model has chosen (replica/gan.py, Rules)."""

    panel = "GAN"
    discriminator_learning_rate: float | None = option(
        "Learning rate of the discriminator; --learning-rate is the generator's.", least=0.0)
    discriminator_steps: int | None = option(
        "Steps of the discriminator per step of the generator.", least=1)
    gan_turns: str | None = option(
        "Whether the discriminator learns from what the generator makes after its step, or both "
        "gradients are taken at the same weights.", choices=("alternating", "simultaneous"))
    gan_loss: str | None = option(
        "Loss of the two players.", choices=("non_saturating", "wasserstein"))
    gradient_penalty: float | None = option(
        "Weight of the gradient penalty of the wasserstein loss.", least=0.0)
    label_smoothing: float | None = option(
        "Real samples have the label 1 - X; not for wasserstein.", least=0.0, below=0.5,
        metavar="X")
    label_flips: float | None = option(
        "Share of the real samples whose label is 0; not for wasserstein.", least=0.0, below=0.5)


STRATEGY_OPTIONS = {  # by name, each with its defaults
    rule.strategy: rule
    for rule in (StrategyConfig("serial"), SynchronousConfig(), DownpourConfig(),
                 ElasticAveragingConfig(), GradientEnergyMatchingConfig(),
                 StrategyConfig("hogwild"), LocalStepsConfig(),
                 GossipConfig(), DilocoAsyncConfig())
}
STRATEGIES = tuple(STRATEGY_OPTIONS)
WITH_MASTER = tuple(name for name, rule in STRATEGY_OPTIONS.items() if isinstance(rule, WithMaster))


@dataclass(frozen=True)
class LayoutConfig:
    panel = "Masters and workers"
    ranks: int | None = option(
        "Number of ranks to start; leave it out under mpiexec, srun or aprun.", short="-n")
    masters: int | None = option(
        "1: one master; 2 or more: sub-masters under one master; 0: no master.", least=0)
    workers: int | None = option("Workers per master or sub-master.", least=1)
    devices: int | None = option("Ranks per worker; they compute each batch together.", least=1)
    upward: str | None = option(
        "Worker exchanges per exchange of a sub-master with the top master.",
        metavar="EXCHANGES|auto", form=check_upward)


@dataclass(frozen=True)
class PipelineConfig:
    panel = "Pipeline"
    pipeline: int | None = option(
        "Cut the model into stages on so many ranks; ranks beyond that share the batches.", least=1)
    micro_batches: int | None = option(
        "Micro-batches per batch of a pipeline; default: two per rank of it.", least=1)
    pipeline_schedule: str = option(
        "Order in which the ranks of a pipeline compute micro-batches.", "1f1b",
        choices=("gpipe", "1f1b", "interleaved", "zb_h1"))
    chunks: int = option("Stages per rank of an interleaved pipeline.", 1, least=1)
    cut_at: str | None = option(
        "Layers at which a stage begins, separated by commas; default: by measured cost.",
        metavar="LAYER[,LAYER]")
    recompute: bool = option(
        "Compute activations of a pipeline again for the backward pass, to save memory.", False)


@dataclass(frozen=True)
class TensorConfig:
    panel = "Tensor parallelism"
    tensor: int | None = option(
        "Cut each layer of the model over so many ranks; ranks beyond share the batches.",
        least=1)
    tensor_rules: str | None = option(
        "How layers are cut: columns, rows, heads or replicate; default: what fits the model.",
        metavar="LAYER=KIND[,LAYER=KIND]", form=tensor_rules_of)
    sequence_parallel: bool = option(
        "Also divide what lies between layers that are cut, along the sequence.", False)


@dataclass(frozen=True)
class ContextConfig:
    panel = "Context parallelism"
    context: int | None = option(
        "Divide each sequence over so many ranks; ranks beyond share the batches.", least=1)


@dataclass(frozen=True)
class CheckpointConfig:
    panel = "Checkpoints"
    checkpoint: str | None = option(
        "Write a checkpoint to FOLDER after each epoch.", metavar="FOLDER")
    checkpoint_every: int | None = option(
        "Also write a checkpoint every STEPS steps.", least=1, metavar="STEPS")
    resume: bool = option("Continue from the newest checkpoint, if there is one.", False)
    requeue: bool = option(
        "When the batch system's warning comes, put the job back into the queue; with --resume.",
        False)


@dataclass(frozen=True)
class OutputConfig:
    panel = "Output"
    quiet: bool = option("Show no progress, neither the bar nor a line per epoch.", False)
    rehearse: bool = option(
        "First train an epoch that does not count, so that no time includes compiling.", False)
    log: str | None = option(
        "Write a row per epoch as it ends: .csv, .jsonl, a folder for TensorBoard, or wandb or "
        "mlflow, by that library.", metavar="FILE|FOLDER", form=check_log)
    report_every: int | None = option(
        "Print loss and speed every STEPS steps.", least=1, metavar="STEPS")
    json: str | None = option("Write the result as JSON; - prints it.", metavar="FILE")
    save: str | None = option(
        "Save the trained model: .keras or .h5 for a Keras model, else .npz.", metavar="FILE")
    save_best: str | None = option(
        "Save the model after each epoch with the lowest validation loss (or best --monitor) so "
        "far.", metavar="FILE")
    timeline: str | None = option(
        "Record what every rank does when: .json for Perfetto, .png, .svg or .pdf for a figure.",
        metavar="FILE", form=check_timeline)


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Options of a search (tuning/), which `tune` has besides those of its trainings."""

    panel = "Search"
    sampler: str = option(
        "How sets are chosen: random, grid, tpe, bayesian, evolutionary or cmaes.", "bayesian")
    trials: int = option("Sets of values to try.", 20, least=1)
    groups: int = option("Sets of values to train at once.", 1, least=1)
    folds: int = option("Folds of cross-validation; 1: the data's own validation part.", 1, least=1)
    merit: str = option(
        "Figure of merit: a column of the history, or module:function of the trainer; several with "
        "commas.", "val_loss")
    maximise: bool | None = option(
        "Whether higher is better; default: for accuracy and the like.", off="--minimise")
    directions: str | None = option(
        "Of several figures of merit: maximise or minimise, for each, with commas.",
        form=directions_of)
    pruner: str = option(
        "Stop bad trials early: none, median, successive_halving or hyperband.", "none")
    population: int | None = option(
        "Population based training: every EPOCHS epochs the worst fifth of the groups copies the "
        "best fifth, and changes its values.", least=1, metavar="EPOCHS")
    deadline: float = option("Seconds that one training may take.", 3600.0, above=0.0, below=1e9)
    retry: bool = option("With --resume: try sets that have failed again.", False)
# fmt: on


@dataclass(frozen=True)
class RunConfig:
    """All options of a run, by component, whose name is that of its table in TOML."""

    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    strategy: StrategyConfig = SynchronousConfig()
    layout: LayoutConfig = LayoutConfig()
    gan: GanConfig = GanConfig()
    pipeline: PipelineConfig = PipelineConfig()
    tensor: TensorConfig = TensorConfig()
    context: ContextConfig = ContextConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    output: OutputConfig = OutputConfig()

    @classmethod
    def of(cls, **values) -> RunConfig:
        """The configuration with these options; ValueError if the strategy does not take one."""
        tables: dict[str, dict] = {table: {} for table in COMPONENTS}
        for name, value in values.items():
            tables[OPTIONS[name].table][name] = value
        of_rule = tables.pop("strategy") | {"upward": values.get("upward")}
        rule = check_strategy(of_rule.get("strategy", "synchronous"), of_rule)
        parts = {table: COMPONENTS[table](**given) for table, given in tables.items()}
        return cls(strategy=rule, **parts)

    def values(self) -> dict[str, Any]:
        """All options by name; one that the strategy does not take is `unset`."""
        return {n: getattr(getattr(self, o.table), n, o.unset) for n, o in OPTIONS.items()}

    def tables(self) -> dict[str, dict[str, Any]]:
        """The options by component and name, without those that are None or of other strategies."""
        found: dict[str, dict[str, Any]] = {}
        for name, value in self.values().items():
            if value is not None and hasattr(getattr(self, OPTIONS[name].table), name):
                found.setdefault(OPTIONS[name].table, {})[name] = value
        return found

    def toml(self) -> str:
        """The text of a --config file with these options."""
        lines = []
        for table, values in self.tables().items():
            # JSON writes numbers, texts and booleans as TOML does, except for one character.
            texts = {n: json.dumps(v, ensure_ascii=False) for n, v in values.items()}
            rows = (f"{n} = {text}".replace("\x7f", "\\u007f") for n, text in texts.items())
            lines += [f"[{table}]", *rows, ""]
        return "\n".join(lines)

    def changed(self) -> dict[str, Any]:
        """Every option of one rank that is not at its default, by name; values fit JSON."""
        return {
            name: value
            for name, value in self.values().items()
            if name != "ranks" and value not in (None, OPTIONS[name].default)
        }

    @property
    def with_master(self) -> bool:
        """Whether the strategy has a master, so that workers may be lost."""
        return isinstance(self.strategy, WithMaster)

    def strategy_options(self) -> dict[str, Any]:
        """The strategy's own options, as `strategies.get` takes them."""
        taken = self.strategy.taken()
        found = {name: value for name, value in self.values().items() if name in taken}
        if self.layout.upward not in (None, "auto"):
            found["upward"] = int(self.layout.upward)
        return found

    def check(self) -> None:
        """Check each option; ValueError for one that is wrong, or that has no effect."""
        for name, value in self.values().items():
            OPTIONS[name].checked(value)
        self.check_together()
        self.check_groups()
        model_arguments_of(self.data.model_arguments, self.data.model)

    def check_together(self) -> None:
        """Raise ValueError for options that have no effect, or do not fit each other."""
        values = self.values()
        given = {n for n, value in values.items() if value not in (None, OPTIONS[n].default)}
        for owner, names in NEEDED_BY.items():
            for name in names:
                if name in given and owner not in given:
                    flags = OPTIONS[name].flag, OPTIONS[owner].flag
                    raise ValueError("{} has no effect without {}".format(*flags))
        rule, scheduled = self.optimizer.optimizer or "", given & {"schedule", "warm_up"}
        if rule.startswith("schedule_free") and scheduled:
            raise ValueError(
                f"--optimizer {rule} averages in place of a schedule, and knows no other rate: "
                f"leave {' and '.join(OPTIONS[name].flag for name in sorted(scheduled))} out"
            )
        if self.schedule.batch_rule == "noise":
            if given & {"schedule", "warm_up", "base_batch_size"}:
                raise ValueError(
                    "--batch-rule noise grows the batch at a constant learning rate: leave "
                    "--schedule, --warm-up and --base-batch-size out"
                )
            if self.strategy.strategy != "synchronous":
                raise ValueError(
                    "--batch-rule noise needs strategy 'synchronous', got "
                    f"{self.strategy.strategy!r}"
                )
        if "monitor" in given and not given & {"patience", "save_best"}:
            raise ValueError("--monitor has no effect without --patience or --save-best")
        for owner, names in EXCLUDED_BY.items():
            for name in names:
                if owner in given and name in given:
                    hint = ": use --micro-batches" if name == "accumulate" else ""
                    flags = OPTIONS[name].flag, OPTIONS[owner].flag
                    raise ValueError("{} does not fit {}{}".format(*flags, hint))
        if self.pipeline.chunks > 1 and self.pipeline.pipeline_schedule != "interleaved":
            raise ValueError(
                f"--chunks {self.pipeline.chunks} needs --pipeline-schedule interleaved"
            )
        stage, context = values["shard"] or 0, self.context.context
        if context is not None and self.tensor.sequence_parallel:
            raise ValueError(
                "--sequence-parallel does not fit --context, which divides all that has positions: "
                "leave one of them out"
            )
        if context is not None and stage > 1:
            raise ValueError(f"--shard {stage} does not fit --context: use --shard 1")
        for name, value in (("compile", "xla"), ("compression", "adasum")):
            if context is not None and values[name] == value:
                raise ValueError(f"{OPTIONS[name].flag} {value} does not fit --context")
        if stage > 1 and self.data.sync_batch_norm:
            raise ValueError(f"--sync-batch-norm does not fit --shard {stage}: use --shard 1")
        if stage > 1 and self.data.compile == "xla":
            raise ValueError(
                f"--compile xla does not fit --shard {stage}: its ranks communicate while they "
                "compute a gradient; use --shard 1"
            )

    def check_groups(self) -> None:
        """Raise ValueError unless ranks in step can form the groups that hold one model."""
        sizes = {axis: self.values()[axis] for axis in AXES}
        sizes = {axis: size for axis, size in sizes.items() if size is not None}
        if not sizes:
            return
        axis = next(axis for axis in ("context", "tensor", "pipeline") if axis in sizes)
        if self.strategy.strategy != "synchronous":
            raise ValueError(
                f"--{axis} with strategy {self.strategy.strategy!r}: use 'synchronous'"
            )
        stages, groups = sizes.get("pipeline"), [n for a, n in sizes.items() if a != "pipeline"]
        size = " x ".join(str(n) for n in groups if n > 1) or "1"
        words = f"{axis} groups of {size}" if groups else f"pipelines of {stages}"
        if groups and (stages or 1) > 1:
            words = f"{stages} stages of {words}"
        ranks, least = self.layout.ranks, prod(sizes.values())
        if ranks is not None and ranks % least:
            raise ValueError(
                f"-n {ranks} can't be divided into {words} ranks: use a multiple of {least}"
            )


# The axes along which a model is cut, and for each option those that have no effect without it, or
# that do not fit it
AXES = ("pipeline", "context", "tensor")
NEEDED_BY = {
    "pipeline": ("micro_batches", "pipeline_schedule", "chunks", "cut_at", "recompute"),
    "tensor": ("tensor_rules", "sequence_parallel"),
    "checkpoint": ("checkpoint_every", "resume"),
    "resume": ("requeue",),
    "batch_rule": ("base_batch_size",),
}
EXCLUDED_BY = {
    "pipeline": ("accumulate", "sync_batch_norm", "class_weight", "one_copy", "compression",
                 "shard"),
    "tensor": ("sync_batch_norm", "one_copy", "compression", "shard"),
    "context": ("sync_batch_norm", "class_weight"),
    "ema": ("look_ahead",),
}  # fmt: skip


COMPONENTS: dict[str, type] = get_type_hints(RunConfig)


def taken_by(name: str) -> list[str]:
    """The strategies that take an option; none if it is not one of a strategy."""
    return [each for each, rule in STRATEGY_OPTIONS.items() if name in rule.taken()]


def _options() -> dict[str, Option]:
    found: dict[str, Option] = {}
    kinds = [*COMPONENTS.items(), *(("strategy", type(rule)) for rule in STRATEGY_OPTIONS.values())]
    for table, kind in sorted(kinds, key=lambda kind: list(COMPONENTS).index(kind[0])):
        for one in fields(kind):
            if one.name in found:  # of a base class
                continue
            found[one.name] = _option(table, kind, one)
    return found | {"strategy": replace(found["strategy"], choices=STRATEGIES)}


def _option(table: str, kind: type, one: Field) -> Option:
    more = {"table": table, "panel": kind.panel} | one.metadata
    if table == "strategy" and (rules := taken_by(one.name)):
        more["help"] = f"{more['help'][:-1]} ({', '.join(rules).replace('_', ' ')})."
    hint = get_type_hints(kind)[one.name]  # int, or int | None
    made = Option(one.name, (get_args(hint) or [hint])[0], one.default, **more)
    range_ = f" Must be {made.range}." if made.range else ""
    return replace(made, help=made.help + range_)


OPTIONS = _options()  # by name, in the order of --help
SEARCH = {one.name: _option("search", SearchConfig, one) for one in fields(SearchConfig)}


def check_strategy(name: str, options: dict[str, Any]) -> StrategyConfig:
    """The strategy `name` with its own of these options; ValueError if it does not take one.

    None and False count as not given. (0 is given: a momentum of 0 is a valid choice.)
    """
    OPTIONS["strategy"].checked(name)
    given = {n: value for n, value in options.items() if value is not None and value is not False}
    rule = STRATEGY_OPTIONS[name]
    for one in sorted(given.keys() - rule.taken()):
        if rules := taken_by(one):
            have = " or ".join(map(repr, rules))
            raise ValueError(f"{one} needs strategy {have}, got {name!r}")
    return replace(rule, **{f.name: given[f.name] for f in fields(rule) if f.name in given})


def read(path: Path) -> dict[str, Any]:
    """The options in a --config file, by name; ValueError if it is unreadable or one is wrong.

    The file is TOML with one table per component, or JSON: such an object, or a result of `--json`,
    whose "config" is taken, without the files that this run has written.
    """
    try:
        if not path.is_file() and path.exists():
            raise ValueError("it is no file")
        text = path.read_text(encoding="utf-8")
        tables = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"cannot read {path}: {reason}") from None
    if not isinstance(tables, dict):
        raise ValueError(f"{path} must hold tables of options, got a {type(tables).__name__}")
    own: tuple[str, ...] = ()
    if path.suffix == ".json" and "config" in tables:
        tables, own = tables["config"], WRITTEN
    found = {}
    try:
        for table, values in tables.items():
            if table not in COMPONENTS or not isinstance(values, dict):
                raise ValueError(_not_a_table(table))
            for name, value in values.items():
                if name not in OPTIONS or OPTIONS[name].table != table:
                    near = _nearest(name, OPTIONS, "see train --help")
                    raise ValueError(f"unknown option {name!r} in [{table}]; {near}")
                if name not in own:
                    found[name] = OPTIONS[name].checked(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return found


WRITTEN = (
    "checkpoint",
    "checkpoint_every",
    "resume",
    "requeue",
    "log",
    "json",
    "save",
    "save_best",
    "timeline",
)  # fmt: skip  (options of files that a run writes)


def _not_a_table(name: str) -> str:
    if name in COMPONENTS:
        return f"{name!r} must be a table: [{name}]"
    if name in OPTIONS:
        return f"option {name!r} is outside of a table; it belongs in [{OPTIONS[name].table}]"
    known = "choose one of " + ", ".join(f"[{table}]" for table in COMPONENTS)
    return f"unknown table [{name}]; " + _nearest(name, [*COMPONENTS, *OPTIONS], known)


def _nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    if (found := near(name, known)) is None:
        return otherwise
    place = f"[{found}]" if found in COMPONENTS else f"{found} in [{OPTIONS[found].table}]"
    return f"did you mean {place}?"


def markdown() -> str:
    """The table of all options, for docs/training.md."""
    rows = ["| option | in a file | default | meaning |", "|---|---|---|---|"]
    for one in OPTIONS.values():
        default = "" if one.default is None or one.kind is bool else f"`{one.default}`"
        value = "" if one.kind is bool else f" {one.metavar or one.kind.__name__.upper()}"
        choices = f" One of {', '.join(one.choices)}." if one.choices else ""
        flag = f"{one.short}, {one.flag}" if one.short else one.flag
        cells = [f"`{flag}{value}`", f"`[{one.table}] {one.name}`", default, one.help + choices]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(markdown())

"""Model parallelism: one model whose layers, or whose sequences, lie on several ranks.

Data parallelism needs the whole model, and a whole sample, on every rank. Here each rank holds a
part: some of the layers (a stage of a pipeline), a slice of each layer, or a part of each sequence.

The lessons, for layers in numpy, from Python:

tensor.py           each layer over several ranks, by columns, rows, heads
context.py          one sequence over several ranks (ring attention); positions.py: who keeps what
zero.py             weights, gradients and state over ranks (ZeRO); shards.py, shard_parts.py
pipelined.py        a pipeline, also of Keras models: stages.py has its parts, pipeline.py runs it

Schedules of a pipeline, as data: schedules.py; checking.py: the first wrong action;
simulating.py: what one costs; schedule_figure.py draws it.

Keras models; grid.py: ranks = D x S x C x T:

keras_graph.py      what a model calls, by Keras's clone_model
keras_tensor.py     layers that are cut, by the rules of keras_rules.py; keras_sequence.py: the
                    sequence-parallel form
keras_context.py    parts of sequences (sequences.py), by keras_context_rules.py
keras_layers.py     the layers of a rank; reductions.py: what they send
keras_replica.py    the Replica of a part; keras_costs.py: what its layers cost
keras_stages.py     stages of a pipeline; keras_stage.py: one, keras_passes.py: its passes as graphs
keras_sharded.py    a model by groups of layers, whose weights are divided; keras_head.py: its loss
keras_checks.py     what is refused
"""

import inspect

import lazy_loader

_find, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "context": ["RingAttention"],
        "grid": ["Grid"],
        "keras_replica": ["KerasContextReplica", "KerasPartReplica", "KerasTensorReplica"],
        "pipelined": ["PipelinedReplica"],
        "positions": ["Positions"],
        "checking": ["check", "held"],
        "schedule_figure": ["draw_schedule"],
        "schedules": ["Action", "Schedule", "ScheduleError"],
        "keras_sharded": ["ShardedReplica"],
        "simulating": ["Timetable", "simulate"],
        "tensor": ["TensorReplica", "split"],
        "zero": ["ZeRO"],
    },
)


def __getattr__(name: str):
    if name in ("ContextReplica", "LayeredTensorReplica"):
        # `from ... import` would lose the words of an AttributeError, and hasattr() needs one
        imported = inspect.currentframe().f_back.f_code.co_name == "_handle_fromlist"
        raise (ImportError if imported else AttributeError)(
            f"model_parallel.{name} is gone: train a Keras model, such as gpt, by "
            "KerasContextReplica or KerasTensorReplica; the lessons in numpy are RingAttention and "
            "TensorReplica"
        )
    return _find(name)

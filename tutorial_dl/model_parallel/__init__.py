"""Model parallelism: one model whose layers, or whose sequences, lie on several ranks.

Data parallelism needs the whole model, and a whole sample, on every rank. Here each rank holds a
part: some of the layers (a stage of a pipeline), a slice of each layer, or a part of each sequence.

schedules.py        schedules of a pipeline as lists of actions: GPipe, 1F1B, interleaved, ZB-H1
checking.py         the first wrong action of a schedule, and the memory it needs
simulating.py       what a schedule costs; schedule_figure.py draws it
stages.py           parts of a model, and where it is cut; grid.py: ranks = D x S x C x T
keras_graph.py      the nodes of a Keras model in order; keras_stages.py: where it is cut,
                    keras_stage_rules.py: what can't be; keras_stage.py: a stage,
                    keras_passes.py: its two passes as graphs
pipeline.py         runs a schedule; pipelined.py: the model of this rank as a Replica
tensor.py           the lesson, in numpy: layers over several ranks, by columns, rows, heads
keras_rules.py      which layers of a Keras model are cut how; keras_tensor.py cuts them,
                    keras_tensor_layers.py has the layers, keras_tensor_replica.py the Replica;
                    keras_tensor_sequence.py: the sequence-parallel form
shards.py           vectors divided over ranks, part by part, and their update (ZeRO);
                    shard_parts.py: what a rank holds of a part
zero.py             numpy layers trained so; sharded.py: any model as a Replica that is divided,
                    keras_sharded.py: loss and metrics of Keras models
context.py          one sequence over several ranks (ring attention); positions.py, sequences.py:
                    which keeps what; context_replica.py: numpy models on parts of sequences
keras_context.py    Keras models on parts of sequences, by the rules of keras_context_rules.py, of
                    the layers in keras_context_layers.py; keras_context_replica.py: the Replica
"""

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
        raise ImportError(  # its words come through an import as they are
            f"model_parallel.{name} is gone: train a Keras model, such as gpt, by "
            "KerasContextReplica or KerasTensorReplica; the lessons in numpy are RingAttention and "
            "TensorReplica"
        )
    return _find(name)

"""The arguments that Horovod's functions share, declared once; every function has its own order.

    @arguments("tensor average device_dense device_sparse compression op name", op=None)
    def allreduce(tensor, average, compression, op, name): ...

Arguments in NO_EFFECT are accepted, because scripts give them, and not passed on: data is exchanged
in main memory, and names are used as given.

AutoGraph, which `tf.function` applies to a script's own code, passes by these functions: it would
translate all that they call, for nothing. That took a third of the time of the tests of graphs.
"""

import functools
from inspect import Parameter, Signature

import tensorflow as tf

from .basics import global_process_set
from .wire import Average


class Compressor:
    """Sends tensors as they are: `compress` returns (tensor to send, context) for `decompress`."""

    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point numbers as float16: 11 significant bits, and above 65504 infinity.

    Half-precision numbers are added in float32 and rounded once, at the end.
    """

    half = tf.float16

    @classmethod
    def compress(cls, tensor):
        return tf.cast(tensor, cls.half) if tensor.dtype.is_floating else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tf.cast(tensor, ctx)


class BF16Compressor(FP16Compressor):
    """Sends floating-point numbers as bfloat16: 8 significant bits, and float32's range."""

    half = tf.bfloat16


class Compression:
    """The compressors by name; any class with the same two methods can be used instead."""

    none = Compressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


NO_EFFECT = {"device_dense": "", "device_sparse": "", "ignore_name_scope": False,
             "use_locking": False, "legacy_opts": False}  # fmt: skip
DEFAULTS = NO_EFFECT | {
    "name": None, "process_set": global_process_set, "compression": Compression.none,
    "op": Average, "average": None, "prescale_factor": 1.0, "postscale_factor": 1.0,
    "sparse_as_dense": False, "gradient_predivide_factor": 1.0, "num_groups": 0, "groups": None,
    "scale_local_gradients": True, "backward_passes_per_step": 1,
    "average_aggregated_gradients": False,
}  # fmt: skip


def arguments(order: str, **defaults):
    """Give a function these arguments, in this order; it is called with all of them by name.

    Args:
        order: names, separated by spaces; one that has no default must be given
        defaults: defaults that are not those of DEFAULTS
    """
    known = DEFAULTS | defaults
    kind = Parameter.POSITIONAL_OR_KEYWORD
    signature = Signature(
        [Parameter(n, kind, default=known.get(n, Parameter.empty)) for n in order.split()]
    )

    def decorate(function):
        @tf.autograph.experimental.do_not_convert
        @functools.wraps(function)
        def call(*args, **options):
            given = signature.bind(*args, **options)
            given.apply_defaults()
            return function(**{n: v for n, v in given.arguments.items() if n not in NO_EFFECT})

        call.__signature__ = signature
        return call

    return decorate

"""Compression: floating-point tensors are sent as they are, or in two bytes per number.

Half-precision numbers are added in float32 and rounded once, at the end. fp16 has 11 significant
bits, and numbers above 65504 become infinity; bf16 has 8 bits and float32's range.
"""

import tensorflow as tf


class Compressor:
    """Sends tensors as they are: `compress` returns (tensor to send, context) for `decompress`."""

    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


class _Half(Compressor):
    @classmethod
    def compress(cls, tensor):
        small = tf.cast(tensor, cls.half) if tensor.dtype.is_floating else tensor
        return small, tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tf.cast(tensor, ctx) if tensor.dtype != ctx else tensor


class FP16Compressor(_Half):
    """Sends floating-point numbers as float16."""

    half = tf.float16


class BF16Compressor(_Half):
    """Sends floating-point numbers as bfloat16."""

    half = tf.bfloat16


class Compression:
    """The compressors by name; any class with the same two methods can be used instead."""

    none = Compressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

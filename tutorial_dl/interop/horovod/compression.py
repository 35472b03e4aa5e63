"""What floating-point tensors travel as: as they are, or in two bytes a number.

Halves are added in float32 and rounded once, at the end. fp16 has 11 significant bits, and what is
above 65504 becomes infinity; bf16 has 8 bits and float32's range.
"""

from __future__ import annotations

import tensorflow as tf


class Compressor:
    """Base class: `compress` gives (what travels, a context), `decompress` takes them back."""

    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


class NoneCompressor(Compressor):
    """As it is."""


class _Half(Compressor):
    half = tf.float16

    @classmethod
    def compress(cls, tensor):
        small = tf.cast(tensor, cls.half) if tensor.dtype.is_floating else tensor
        return small, tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tf.cast(tensor, ctx) if tensor.dtype != ctx else tensor


class FP16Compressor(_Half):
    """Floating-point numbers as float16."""


class BF16Compressor(_Half):
    """Floating-point numbers as bfloat16."""

    half = tf.bfloat16


class Compression:
    """The compressors by name; any class with their two methods can be given instead."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

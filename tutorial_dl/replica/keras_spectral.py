"""Keras layers of discriminators: their weights are divided by their spectral norm.

Miyato et al., "Spectral normalization for generative adversarial networks", arXiv 1802.05957. The
norm is found by power iteration, anew in each step from the same vector: so there is no state that
ranks would have to keep equal, or checkpoints to hold. (`keras.layers.SpectralNormalization` keeps
the vector, and assigns its weights as it computes.)
"""

from __future__ import annotations

from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras

ops = keras.ops
ITERATIONS = 6


def normalised(kernel):
    """kernel / its largest singular value, as a matrix (inputs, outputs)."""
    matrix = ops.reshape(kernel, (-1, kernel.shape[-1]))
    v = ops.ones((kernel.shape[-1], 1), kernel.dtype)
    held = ops.stop_gradient(matrix)
    for _ in range(ITERATIONS):
        u = held @ v
        u = u / (ops.norm(u) + 1e-12)
        v = ops.transpose(held) @ u
        v = v / (ops.norm(v) + 1e-12)
    return kernel / (ops.sum(u * (matrix @ v)) + 1e-12)


@keras.saving.register_keras_serializable("tutorial_dl")
class SpectralDense(keras.layers.Dense):
    """Dense with a kernel of spectral norm 1."""

    def call(self, inputs):
        x = ops.matmul(inputs, normalised(self.kernel))
        return self.activation(x + self.bias if self.use_bias else x)


@keras.saving.register_keras_serializable("tutorial_dl")
class SpectralConv2D(keras.layers.Conv2D):
    """Conv2D; its kernel, as a matrix (height width channels, filters), has spectral norm 1."""

    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, normalised(kernel))

"""Dense networks in numpy: backpropagation in one file.

Layer l turns a[l-1] (s, n[l-1]) into z = a[l-1] W[l] + b[l] and a[l] = activation(z), shape
(s, n[l]); the last layer has no activation. With delta[l] = dL/dz[l], backwards from the last:

    dL/dW[l] = a[l-1]^T delta[l]      dL/db[l] = column sums of delta[l]
    delta[l-1] = (delta[l] W[l]^T) * activation'(z[l-1])

(Goodfellow, Bengio, Courville, "Deep Learning", 2016, algorithm 6.4.) Every product is written
directly to its place in the flat `gradient`; a known batch size needs no new memory.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from numba_kernels.jit.compile import compiled
from tutorial_dl.replica.base import Batch, lay_out, plain
from tutorial_dl.replica.vectors import Network

ACTIVATIONS = ("relu", "tanh")
BLOCK = 1 << 16  # random numbers drawn at once


class DenseReplica(Network):
    """The Replica of a dense network.

    A batch is (x, y): x (s, ...) is flattened to (s, sizes[0]); y is (s,) labels 0 ... k-1 for
    "cross_entropy", (s, k) or, where k = 1, (s,) floats for "mse", with k = sizes[-1].

    Args:
        sizes: Numbers of inputs, of units of each hidden layer, and of outputs.
        activation: Activation of the hidden layers, "relu" or "tanh".
        loss: "cross_entropy" of the softmax of the outputs, mean over samples; or "mse", the
            squared error, mean over samples and outputs, both as Keras defines them.
        seed: Seed of the initial weights, uniform in +-sqrt(6 / (n[l-1] + n[l])) (Glorot and
            Bengio, 2010); biases start at 0.
        dtype: float32 or float64.
    """

    def __init__(
        self,
        sizes: Sequence[int] = (64, 32, 10),
        activation: str = "relu",
        loss: str = "cross_entropy",
        seed: int = 0,
        dtype: Any = np.float32,
    ) -> None:
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"sizes {tuple(sizes)}: expected inputs, hidden layers..., outputs")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation '{activation}': expected {' or '.join(ACTIVATIONS)}")
        self.sizes, self.activation = tuple(sizes), activation
        arrays = []
        for layer, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
            arrays.append((f"layer_{layer}/kernel", (inputs, outputs)))
            arrays.append((f"layer_{layer}/bias", (outputs,)))
        super().__init__(lay_out(arrays), dtype, loss)
        random = np.random.default_rng(seed)
        for kernel in self.weights[::2]:
            limit = np.sqrt(6 / sum(kernel.shape))
            flat = kernel.reshape(-1)
            for start in range(0, flat.size, BLOCK):  # no float64 copy of a whole layer
                block = flat[start : start + BLOCK]
                block[:] = random.uniform(-limit, limit, block.size)
        self._capacity = 0

    def outputs(self, x: np.ndarray) -> np.ndarray:
        return self._forward(self._inputs(x))[-1]

    def loss_of(self, z: np.ndarray, y: np.ndarray) -> tuple[float, int]:
        return self._loss(z, y, np.empty(self.sizes[-1], self.dtype))

    def compute_gradient(
        self, batch: Batch, ready: Callable[[int, int], None] | None = None
    ) -> tuple[float, int]:
        """Fill `gradient`; return (mean loss, samples). See `Replica`.

        `ready(first, last)` is called when gradient[first:last] is complete: layer by layer from
        the last one back, while the rest is still being computed.
        """
        x, y = plain(batch)
        samples = len(x)
        if samples == 0:
            self.gradient[:] = 0
            return 0.0, 0
        a = self._forward(self._inputs(x))
        loss, _ = self._loss(a[-1], y, self.weights_gradient[-1])  # a[-1] now holds delta
        self._backward(a, ready)
        return loss / samples, samples

    def _inputs(self, x: np.ndarray) -> np.ndarray:
        x = np.ascontiguousarray(x, self.dtype).reshape(len(x), -1)
        if x.shape[1] != self.sizes[0]:
            raise ValueError(f"samples of {x.shape[1]} values: the model expects {self.sizes[0]}")
        return x  # (s, n[0])

    def _buffers(self, samples: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Views of `samples` rows of the buffers of all a[l] and delta[l], l >= 1."""
        if samples > self._capacity:
            self._a, self._delta = (
                [np.empty((samples, n), self.dtype) for n in self.sizes[1:]] for _ in range(2)
            )
            self._capacity = samples
        return [a[:samples] for a in self._a], [d[:samples] for d in self._delta]

    def _forward(self, x: np.ndarray) -> list[np.ndarray]:
        """a[0] = x, a[1], ..., the outputs: arrays (s, n[l])."""
        a = [x, *self._buffers(len(x))[0]]
        for layer in range(1, len(a)):
            kernel, bias = self.weights[2 * layer - 2 : 2 * layer]
            z = np.matmul(a[layer - 1], kernel, out=a[layer])
            if layer == len(a) - 1:
                z += bias
            elif self.activation == "relu":
                add_bias_relu(z, bias)
            else:
                z += bias
                np.tanh(z, out=z)
        return a

    def _loss(self, z: np.ndarray, y: np.ndarray, bias_gradient: np.ndarray) -> tuple[float, int]:
        """(Loss summed over samples, correct predictions); z becomes delta of the last layer."""
        samples, k = z.shape
        if self.loss == "cross_entropy":
            loss, right, wrong = cross_entropy(z, self._labels(y, samples), bias_gradient)
            if wrong >= 0:
                raise ValueError(
                    f"label {np.ravel(y)[wrong]} of sample {wrong} of the batch: "
                    f"the model has classes 0 to {k - 1}"
                )
            return loss, right
        y = np.asarray(y, self.dtype)
        if y.size != z.size or len(y) != samples:
            raise ValueError(f"targets of shape {y.shape}: expected ({samples}, {k})")
        z -= y.reshape(z.shape)
        loss = float(np.vdot(z, z)) / k
        z *= 2 / z.size
        np.sum(z, axis=0, out=bias_gradient)
        return loss, 0

    @staticmethod
    def _labels(y: np.ndarray, samples: int) -> np.ndarray:
        y = np.asarray(y)
        if y.size != samples or y.dtype.kind not in "iub":
            raise ValueError(
                f"targets of shape {y.shape} and dtype {y.dtype}: cross_entropy takes one integer "
                "label per sample (for one-hot targets, y.argmax(axis=1))"
            )
        return np.ascontiguousarray(y.reshape(samples), np.int64)

    def _backward(self, a: list[np.ndarray], ready: Callable[[int, int], None] | None) -> None:
        """Fill the gradient; a[-1] holds delta of the last layer, whose bias gradient is filled."""
        delta = a[-1]
        buffers = self._buffers(len(delta))[1]
        backward = relu_backward if self.activation == "relu" else tanh_backward
        for layer in range(len(a) - 1, 0, -1):
            np.matmul(a[layer - 1].T, delta, out=self.weights_gradient[2 * layer - 2])
            if ready is not None:  # the bias gradient is already filled
                kernel, bias = self.segments[2 * layer - 2 : 2 * layer]
                ready(kernel.offset, bias.offset + bias.size)
            if layer > 1:
                previous = buffers[layer - 2]
                np.matmul(delta, self.weights[2 * layer - 2].T, out=previous)
                backward(previous, a[layer - 1], self.weights_gradient[2 * layer - 3])
                delta = previous


class SoftmaxReplica(DenseReplica):
    """A linear classifier: the dense network without hidden layers. p = softmax(x W + b).

    Its loss is convex, so every descent ends at the same loss.
    """

    def __init__(self, inputs: int, classes: int, seed: int = 0, dtype: Any = np.float32) -> None:
        super().__init__((inputs, classes), loss="cross_entropy", seed=seed, dtype=dtype)


# Compiled kernels: what numpy would do in several passes over memory, in one pass and in place. The
# inner loops run over a row's elements, the order in which they lie in memory.


@compiled
def add_bias_relu(z, bias):
    """z <- max(z + bias, 0), z (s, k), bias (k,). NaN stays NaN."""
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            x = z[i, j] + bias[j]
            z[i, j] = z.dtype.type(0) if x < 0 else x


@compiled
def relu_backward(delta, activation, bias_gradient):
    """delta <- delta relu'(z), where relu'(z) = 1 if a = relu(z) > 0; bias gradient = column sums.

    delta, activation (s, k); bias_gradient (k,).
    """
    bias_gradient[:] = 0
    for i in range(delta.shape[0]):
        for j in range(delta.shape[1]):
            d = delta[i, j] if activation[i, j] > 0 else delta.dtype.type(0)
            delta[i, j] = d
            bias_gradient[j] += d


@compiled
def tanh_backward(delta, activation, bias_gradient):
    """delta <- delta tanh'(z) = delta (1 - a^2), a = tanh(z); bias gradient = column sums."""
    one = delta.dtype.type(1)
    bias_gradient[:] = 0
    for i in range(delta.shape[0]):
        for j in range(delta.shape[1]):
            a = activation[i, j]
            d = delta[i, j] * (one - a * a)
            delta[i, j] = d
            bias_gradient[j] += d


@compiled
def cross_entropy(z, labels, bias_gradient):
    """Softmax and cross-entropy of logits z (s, k) and labels (s,), forward and backward at once.

    z <- (softmax(z) - onehot(labels)) / s, the gradient of the mean loss; bias_gradient (k,) its
    column sums. Returns (sum of the losses, number of correct predictions, wrong_label): the last
    is the position of a label outside 0 ... k-1, else -1.

    Each row's largest logit is subtracted first, which keeps exp() finite and changes no result.
    """
    samples, classes = z.shape
    loss, right = 0.0, 0
    bias_gradient[:] = 0
    for i in range(samples):
        label = labels[i]
        if label < 0 or label >= classes:
            return loss, right, i
        largest, best = z[i, 0], 0
        for j in range(1, classes):
            if z[i, j] > largest:
                largest, best = z[i, j], j
        right += best == label
        # Use float64 even for float32: the loss is a sum of many terms, and this costs nothing.
        loss += np.float64(largest) - np.float64(z[i, label])
        total = z.dtype.type(0)
        for j in range(classes):
            z[i, j] = np.exp(z[i, j] - largest)
            total += z[i, j]
        loss += np.log(np.float64(total))
        scale = z.dtype.type(1) / (total * z.dtype.type(samples))
        for j in range(classes):
            z[i, j] *= scale
        z[i, label] -= z.dtype.type(1) / z.dtype.type(samples)
        for j in range(classes):
            bias_gradient[j] += z[i, j]
    return loss, right, -1

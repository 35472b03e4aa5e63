"""Compiled kernels of a dense network: operations that numpy would do in several memory passes.

Matrix products use BLAS; everything else is compiled here, one pass each, in place. The inner loops
run over a row's elements, the order in which they lie in memory.
"""

import numpy as np

from numba_kernels.jit.compile import compiled


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

"""Checks of notebook 30, matrices as matrices (Muon)."""

import numpy as np

from numba_kernels.optimizers.muon import A, B, C

from . import NotYet, call, close, must_be, must_have, number_of

SIDE, SHARE = 1024, 0.05  # exercise 2


def one_round(answer) -> str:
    """Exercise 1: a round of Newton and Schulz, of matrices that are wide, high and square."""
    random = np.random.default_rng(30)
    for shape in ((3, 3), (2, 5), (6, 3)):
        x = random.normal(size=shape)
        x /= np.linalg.norm(x)
        u, s, vt = np.linalg.svd(x, full_matrices=False)

        def of(values, u=u, vt=vt):
            return u @ np.diag(values) @ vt

        products: list[int] = []
        given = x.view(_Counting)
        given.products = products
        made = np.asarray(call(answer, given))
        where = f"a matrix of {shape[0]} x {shape[1]}"
        mistakes = {
            "the last power is 5: the square of X Xᵀ, times X": of(A * s + B * s**3 + C * s**3),
            "the middle power is 3: X Xᵀ times X": of(A * s + B * s**2 + C * s**5),
            "X is not divided by its length here": of((A * s + B * s**3 + C * s**5) / len(s)),
        }
        close(made, of(A * s + B * s**3 + C * s**5), where, mistakes)
        if max(products, default=0) > min(shape) ** 2 * max(shape):
            raise NotYet(f"{where}: right, but a product with the larger square takes longer")
    return "singular values are mapped by the polynomial, by the shorter side"


def batch(answer) -> str:
    """Exercise 2: 5 n / B = 0.05."""
    (found,) = must_have([answer], 1, "a number of samples")
    found = number_of(found, "the batch")
    right = 5 * SIDE / SHARE
    mistakes = {
        "5% is 0.05, not 5": 5 * SIDE / 5,
        "there are five rounds, each of 6 n³ operations": SIDE / SHARE,
        "the gradient takes three products, 6 B n², not one": 3 * right,
        "here the products take as long as the gradient": 5 * SIDE,
    }
    must_be(found, right, "the batch", mistakes, rtol=0.01)
    return "100 n: samples of a network of this width, or tokens of a small batch of texts"


class _Counting(np.ndarray):
    """An array that notes the multiplications of each product of matrices."""

    def __array_finalize__(self, other):
        self.products = getattr(other, "products", None)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        plain = [np.asarray(one) for one in inputs]
        options = {name: value for name, value in options.items() if name != "out"}
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc is np.matmul:
            self.products.append(plain[0].size * plain[1].shape[-1])
        if not isinstance(result, np.ndarray):
            return result
        result = result.view(_Counting)
        result.products = self.products
        return result

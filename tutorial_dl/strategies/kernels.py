"""The arithmetic of rules with a master, compiled, one pass each; flat arrays [n] of one dtype.

The velocity of a weight whose gradient is zero decays into denormal numbers, which processors
handle slowly: here they are flushed to zero.
"""

from numba_kernels.jit.compile import compiled
from numba_kernels.jit.denormals import flush_denormals, restore


@compiled
def add(x, factor, y):
    """x += factor y"""
    before = flush_denormals()
    factor = x.dtype.type(factor)
    for i in range(x.size):
        x[i] += factor * y[i]
    restore(before)


@compiled
def momentum_step(x, g, v, rate, momentum):
    """v = momentum v - rate g;  x += v"""
    before = flush_denormals()
    rate, momentum = x.dtype.type(rate), x.dtype.type(momentum)
    for i in range(x.size):
        v[i] = momentum * v[i] - rate * g[i]
        x[i] += v[i]
    restore(before)


@compiled
def spring(center, x, answer, alpha):
    """EASGD: d = alpha (x - center);  center += d;  answer = x - d.  `answer` may be `x`."""
    alpha = center.dtype.type(alpha)
    for i in range(center.size):
        d = alpha * (x[i] - center[i])
        center[i] += d
        answer[i] = x[i] - d


@compiled
def compensate(g, factor, w, old):
    """Delay compensation (DC-ASGD): g += factor g^2 (w - old), for a gradient g taken at `old`."""
    factor = g.dtype.type(factor)
    for i in range(g.size):
        g[i] += factor * g[i] * g[i] * (w[i] - old[i])


@compiled
def match_energy(x, g, theta, m, s, commit, rate, momentum, kappa, most):
    """A worker's step of gradient energy matching (GEM); `theta` are the master's weights."""
    before = flush_denormals()
    rate, momentum = x.dtype.type(rate), x.dtype.type(momentum)
    kappa, most = x.dtype.type(kappa), x.dtype.type(most)
    tiny, zero = x.dtype.type(1e-12), x.dtype.type(0)
    for i in range(x.size):
        d = -rate * g[i]
        m[i] = momentum * m[i] + d
        pi = (kappa * abs(m[i]) - abs(theta[i] - s[i])) / (abs(d) + tiny)
        commit[i] = min(max(pi, zero), most) * d
        s[i] = theta[i]
        x[i] = theta[i] + commit[i]
    restore(before)

"""All update rules behind one compiled call, so that one fused step serves every optimizer."""

from ..compile import compiled
from . import adam, sgd

_sgd, _adam = sgd.kernel, adam.kernel


@compiled
def apply(rule, parameters, gradient, slots, hyper):
    """Run rule number `rule` over flat arrays of one length; slots has shape (k, n)."""
    if rule == 0:
        _sgd(parameters, gradient, slots, hyper)
    elif rule == 1:
        _adam(parameters, gradient, slots, hyper)

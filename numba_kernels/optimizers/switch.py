"""All update rules behind one compiled call, so that one fused step serves every optimizer.

Passing functions as arguments would also work, but code compiled that way can't be cached.
"""

from ..jit.compile import compiled
from ..jit.denormals import flush_denormals, restore
from . import (
    adadelta,
    adagrad,
    adam,
    adamw,
    lamb,
    lars,
    lion,
    nadam,
    prodigy,
    rmsprop,
    schedule_free,
    sgd,
)

_sgd, _adam, _adamw, _nadam = sgd.kernel, adam.kernel, adamw.kernel, nadam.kernel
_adagrad, _adadelta, _rmsprop = adagrad.kernel, adadelta.kernel, rmsprop.kernel
_lion, _lars, _lamb = lion.kernel, lars.kernel, lamb.kernel
_lars_norms, _lamb_norms, _lars_rate, _lamb_rate = lars.norms, lamb.norms, lars.rate, lamb.rate
_schedule_free, _prodigy = schedule_free.kernel, prodigy.kernel
_prodigy_norms, _prodigy_rate = prodigy.norms, prodigy.rate


@compiled
def apply(rule, parameters, gradient, slots, start, hyper, over=None):
    """Run rule number `rule` over equally long slices; slots[:, start] is the first element's.

    `over` is as in base.py.
    """
    if rule == 0:
        _sgd(parameters, gradient, slots, start, hyper, over)
    elif rule == 1:
        _adam(parameters, gradient, slots, start, hyper, over)
    elif rule == 2:
        _adamw(parameters, gradient, slots, start, hyper, over)
    elif rule == 3:
        _nadam(parameters, gradient, slots, start, hyper, over)
    elif rule == 4:
        _adagrad(parameters, gradient, slots, start, hyper, over)
    elif rule == 5:
        _adadelta(parameters, gradient, slots, start, hyper, over)
    elif rule == 6:
        _rmsprop(parameters, gradient, slots, start, hyper, over)
    elif rule == 7:
        _lion(parameters, gradient, slots, start, hyper, over)
    elif rule == 8:
        _lars(parameters, gradient, slots, start, hyper, over)
    elif rule == 9:
        _lamb(parameters, gradient, slots, start, hyper, over)
    elif rule == 10:
        _schedule_free(parameters, gradient, slots, start, hyper, over)
    elif rule == 11:
        _prodigy(parameters, gradient, slots, start, hyper, over)


@compiled
def measure(rule, parameters, gradient, slots, start, hyper, squares):
    """Do the first pass of rule number `rule` over a slice of one layer: add to `squares`, (2,)."""
    if rule == 8:
        _lars_norms(parameters, gradient, squares)
    elif rule == 9:
        _lamb_norms(parameters, gradient, slots, start, hyper, squares)
    elif rule == 11:
        _prodigy_norms(parameters, gradient, slots, start, hyper, squares)


@compiled
def set_rate(rule, hyper, squares):
    """Set hyper[0] to the learning rate of a layer, from its sums of squares."""
    if rule == 8:
        hyper[0] = _lars_rate(hyper, squares)
    elif rule == 9:
        hyper[0] = _lamb_rate(hyper, squares)
    elif rule == 11:
        hyper[0] = _prodigy_rate(hyper, squares)


@compiled
def begin(rule, parameters, gradient, slots, pieces, hyper, squares):
    """Run `measure` on every piece of a slice; squares: (layers, 2)."""
    before = flush_denormals()
    for i in range(pieces.shape[0]):
        start, end = pieces[i, 0], pieces[i, 1]
        w, g = parameters[start:end], gradient[start:end]
        measure(rule, w, g, slots, start, hyper, squares[pieces[i, 2]])
    restore(before)


@compiled
def finish(rule, parameters, gradient, slots, pieces, hyper, squares):
    """Run `apply` on every piece of a slice, with the learning rate of its layer."""
    before = flush_denormals()
    for i in range(pieces.shape[0]):
        start, end = pieces[i, 0], pieces[i, 1]
        if squares.shape[0] > 0:
            set_rate(rule, hyper, squares[pieces[i, 2]])
        apply(rule, parameters[start:end], gradient[start:end], slots, start, hyper)
    restore(before)

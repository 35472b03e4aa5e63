"""Strategies: the rules by which ranks train one model together, one file per rule.

A strategy knows nothing of layers: it sees a replica's two flat vectors, parameters and gradient.
There are two kinds.

Either all ranks hold the same model (serial; synchronous data parallelism, as in DDP), or they all
update one copy of it (hogwild). Such a strategy has four methods, which the ranks of its `team`
call:

    attach(replica, optimizer)    once: put the vectors where this strategy needs them
    step(batch) -> loss, samples  one update; loss and samples are those of all ranks together
    average_state()               before validation: make equal on all ranks what is not optimised
    resume()                      after a failure: make all ranks agree again

It may rely on every rank calling `step` equally often, each with its own share of the batch; a
share may be empty.

Or workers exchange vectors with a master (downpour: Downpour SGD of DistBelief; elastic_averaging:
EASGD and EAMSGD; gradient_energy_matching: GEM). Such a strategy is a `Rule` (rule.py), which says
what a worker does and what the master does.
"""

from __future__ import annotations

import lazy_loader

NAMES = {
    "serial": "Serial",
    "synchronous": "Synchronous",
    "downpour": "Downpour",
    "elastic_averaging": "ElasticAveraging",
    "gradient_energy_matching": "GradientEnergyMatching",
    "hogwild": "Hogwild",
}
RULES = ("downpour", "elastic_averaging", "gradient_energy_matching")  # with a master

# The strategies that take each option; all others refuse it.
OPTIONS = {
    "one_copy": ("synchronous",),
    "compression": ("synchronous",),
    "every": ("downpour", "elastic_averaging"),
    "synchronous": ("downpour", "elastic_averaging"),
    "staleness_aware": ("downpour",),
    "lower_momentum": ("downpour",),
    "moving_rate": ("elastic_averaging",),
    "momentum": ("elastic_averaging", "gradient_energy_matching"),
    "kappa": ("gradient_energy_matching",),
    "upward": RULES,
    "layout": RULES,
}

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["base", "center", "kernels", "loss_scale", "rule", "scripted"],
    submod_attrs={file: [kind] for file, kind in NAMES.items()}
    | {"rule": ["Rule"], "scripted": ["Scripted"]},
)
__all__ += ["NAMES", "get"]


def check(name: str, **options) -> None:
    """Check the name of a strategy and its options before anything is built.

    Args:
        name: one of NAMES
        options: values by name; an option that is None or False counts as not given

    Raises:
        ValueError: there is no such strategy, it does not take one of the options, or two options
            exclude each other
    """
    if name not in NAMES:
        raise ValueError(f"unknown strategy {name!r}; choose one of {', '.join(NAMES)}")
    given = _given(options)
    for option in sorted(given):
        if name not in OPTIONS[option]:
            have = " or ".join(repr(one) for one in OPTIONS[option])
            raise ValueError(f"{option} needs strategy {have}, got {name!r}")
    if {"compression", "one_copy"} <= given.keys():
        raise ValueError("one_copy and compression exclude each other; choose one")


def get(name: str, team=None, **options):
    """Make a strategy by its name.

    Args:
        name: one of NAMES
        team: the ranks that train; all ranks if None
        options: the strategy's own options; None or False counts as not given

    Returns:
        A new object of the strategy's class.

    Raises:
        ValueError: see `check`
    """
    check(name, **options)
    kind = __getattr__(NAMES[name])
    return kind(team=team, **_given(options))


def _given(options: dict) -> dict:
    # (0 counts as given: a momentum of 0 is a valid choice.)
    return {n: value for n, value in options.items() if value is not None and value is not False}

"""Strategies: rules by which ranks train one model together, a file each.

No strategy has ever heard of layers: they see a replica's two flat vectors. There are two kinds.

Where all ranks hold one model (serial, synchronous), or work on one copy of it (hogwild), a
strategy does, on the ranks of its `team`,

    attach(replica, optimizer)    once: put the vectors where this rule needs them
    step(batch) -> loss, samples  one update; of all ranks' samples together
    average_state()               before validation: make what is not optimised equal on all ranks
    resume()                      after a failure: make all ranks agree again

and may rely on every rank calling `step` equally often, with its own share of each batch, which may
be empty. Where workers talk to a master (downpour, elastic_averaging, gradient_energy_matching) it
is a `Rule` of what each side does (rule.py).
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

# Which options belong to which strategies; the others know nothing of them.
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
    """ValueError unless there is a strategy called `name`, and it has these options.

    An option that is None or False is not given.
    """
    if name not in NAMES:
        raise ValueError(f"unknown strategy {name!r}; one of {', '.join(NAMES)}")
    given = _given(options)
    for option in sorted(given):
        if name not in OPTIONS[option]:
            words = {"one_copy": "one copy of the weights"}.get(option, option.replace("_", " "))
            have = " or ".join(repr(one) for one in OPTIONS[option])
            raise ValueError(f"{words} with strategy {name!r}; strategy {have} is needed for it")
    if {"compression", "one_copy"} <= given.keys():
        raise ValueError("one copy of the weights with compression: one of them only")


def get(name: str, team=None, **options):
    """A new strategy by its name, on `team` (all ranks if None), with its own options."""
    check(name, **options)
    kind = __getattr__(NAMES[name])
    return kind(team=team, **_given(options))


def _given(options: dict) -> dict:
    # (0 is given: a momentum of 0 is one.)
    return {n: value for n, value in options.items() if value is not None and value is not False}

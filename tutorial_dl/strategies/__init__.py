"""Strategies: rules by which ranks train one model together, a file each.

A strategy has never heard of layers. It sees a replica's two flat vectors and does

    attach(replica, optimizer)    once: put the vectors where this rule needs them
    step(batch) -> loss, samples  one update; of all ranks' samples together
    average_state()               before validation: make what is not optimised equal on all ranks

on the ranks of its `team`. What it may rely on: every rank calls `step` equally often, with its
own share of each batch, which may be empty.
"""

from __future__ import annotations

from importlib import import_module

NAMES = {"serial": "Serial", "synchronous": "Synchronous"}

__all__ = ["NAMES", "Serial", "Synchronous", "get"]


def __getattr__(name):
    for module, of_it in NAMES.items():
        if name == of_it:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def check(name: str, one_copy: bool = False) -> None:
    """ValueError unless there is a strategy called `name`, and it has this option."""
    if name not in NAMES:
        raise ValueError(f"unknown strategy {name!r}; one of {', '.join(NAMES)}")
    if one_copy and name != "synchronous":
        raise ValueError(
            f"one copy of the weights with strategy {name!r}; 'synchronous' is needed for it"
        )


def get(name: str, team=None, one_copy: bool = False):
    """A new strategy by its name, on `team` (all ranks if None)."""
    check(name, one_copy)
    options = {"one_copy": True} if one_copy else {}
    return getattr(import_module(f".{name}", __name__), NAMES[name])(team, **options)

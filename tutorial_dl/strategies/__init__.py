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

import lazy_loader

from ..config import STRATEGIES, check_strategy

# The class of each strategy; the file has the strategy's name.
NAMES = {name: name.title().replace("_", "") for name in STRATEGIES}

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["base", "center", "kernels", "loss_scale", "rule", "scripted"],
    submod_attrs={file: [kind] for file, kind in NAMES.items()}
    | {"rule": ["Rule"], "scripted": ["Scripted"]},
)
__all__ += ["NAMES", "get"]


def get(name: str, team=None, **options):
    """Make a strategy by its name, one of NAMES, for a team (None: all ranks).

    Options that are None or False count as not given. ValueError says that there is no such
    strategy, that it does not take one of the options, or that two options exclude each other.
    """
    check_strategy(name, options)
    given = {n: v for n, v in options.items() if v is not None and v is not False}
    return __getattr__(NAMES[name])(team=team, **given)

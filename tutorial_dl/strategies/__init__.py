"""Strategies: the rules by which ranks train one model together, one file per rule.

A strategy knows nothing of layers: it sees a replica's two flat vectors, parameters and gradient.
There are two kinds.

Either all ranks hold the same model (serial; synchronous data parallelism, as in DDP), or make
steps of their own between exchanges (local_steps: federated averaging, DiLoCo; gossip: NoLoCo), or
all update one copy of it (hogwild). Such a strategy is a `OneModel` (base.py): the ranks of its
`team` make the same calls, each with its own share of the batch.

Or workers exchange vectors with a master (downpour: Downpour SGD of DistBelief; elastic_averaging:
EASGD and EAMSGD; gradient_energy_matching: GEM; diloco_async). Such a strategy is a `Rule`
(rule.py), which says what a worker does and what the master does.
"""

import lazy_loader

from ..config import STRATEGIES, check_strategy

# The class of each strategy; the file has the strategy's name.
NAMES = {name: name.title().replace("_", "") for name in STRATEGIES}

_find, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["base", "center", "kernels", "loss_scale", "rule", "scripted"],
    submod_attrs={file: [kind] for file, kind in NAMES.items()}
    | {"rule": ["Rule"], "scripted": ["Scripted"]},
)
__all__ += ["NAMES", "get"]


def __getattr__(name: str):
    if name in ("Sharded", "Pipelined", "TensorParallel", "ContextParallel"):
        raise ImportError(  # its words come through an import as they are
            f"strategies.{name} is gone: a replica knows which parts its rank holds, so write "
            "Trainer(replica, data), which is strategy 'synchronous'"
        )
    return _find(name)


def get(name: str, team=None, **options):
    """Make a strategy by its name, one of NAMES, for a team (None: all ranks).

    Options that are None or False count as not given. ValueError says that there is no such
    strategy, that it does not take one of the options, or that two options exclude each other.
    """
    check_strategy(name, options)
    given = {n: v for n, v in options.items() if v is not None and v is not False}
    return _find(NAMES[name])(team=team, **given)

"""Distributed deep learning over MPI, from curve fitting to parallel training.

In a notebook:

    from tutorial_dl import Team, Trainer, strategies, models, data

On the command line: `python -m tutorial_dl --help`. Parts are imported when they are first used,
so importing this package does not load MPI, Numba or TensorFlow.
"""

from importlib import import_module

try:
    import lazy_loader
except ModuleNotFoundError as error:  # another Python than the one that has been installed into
    raise ModuleNotFoundError(
        f"{error}: activate the environment first, by `. .venv/bin/activate`", name=error.name
    ) from None

__version__ = "0.1.0"

_attached, _dir, __all__ = lazy_loader.attach(
    __name__,
    submodules=[
        "cluster", "course", "data", "horovod", "layers", "layout", "models", "replica",
        "strategies", "training", "tuning",
    ],
    submod_attrs={
        "course": ["exercises", "foundations", "measure", "plotting", "traffic"],
        "layout.layout": ["Layout"],
        "training": ["Trainer", "callbacks", "schedules", "timeline"],
    },
)  # fmt: skip
# Users need these too. They are not lazy-loader's, which attaches names of one package only.
_KERNELS = ("Team", "launch", "optimizers")
__all__ = [*__all__, *_KERNELS]


def __getattr__(name):
    if name in _KERNELS:
        return getattr(import_module("numba_kernels"), name)
    return _attached(name)


def __dir__():
    return sorted([*globals(), *__all__])

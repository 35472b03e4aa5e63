"""What would it take: one simulated clock, and one model of what machines and cuts cost.

clock.py        `SimulatedClock`, and processes that wait for time and for messages on it
ranks.py        virtual ranks: a program on threads that take turns on such a clock, with a team
steps.py        a synchronous step of p ranks, from what is measured on one
cuts.py         a model in copies, stages, parts of sequences and slices of layers
transformer.py  the same for large transformers on GPUs, on paper

Messages and additions are those of `numba_kernels.allreduce.costs`, and so is the `Machine`.
Elsewhere, on the same clock: pipelines (model_parallel/simulating.py), a search on many
groups (tuning/simulation.py), and a master with its workers (course/foundations/queueing.py).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "clock": ["Processes", "SimulatedClock"],
        "cuts": ["Cut", "CutCost", "LayerCost", "propose"],
        "ranks": ["VirtualTeam", "on_virtual_ranks"],
        "steps": ["copy_bandwidth", "profile", "speed_up", "step_seconds"],
        "transformer": ["Job", "Transformer", "cost", "gpus", "possible", "why_not"],
    },
)

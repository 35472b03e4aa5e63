"""Training a model: the Trainer, and what it is given.

plan.py       `Plan`: every decision about a run, once; trainer.py: `Trainer`, a thin front
setup.py      from the options of a command (config.py) to a Plan; ranks.py: on how many ranks
gan.py        a Trainer of a GAN; gan_watch.py, gan_quality.py, gan_samples.py: what is seen of it
optimizer_choice.py, schedules.py  the optimizer, and learning rates by step
callbacks.py, keras_callbacks.py   what is called after each epoch; log.py: a file of its rows
progress.py   what rank 0 shows meanwhile
timeline.py   what every rank does when; span_kinds.py, timeline_figure.py: how it is drawn
"""

import lazy_loader

# Lazily: a Trainer loads MPI, which a process that only starts ranks must not initialise.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["callbacks", "schedules", "timeline"],
    submod_attrs={"trainer": ["History", "Trainer", "TrainingError"]},
)

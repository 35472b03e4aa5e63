"""Elastic training (a changing number of ranks) is not implemented; any use of it says so."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotImplementedError(
        f"elastic.{name}: the number of ranks is fixed while a job runs; "
        "save checkpoints and restart with another number of ranks"
    )

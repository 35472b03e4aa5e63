"""Elastic training (ranks that come and go) is not built; whoever asks for it is told so."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotImplementedError(
        f"elastic.{name}: the number of ranks is fixed while a job runs; "
        "save checkpoints, and start again on another number of ranks"
    )

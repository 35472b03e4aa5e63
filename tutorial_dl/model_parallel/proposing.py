"""What was here in earlier versions, and what to write now."""

raise ModuleNotFoundError(
    "model_parallel.proposing is gone: write from tutorial_dl.simulate.cuts import propose"
)

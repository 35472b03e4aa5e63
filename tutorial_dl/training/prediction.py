"""What was here is in `simulate`."""

raise ModuleNotFoundError("training.prediction is gone: write tutorial_dl.simulate.steps")

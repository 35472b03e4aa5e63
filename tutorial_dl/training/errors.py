"""How training ends when it does not end well."""

from __future__ import annotations

import signal


class TrainingError(RuntimeError):
    """Training can't go on."""


class NotFinite(TrainingError):
    """The loss, or a gradient, is no longer a number."""


class Terminated(SystemExit):
    """SIGTERM came: a checkpoint was written, on all ranks training has ended."""

    def __init__(self, path, steps: int):
        super().__init__(128 + signal.SIGTERM)
        self.path, self.steps = path, steps

    def __str__(self) -> str:
        return f"ended by SIGTERM after step {self.steps}; {self.path} is written, resume from it"

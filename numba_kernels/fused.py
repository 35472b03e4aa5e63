"""`numba_kernels.fused.Step` is `numba_kernels.step.Step`: the name under which scripts know it."""

from .step.step import Step

__all__ = ["Step"]

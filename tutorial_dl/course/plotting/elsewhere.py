"""Figures that stand beside what they draw."""

from tutorial_dl.layout.figure import draw_layout
from tutorial_dl.training.schedules import learning_rates
from tutorial_dl.training.timeline_figure import spans

__all__ = ["draw_layout", "learning_rates", "spans"]

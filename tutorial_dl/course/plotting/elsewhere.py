"""Figures that stand beside what they draw."""

from tutorial_dl.layout.figure import draw_axes, draw_layout
from tutorial_dl.model_parallel.schedule_figure import draw_schedule
from tutorial_dl.training.schedules import learning_rates
from tutorial_dl.training.timeline_figure import spans

__all__ = ["draw_axes", "draw_layout", "draw_schedule", "learning_rates", "spans"]

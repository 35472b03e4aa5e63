"""Every figure that the notebooks and the command line draw: data in, matplotlib Figure out.

Figures of one panel take a `title`, which replaces their own, and `ax` to draw on. There is one
file per subject. Matplotlib is imported when the first figure is asked for.
"""

import lazy_loader

# What this package offers, by file. (elsewhere.py: what stands beside what it draws.)
FIGURES = {
    "allreduce": [
        "Message", "allreduce_ladder", "allreduce_times", "ring_film", "ring_strip", "rounds",
        "side_by_side", "timetable",
    ],
    "batches": [
        "batch_errors", "normalised_apart", "records", "share_statistics", "stable_rates",
    ],
    "curves": [
        "descent_film", "error_factors", "fit_errors", "fits", "loss_curves",
    ],
    "dimensions": ["map_of_cuts", "parts_of_cuts"],
    "elsewhere": ["draw_axes", "draw_layout", "draw_schedule", "learning_rates", "spans"],
    "games": [
        "duels", "forger_film", "quality_at_equal_terms",
    ],
    "kernels": ["beside", "fused_step", "step_traffic", "trips"],
    "matrices": ["mapped_circles", "rounds_of_newton_schulz"],
    "messages": [
        "message_times", "ranks", "ways_to_miss", "who_waits", "with_faults",
    ],
    "networks": ["gradient_check", "hinges"],
    "parameter_server": [
        "many_to_few", "on_equal_terms", "saturated", "served", "service",
        "unseen",
    ],
    "pipelines": ["compared_schedules", "schedule_so_far"],
    "predictions": ["compared", "guessed"],
    "rules": [
        "commits", "delay_map", "kept_pace", "periods", "random_order", "shares_of_pi", "springs",
        "staleness_histogram",
    ],
    "search": [
        "estimates", "grid_and_random", "process_steps", "regrets",
        "winners",
    ],
    "sharding": ["causal_work", "memory_ladder", "ring_attention_film"],
    "showers": [
        "layer_profiles", "separations_by_feature", "shower_histograms",
        "shower_pictures",
    ],
    "splitting": ["cut_products"],
    "training": [
        "distances", "histories", "overlapped", "speed_up",
        "throughput",
    ],
}  # fmt: skip
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, [*FIGURES], FIGURES)

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
        "batch_errors", "gradient_noise", "moving_statistics", "normalised_apart", "records",
        "share_statistics", "stable_rates",
    ],
    "curves": [
        "descent_film", "error_factors", "fit_errors", "fits", "loss_curves", "loss_paths",
        "solver_errors",
    ],
    "dimensions": ["map_of_cuts", "parts_of_cuts"],
    "elsewhere": ["draw_axes", "draw_layout", "draw_schedule", "learning_rates", "spans"],
    "games": [
        "distances_by_epoch", "duel_factors", "duels", "forger_film", "quality_at_equal_terms",
    ],
    "kernels": ["beside", "fused_step", "step_traffic", "trips"],
    "matrices": ["mapped_circles", "rounds_of_newton_schulz", "singular_values"],
    "messages": [
        "how_long", "message_times", "ranks", "slowest_of", "ways_to_miss", "who_waits",
        "with_faults",
    ],
    "networks": ["gradient_check", "hinges", "step_errors", "training_strip", "unit_errors"],
    "parameter_server": [
        "exchange_times", "many_to_few", "on_equal_terms", "saturated", "served", "service",
        "unseen",
    ],
    "pipelines": ["bubbles", "compared_schedules", "schedule_so_far"],
    "rules": [
        "by_rounds", "center_noise", "commits", "delay_map", "delayed_paths", "kept_pace",
        "largest_rates", "pace_by_workers", "periods", "random_order", "resting_point",
        "shares_of_pi", "springs", "staleness_histogram", "times_as_fast",
    ],
    "search": [
        "chances", "estimates", "grid_and_random", "measured_once", "process_steps", "regrets",
        "winners",
    ],
    "sharding": ["causal_work", "memory_ladder", "ring_attention_film", "score_memory"],
    "showers": [
        "layer_profiles", "separations_by_feature", "shower_depths", "shower_histograms",
        "shower_pictures",
    ],
    "splitting": ["cut_products", "travelled"],
    "training": [
        "distances", "histories", "mean_of_means", "overlapped", "speed_up", "step_parts",
        "throughput",
    ],
}  # fmt: skip
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, [*FIGURES], FIGURES)

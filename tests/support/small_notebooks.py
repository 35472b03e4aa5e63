"""Notebooks with less to compute: the same cells and asserts, with fewer seeds and rounds.

SMALL lists pieces of each notebook's code and what replaces them. Each piece must occur exactly
once, so that a change of a notebook is noticed. With WHOLE_NOTEBOOKS=1 in the environment,
notebooks run unchanged.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

SMALL = {
    "01_curve_fitting": {"draws=300": "draws=100"},
    "02_gradient_descent": {"runs, frames=16,": "runs, frames=4,"},
    "05_allreduce": {
        "plotting.ring_film(ranks=4)": "plotting.ring_film(ranks=2)",
        "plotting.ring_strip(ranks=4)": "plotting.ring_strip(ranks=2)",
        "plotting.timetable(ranks=4)": "plotting.timetable(ranks=2)",
        "sizes = 4 ** np.arange(3, 12)": "sizes = 4 ** np.arange(3, 12, 4)",
        'np.zeros(n // 4, "float32"), algorithm)': 'np.zeros(n // 4, "float32"), algorithm, 3)',
        "np.arange(3, 23)  # 8 bytes": "np.arange(3, 23, 6)  # 8 bytes",
        'window[: n // 4], "shared_memory") for': 'window[: n // 4], "shared_memory", 3) for',
    },
    "06_synchronous_training": {
        f"train({p}, epochs=80)": f"train({p}, epochs=5)" for p in (1, 2, 4)
    },
    "07_kernels": {
        "n = 2**22\nw, g, t": "n = 2**19\nw, g, t",
        "rounds=20)": "rounds=3)",
        "measure.in_turns(slow, rounds=9)": "measure.in_turns(slow, rounds=3)",
        "n, rule, p = 2**21,": "n, rule, p = 2**18,",
    },
    "08_when_a_rank_fails": {
        "%%mpi --timeout 5\ncomm = MPI.COMM_WORLD\nright": (
            "%%mpi --timeout 1\ncomm = MPI.COMM_WORLD\nright"
        ),
    },
    "09_large_batches": {
        "for batch in sizes for seed in range(5)]": "for batch in sizes for seed in range(2)]",
        "for seed in range(5):\n        results": "for seed in range(2):\n        results",
        "[of] for seed in range(5)]": "[of] for seed in range(2)]",
        "products=12": "products=4",
        "in (1, 10, 20, 45, 90, 225, 450, 900)": "in (1, 20, 90, 900)",
        "batches = [32, 64, 128, 256, 512, 1024]\n\nfor B": "batches = [32, 256, 1024]\n\nfor B",
        "batches = [32, 64, 128, 256, 512, 1024]\nteam =": "batches = [32, 256, 1024]\nteam =",
    },
    "14_gradient_energy_matching": {
        "def pi_on_digits(p, epochs=3)": "def pi_on_digits(p, epochs=1)",
    },
    "17_pipelines": {
        "min(steps(name, m, 3)": "min(steps(name, m, 1)",
        'steps("zb_h1", 8, 5)': 'steps("zb_h1", 8, 1)',
        "SAMPLES = 256, 1024, 128": "SAMPLES = 256, 1024, 16",
    },
    "18_sharding_and_long_sequences": {
        "ring_attention_film(ranks=4)": "ring_attention_film(ranks=2)"
    },
    "19_many_dimensions": {"def seconds(self, steps=3):": "def seconds(self, steps=1):"},
    "20_the_forgers_game": {
        "epochs = 200": "epochs = 120",
        "drawing.fit(20)": "drawing.fit(2)",
        "assert asked[-1] > 0.7": "assert len(asked) == 2",
        "epoch % (epochs // 20) == 0": "epoch % (epochs // 4) == 0",
    },
    "21_distributed_gans": {
        "trainer.fit(40)": 'trainer.fit(15 if name == "synchronous" else 6)',
    },
    "22_calorimeter_gan": {"epochs = 8": "epochs = 2", "n=256)": "n=32)"},
    "24_evolution_and_bayes": {
        "problems.hartmann(), 3, 60": "problems.hartmann(), 1, 40",
        '64, "bayesian", seeds=3,': '64, "bayesian", seeds=1,',
    },
    "25_cross_validation": {"draws, k = 16, 5": "draws, k = 8, 5"},
    "26_all_together": {"time.sleep(0.2 + width / 60)": "time.sleep(0.1 + width / 120)"},
    "32_allreduce_two": {
        "ladder_sizes = 2 ** np.arange(11, 24, 2)": "ladder_sizes = 2 ** np.arange(11, 24, 6)",
        "np.empty((len(ladder_sizes), 5))": "np.empty((len(ladder_sizes), 3))",
        "measure.in_turns(calls, 5,": "measure.in_turns(calls, 3,",
        "machine = costs.measure(team)": (
            "from numba_kernels.allreduce import measure as measuring\n\n"
            "measuring.SECONDS = 0.0  # one round\n"
            "machine = costs.measure(team)"
        ),
    },
    "33_noise_and_lars": {
        "for _ in range(40)])": "for _ in range(12)])",
        "for batch in batches for seed in range(5)]": "for batch in batches for seed in range(2)]",
        "[1] for seed in range(5)]": "[1] for seed in range(2)]",
        "for case in cases for seed in range(10)]": "for case in cases for seed in range(2)]",
        "[gaps[(*case, seed)] for seed in range(10)]": "[gaps[(*case, seed)] for seed in range(2)]",
    },
}


def small(notebook: Path, folder: Path) -> Path:
    """Write to `folder` a copy of the notebook that computes only what its asserts need."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    for cell in code:
        cell["source"] = "".join(cell["source"])
    whole = os.environ.get("WHOLE_NOTEBOOKS", "0") != "0"
    replaced = {} if whole else SMALL.get(notebook.stem, {})
    for old, new in replaced.items():
        found = sum(cell["source"].count(old) for cell in code)
        assert found == 1, f"small_notebooks.py: {old!r} is {found} times in {notebook.name}"
        for cell in code:
            cell["source"] = cell["source"].replace(old, new)
    copy = folder / notebook.name
    copy.write_text(json.dumps(content), encoding="utf-8")
    return copy

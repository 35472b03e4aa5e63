"""Compiles the kernels that the notebooks use; a learner's first cell need not wait for that."""

import subprocess
import sys

TRAIN = "-m tutorial_dl train -n 2 --model dense --data digits --epochs 1 --strategy"

for strategy in ("synchronous", "downpour", "elastic_averaging", "gradient_energy_matching"):
    rate = ["--learning-rate", "0.1"] * (strategy != "synchronous")
    ranks = TRAIN.replace("-n 2", "-n 3") if rate else TRAIN
    subprocess.run([sys.executable, *ranks.split(), strategy, *rate], check=True)

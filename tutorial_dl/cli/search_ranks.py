"""Imports what a rank of a search needs, apart from MPI (launch/fork_server.py)."""

import scipy.stats  # noqa: F401

from ..tuning import bayesian, evolution_strategy, leader, options, study  # noqa: F401
from . import commands, tune  # noqa: F401

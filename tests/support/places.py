"""Where the ranks of a test are: variables for `on_ranks(..., env=...)`, and pairs with ranks."""

import pytest

WINDOW, MESSAGES, MIXED = (
    {"NUMBA_KERNELS_WINDOW": "1"},  # in the node's window
    {"NUMBA_KERNELS_WINDOW": "0"},  # over messages
    {"NUMBA_KERNELS_NODE": "2"},  # nodes of two ranks
)
ENVS = {"window": WINDOW, "messages": MESSAGES, "mixed": MIXED}


def places(*names: str):
    """A test's argument `env`, one of ENVS."""
    return pytest.mark.parametrize("env", [ENVS[name] for name in names], ids=names)


def ranks_at(*pairs: str):
    """A test's arguments `ranks` and `env`: ranks_at("3-window", "2-messages")."""
    split = [pair.partition("-") for pair in pairs]
    return pytest.mark.parametrize(
        ("ranks", "env"), [(int(ranks), ENVS[name]) for ranks, _, name in split], ids=pairs
    )

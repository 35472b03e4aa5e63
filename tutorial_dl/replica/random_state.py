"""Random state of a run: the model's generators (dropout), and Python's and NumPy's global ones.

A model's generators begin with rank 0's seeds, shifted by the rank: every rank draws its own masks,
and a run on p ranks is reproducible. A checkpoint holds the state of each rank.
"""

import random

import numpy as np

GOLDEN = 0x9E3779B9  # 2^32 / golden ratio, so that the seeds of many ranks lie far apart


def spread(team, replica) -> None:
    """Give the model's generators rank 0's seeds, shifted by this rank's number. Collective."""
    seeds = replica.random
    if seeds is not None and seeds.size and team.size > 1:
        seeds = team.broadcast(seeds.astype(np.int64))
        replica.random = move_on(seeds, team.rank)


def move_on(seeds: np.ndarray, rank: int) -> np.ndarray:
    """Shift `seeds`, rows of (seed, counter), to another rank; seeds stay below 2^32."""
    seeds = np.array(seeds, np.int64).reshape(-1, 2)
    if rank:
        seeds[:, 0] = (seeds[:, 0] + rank * GOLDEN) % (1 << 32)
    return seeds.reshape(-1)


def save(replica) -> dict[str, np.ndarray]:
    """The state of this rank's generators, as arrays."""
    version, state, gauss = random.getstate()
    _, keys, position, has_gauss, gaussian = np.random.get_state()
    found = {
        "random_python": np.array([version, *state], np.int64),
        "random_python_gauss": np.array([] if gauss is None else [gauss], np.float64),
        "random_numpy": np.array([*keys, position, has_gauss], np.int64),
        "random_numpy_gauss": np.array([gaussian], np.float64),
    }
    seeds = replica.random
    return found if seeds is None else found | {"random_model": seeds}


def restore(replica, saved, rank: int) -> None:
    """The reverse of `save`; a rank that did not exist then shifts rank 0's seeds."""
    of = rank if rank < saved.ranks else 0
    if replica.random is not None and replica.random.size:
        seeds = saved.own("random_model", of)
        replica.random = seeds if of == rank else move_on(seeds, rank)
    if of != rank:
        return
    version, *state = (int(i) for i in saved.own("random_python", of))
    gauss = saved.own("random_python_gauss", of)
    random.setstate((version, tuple(state), float(gauss[0]) if gauss.size else None))
    *keys, position, has_gauss = (int(i) for i in saved.own("random_numpy", of))
    gaussian = float(saved.own("random_numpy_gauss", of)[0])
    np.random.set_state(("MT19937", np.array(keys, np.uint32), position, has_gauss, gaussian))


def of_copy(replica, saved, number: int) -> None:
    """Restore the model's seeds where ranks compute samples together: those of a group agree."""
    if replica.random is not None and replica.random.size:
        replica.random = move_on(saved.own("random_model", 0), number)

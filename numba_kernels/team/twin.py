"""A team's twin: a second team of the same ranks, whose calls don't meet those of the first."""

from weakref import WeakKeyDictionary

import numpy as np

_twins: WeakKeyDictionary = WeakKeyDictionary()  # team -> (its twin, generation of the team)


def twin_of(team):
    """Return a second team of the ranks of `team`, the same one at each call. Collective.

    A call of the one team may be under way while the ranks call the other. The twin is made once,
    because an MPI library has only some thousand communicators; it is closed with the team. After
    the team has recovered from a failure, this call recovers the twin, too.
    """
    team.ready()
    twin, known = _twins.get(team, (None, 0))
    have = np.array([int(twin is not None)])
    if team.size > 1:  # some rank may have failed before it had the twin
        team.allreduce(have, "min")
    if not have[0]:
        twin = team.split(0)
    elif known != team.generation:
        twin.recover()
    _twins[team] = twin, team.generation
    return twin


def is_twin(team, other) -> bool:
    """Whether `other` is what `twin_of(team)` has returned."""
    return other is _twins.get(team, (None, 0))[0]


def close_twin(team) -> None:
    """Close the twin of `team`, if there is one. Collective."""
    twin, _ = _twins.pop(team, (None, 0))
    if twin is not None:
        twin.close()

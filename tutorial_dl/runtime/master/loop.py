"""A run with a master, from roles to the final message; every rank calls `train`."""

from __future__ import annotations

import json

import numpy as np

from numba_kernels.errors import PeerError
from numba_kernels.team.bytes import broadcast_text
from numba_kernels.team.team import abort_all

from ..errors import NotFinite, Terminated
from .client import Server
from .hierarchical_master import TopOfGroups
from .ledger import Books
from .messages import METRICS, Kind
from .outcome import take_from_leader, take_word, word_of
from .sub_master import SubMaster
from .top_master import Top
from .topology import Stars
from .worker import Computing, Worker


def agree(trainer) -> None:
    """After a failure, give all ranks rank 0's record of the run. Collective."""
    word = word_of(trainer) if trainer.team.rank == 0 else b""
    take_word(trainer, broadcast_text(trainer.team, word.decode(), root=0))


def train(trainer, epochs: int, bar, signals) -> None:
    """Train for `epochs` more epochs. Runs on every rank of the trainer's team; see Trainer.fit."""
    team = trainer.team
    team.barrier()  # until every rank is done with earlier work
    trainer.run = run = Stars(trainer)
    start = {"begun": [], "sums": [], "unseen": []}
    if trainer.resumed is not None:
        start = {name: trainer.resumed[name] for name in start}
    start |= {"steps": trainer.steps, "epochs": len(trainer.history.epochs)}
    start = json.loads(broadcast_text(team, json.dumps(start), root=0))
    names = metric_names(team, trainer)
    first = start["epochs"] + len(start["unseen"])
    role = run.role.role
    try:
        if run.is_top:
            lead(trainer, epochs, first, start, names, bar, signals)
        elif role == "sub_master":
            guide(trainer, epochs, first, start)
        elif run.role.device == 0:
            work(trainer, names)
        else:
            follow(trainer, names)
        if not trainer.gone:
            close(run, trainer)
    finally:
        trainer.resumed = trainer.run = None
    for callback in trainer.callbacks if not run.is_top else ():
        callback.on_fit_end(trainer)
    if trainer.gone:  # all teams with lost ranks now need recover(), on all ranks
        abort_all(PeerError(trainer.gone[0], "it was lost in training"))
    if trainer.ended_with is not None:
        raise Terminated(trainer.ended_with, trainer.steps)


def close(run, trainer) -> None:
    """Close the run; a rank that fails from here on has finished its work."""
    try:
        run.close()
    except PeerError as error:
        trainer.gone = [error.rank]
        trainer.history.lost.append(f"rank {error.rank} is lost, after the end: {error}")


def metric_names(team, trainer) -> list[str]:
    """Names of the metrics of the model's `evaluate`, found by one rank. Collective."""
    names = ""
    if team.rank == team.size - 1:
        found = trainer.replica.evaluate([trainer.dataset.validation.take(slice(0, 1))])
        names = ",".join(name for name in found if name != "samples")
    names = broadcast_text(team, names).split(",")
    if len(names) > METRICS:
        raise ValueError(f"the model must have at most {METRICS} metrics, got {len(names)}")
    return names


def lead(trainer, epochs, first, start, names, bar, signals) -> None:
    """Run the top master."""
    run, rule, replica = trainer.run, trainer.strategy, trainer.replica
    ranks = run.top_ranks
    rule.workers = len(ranks) - 1
    relayed = run.layout.masters >= 2
    last = start["epochs"] + epochs
    tasks = None if relayed else run.tasks(ranks, first, last, start["begun"])
    arguments = trainer, run.at_top, ranks, tasks, names, bar, signals
    if relayed:
        books = Books(run.tasks_of_groups(first, last, start["begun"]))
        top = TopOfGroups(*arguments, books=books)
        top.next_epoch = first
    else:
        top = Top(*arguments)
    if not trainer.begun:
        rule.begin_master(top.weights, replica.segments)
        trainer.begun = True
    top.move_home()
    if trainer.resumed is not None:
        rule.restore(trainer.resumed["strategy"], trainer.resumed["vectors"])
        for epoch, sums in start["sums"]:
            top.sums[int(epoch)] = sums
        for epoch, row in start["unseen"]:  # validate the present weights instead
            top.validate(int(epoch), row)
        if trainer.schedule is not None:
            rule.set_rate(trainer.schedule(trainer.steps), correct_momentum=False)
    try:
        top.run()
    except NotFinite:
        raise  # don't save these weights
    except BaseException:
        save_what_there_is(top)
        raise
    top.show(top.weights, top.mean_state())
    path = top.save() if signals and trainer.saving is not None else None
    for callback in trainer.callbacks:
        callback.on_fit_end(trainer)
    top.tell_history()
    top.end(replica.parameters, np.copy(replica.state), word_of(trainer, path, top.gone))
    top.tell_history()  # adds leaves lost since
    trainer.ended_with, trainer.gone = path, top.gone


def save_what_there_is(top) -> None:
    """Save after a failure of the master, unless it happened within an update."""
    whole = not top.serving and not (top.round and top.round_is_complete())
    if top.trainer.saving is not None and whole:
        top.save()


def guide(trainer, epochs, first, start) -> None:
    """Run a sub-master."""
    run, rule = trainer.run, trainer.strategy
    rule.workers = len(run.group_ranks) - 1
    up = Server(run.at_top, trainer.replica.parameters.size, trainer.replica, Kind.RELAY)
    tasks = run.tasks(run.group_ranks, first, start["epochs"] + epochs, start["begun"])
    sub = SubMaster(trainer, run.in_group, run.group_ranks, tasks, up)
    sub.run()
    weights, state = up.get(Kind.FINAL)
    text = up.star.told()
    sub.end(weights.copy(), state.copy(), text)
    sub.show(weights, state)
    take_word(trainer, text.decode())


def work(trainer, names) -> None:
    """Run the first rank of a worker."""
    run, rule, replica = trainer.run, trainer.strategy, trainer.replica
    star = run.in_group or run.at_top
    rule.workers = star.team.size - 1
    n = replica.parameters.size
    places = {"gradient": replica.gradient, "parameters": replica.parameters}
    if rule.sends is not None:
        places[rule.sends] = star.out[:n]
    if rule.receives is not None:
        places[rule.receives] = star.into[:n]
    replica.place(places["parameters"], places["gradient"])
    mates = trainer.mates if trainer.layout.devices > 1 else None
    computing = Computing(trainer, names, mates)
    try:
        server = Server(star, n, replica, swaps=rule.swaps)
        Worker(trainer, server, computing).run()
        computing.end()
        weights, state = server.get(Kind.FINAL)
        replica.parameters[:] = weights
        if state.size:
            replica.state = state.copy()
        text = star.told().decode()
    finally:
        computing.close()
    if mates is not None:
        take_from_leader(trainer, mates, text)
    else:
        take_word(trainer, text)


def follow(trainer, names) -> None:
    """Run another rank of a worker."""
    computing = Computing(trainer, names, trainer.mates)
    try:
        computing.follow()
    finally:
        computing.close()
    take_from_leader(trainer, trainer.mates)

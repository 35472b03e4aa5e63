"""`MasterLoop`: a run with a master, from the roles of its ranks to the final message."""

import pickle
from contextlib import closing

import numpy as np

from numba_kernels.errors import PeerError, numbered
from numba_kernels.team.bytes import broadcast
from numba_kernels.team.team import Team, abort_all

from ...checkpoint.master import MasterSaving
from ...layout.layout import layout_of
from ...replica.base import assign, measure
from ..errors import NotFinite, Terminated
from ..evaluation import Sums
from ..loop import Loop
from .client import Client
from .hierarchical_master import HierarchicalMaster
from .messages import Kind
from .sub_master import SubMaster
from .top_master import TopMaster
from .topology import Topology, computing_team
from .worker import Computing, Worker, spread


class MasterLoop(Loop):
    """Masters hand out work, and serve workers in the order in which they come."""

    has_master = True

    def __init__(self, run):
        super().__init__(run)
        if len(run.players) > 1:
            raise ValueError(f"a run with a master has one player, got {len(run.players)}")
        run.strategy.check_layout(run.layout)
        run.strategy.use(run.optimizer)
        run.strategy.clip_norm = run.clip_norm
        self.identity = str(run.strategy)  # with its options as they were given
        self.mates: Team | None = None  # the ranks that compute each batch together with this one
        self.stars: Topology | None = None  # this rank's role and connections while it trains
        self.begun = False  # on a master: whether the rule has its state
        self.resumed: dict | None = None  # on rank 0: the checkpoint that `train` begins with

    layout = staticmethod(layout_of)

    @staticmethod
    def shard(team) -> tuple[int, int]:
        return 0, 1  # the master hands out tasks

    @property
    def apart(self) -> bool:
        return self.stars is not None

    def attach(self) -> None:
        team, replica = self.run.team, self.run.replica
        spread(team, replica)
        self.mates = team
        if replica.traits.uses_team or self.run.layout.devices > 1:
            self.mates = computing_team(team, self.run.layout)
        if replica.traits.uses_team:
            replica.use_team(self.mates)
        if replica.traits.counts_training:
            replica.trained = None  # workers do not tell the master what they have counted

    def agree(self) -> None:
        self._spread_word()
        self.attach()

    def _spread_word(self) -> None:
        """Give all ranks rank 0's record of the run."""
        take_word(self.run, broadcast(self.run.team, word_of(self.run)))

    def saving(self, folder, every: int | None, keep: int) -> MasterSaving:
        return MasterSaving(self.run, folder, every, keep, self.identity)

    def load(self) -> bool:
        found, self.resumed = self.run.saving.read()
        if found:
            self._spread_word()
            spread(self.run.team, self.run.replica)
        return found

    def train(self, epochs: int, bar, signals) -> None:
        run, team = self.run, self.run.team
        team.barrier()  # until every rank is done with earlier work
        self.stars = stars = Topology(run)
        start = {"begun": [], "sums": [], "unseen": []}
        if self.resumed is not None:
            start = {name: self.resumed[name] for name in start}
        start |= {"steps": run.steps, "epochs": len(run.history.epochs)}
        start = broadcast(team, start)
        measures = self.measures()
        first, last = start["epochs"] + len(start["unseen"]), start["epochs"] + epochs
        try:
            if stars.is_top:
                path = self.lead(first, last, start, measures, bar, signals)
            elif stars.role.role == "sub_master":
                path = self.guide()
            elif stars.role.device == 0:
                path = self.work(measures)
            else:
                path = self.follow(measures)
            if not run.lost_ranks:
                self.close()
        finally:
            self.resumed = self.stars = None
        if not stars.is_top:
            run.notify("on_fit_end")
        if run.lost_ranks:  # all teams with lost ranks now need recover(), on all ranks
            lost = PeerError(run.lost_ranks[0], "it was lost in training")
            run.team.abort(lost, heard=True)
            abort_all(lost)
        if path is not None:
            raise Terminated(path, run.steps)

    def measures(self) -> Sums:
        """How ranks send what they measure. The top master, which adds it up, tries. Collective."""
        run, found = self.run, {}
        if run.team.rank == 0:
            found = measure(run.replica, [run.dataset.validation.take(slice(0, 1))])
        return Sums.from_rank(run.team, found, 0)

    # One of these per rank; each returns the checkpoint's path if SIGTERM ended the run

    def lead(self, first: int, last: int, start: dict, measures: Sums, bar, signals):
        run, stars, rule, replica = self.run, self.stars, self.run.strategy, self.run.replica
        ranks = stars.top_ranks
        rule.workers = len(ranks) - 1
        kind = HierarchicalMaster if run.layout.masters >= 2 else TopMaster
        tasks = stars.tasks(first, last, start["begun"])
        top = kind(self, stars.at_top, ranks, tasks, measures, bar, signals)
        top.begin()
        if self.resumed is not None:
            numbers = self.resumed["strategy"]
            rule.restore(numbers, self.resumed["vectors"])
            for epoch, sums in start["sums"]:
                top.sums[int(epoch)] = sums
            for epoch, row in start["unseen"]:  # validate the present weights instead
                top.validate(int(epoch), row)
            rate = run.schedule(run.steps) if run.schedule else run.optimizer.learning_rate
            rule.set_rate(rate, run.correct_momentum and "rate" in numbers)
        try:
            top.lead()
        except NotFinite:
            raise  # these weights are of no use
        except BaseException:
            # The weights are consistent between two requests only.
            if run.saving is not None and not top.serving:
                top.save()
            raise
        assign(replica, top.weights, top.mean_state())
        path = top.save() if signals and run.saving is not None else None
        run.notify("on_fit_end")
        top.tell_history()
        top.end(replica.parameters, np.copy(replica.state), word_of(run, path, top.gone))
        top.tell_history()  # leaves lost meanwhile
        run.lost_ranks = top.gone
        return path

    def guide(self):
        run, stars = self.run, self.stars
        run.strategy.workers = len(stars.group_ranks) - 1
        up = Client(stars.at_top, stars.top_ranks, run.replica)
        sub = SubMaster(self, stars.in_group, stars.group_ranks, stars.tasks_of_group(), up)
        sub.guide()
        weights, state = up.get(Kind.FINAL)
        word = up.final_message()
        sub.end(weights.copy(), state.copy(), word)
        assign(run.replica, weights, state)
        return take_word(run, word)

    def work(self, measures: Sums):
        run, stars, rule, replica = self.run, self.stars, self.run.strategy, self.run.replica
        star = stars.in_group or stars.at_top
        rule.workers = star.team.size - 1
        n = replica.parameters.size
        places = {"gradient": replica.gradient, "parameters": replica.parameters}
        if rule.sends is not None:
            places[rule.sends] = star.out[:n]
        if rule.receives is not None:
            places[rule.receives] = star.into[:n]
        replica.place(places["parameters"], places["gradient"])
        mates = self.mates if run.layout.devices > 1 else None
        computing = Computing(run, stars, measures, mates)
        with closing(computing.items):
            ranks = stars.group_ranks or stars.top_ranks
            server = Client(star, ranks, replica, swaps=rule.swaps)
            Worker(run, server, computing).work()
            computing.end()
            assign(replica, *server.get(Kind.FINAL))
            word = server.final_message()
        return take_word(run, word) if mates is None else self._with_leader(word)

    def follow(self, measures: Sums):
        computing = Computing(self.run, self.stars, measures, self.mates)
        with closing(computing.items):
            computing.follow()
        return self._with_leader()

    def _with_leader(self, word: bytes = b"") -> str | None:
        """Give all ranks of a worker the final weights and message that its first rank got."""
        with numbered(self.stars.mate_ranks):
            word = broadcast(self.mates, word)
            spread(self.mates, self.run.replica)
        return take_word(self.run, word)

    def close(self) -> None:
        """Close the stars; a rank that fails from here on has finished its work."""
        try:
            self.stars.close()
        except PeerError as error:
            self.run.lost_ranks = [error.rank]
            self.run.history.lost.append(f"rank {error.rank} is lost, after the end: {error}")


# The final message -----------------------------------------------------------------------------


def word_of(run, path=None, gone=()) -> bytes:
    """The master's final message: the history, and how training ended.

    `path` is the checkpoint, if SIGTERM ended the run; `gone` are ranks that were lost.
    """
    word = {
        "history": vars(run.history),
        "run": (run.steps, run.stopped, list(gone)),
        "ended_with": None if path is None else str(path),
    }
    return pickle.dumps(word)


def take_word(run, word: bytes) -> str | None:
    """Apply the final message; returns the checkpoint's path, if SIGTERM ended the run."""
    found = pickle.loads(word)
    vars(run.history).update(found["history"])
    run.steps, run.stopped, run.lost_ranks = found["run"]
    return found["ended_with"]

"""`InStepLoop`: the loop of strategies whose ranks do the same updates, or equally many."""

import numpy as np

from numba_kernels.spans import each

from ..data.hdf5 import Hdf5Data
from ..layout.layout import Layout
from ..replica.base import Batch
from .callback import agree_on_callbacks
from .errors import NotFinite, Terminated
from .loop import Loop
from .run import Player
from .termination import Pulse


class InStepLoop(Loop):
    """All ranks compute their parts of a batch, and make an update; then comes the next batch."""

    @staticmethod
    def layout(strategy, team) -> Layout:
        return strategy.layout or Layout(masters=0, workers=team.size)

    @staticmethod
    def shard(team) -> tuple[int, int]:
        return team.rank, team.size

    def attach(self) -> None:
        for player in self.run.players:
            if player.replica.traits.uses_team:
                player.replica.use_team(player.team)
            if player.replica.traits.counts_training:
                player.replica.trained = {}
            player.strategy.attach(player.replica, player.optimizer, self.run.clip_norm)

    def agree(self) -> None:
        run = self.run
        counts = np.array([-len(run.history.epochs), run.steps])
        epochs, run.steps = (int(c) for c in run.team.allreduce(counts, "max"))
        del run.history.epochs[-epochs:]
        for player in run.players:
            player.strategy.resume()
        agree_on_callbacks(run.team, run.callbacks, run.strategy.holding.complete)

    def load(self) -> bool:
        return self.run.saving.read()

    def train(self, epochs: int, bar, signals) -> None:
        run, pulse = self.run, Pulse(self.run.team)
        first = len(run.history.epochs)
        run.show(False)
        for epoch in range(first, first + epochs):
            self.epoch(epoch, bar, signals, pulse)
            if self.ends(signals):
                break
        run.show(True, ends=True)
        run.notify("on_fit_end")

    def epoch(self, number: int, bar, signals, pulse: Pulse) -> None:
        """Do the remaining updates of an epoch, validate, and append a row to the history."""
        run = self.run
        at_once = run.strategy.updates_a_step
        since = run.clock.now() - run.sums[0, 2]
        for batch in each("data", run.batches.epoch(number, run.round)):
            run.set_rate(run.steps)
            done = self.round(batch)
            run.steps += at_once
            run.round += 1
            run.sums += [(loss * samples, samples, 0) for loss, samples in done]
            # (If a step is several updates, other ranks are changing the weights now.)
            if at_once == 1 and (run.steps == 1 or run.steps % run.check_every == 0):
                run.check_same_weights()
            loss, samples = done[0]
            bar.update(samples * run.strategy.apart)
            run.notify("on_step_end", loss, samples)
            if run.saving is not None:
                run.sums[:, 2] = run.clock.now() - since
                run.saving.after_step()
                if pulse.beat(bool(signals)):
                    raise Terminated(run.saving.write(), run.steps)
        for player in run.players:
            player.strategy.average_state()
            player.strategy.settle()
        # Rank 0's, because rows of the history are the same on all ranks
        (seconds,) = run.team.broadcast(np.array([run.clock.now() - since]))
        run.check_same_weights()
        run.show(True)
        totals, losses, metrics = run.totals(), {}, run.evaluate()
        for player, (loss, samples, _) in zip(run.players, totals, strict=True):
            losses[run.label(player, "loss")] = float(loss / samples) if samples else 0.0
            losses |= run.metrics_of_training(player)
        more = run.critical_batch_sizes()
        row = run.end_epoch(bar, number, losses, metrics, totals[0, 1], seconds, **more)
        run.notify("on_epoch_end", row)  # callbacks keep the weights that were validated
        run.show(False)

    def round(self, batch: Batch) -> list[tuple[float, int]]:
        """One step of each player; returns (mean loss, samples) of each.

        Raises NotFinite if a loss or a gradient is not finite.
        """
        run, begun, done = self.run, [], []
        try:
            if run.at_once:  # all gradients are at the weights before the round
                parts = [player.select(batch, run) for player in run.players]
                for player, part in zip(run.players, parts, strict=True):
                    begun.append(player.strategy.begin(part))
                for player, its in zip(run.players, begun, strict=True):
                    done.append(player.strategy.end(*its))
            else:
                for player in run.players:
                    done.append(player.strategy.step(player.select(batch, run)))
        except FloatingPointError as error:
            raise self.not_finite(player, error) from None
        return done

    def not_finite(self, player: Player, error: FloatingPointError) -> NotFinite:
        """The error that says where training failed."""
        run, rate = self.run, player.strategy.optimizer.learning_rate
        epoch = len(run.history.epochs) + 1
        where = f"at step {run.steps + 1} (epoch {epoch}) on rank {run.team.rank}"
        found, train = None, run.dataset.train
        if isinstance(train, Hdf5Data):  # data in memory were looked at before
            found = train.not_a_number(run.batches.samples(epoch - 1, run.round))
        return NotFinite(run.label(player, str(error), ": "), where, rate, found)

    def ends(self, signals) -> bool:
        """After an epoch: whether any rank wants to stop; after SIGTERM, raises Terminated."""
        run = self.run
        wishes = np.array([run.stopped is not None, bool(signals)], np.float64)
        stop, terminate = run.team.allreduce(wishes, "max")
        if stop and run.stopped is None:
            run.stopped = "another rank asked for it"
        path = run.saving.write() if run.saving is not None else None
        if terminate:
            raise Terminated(path, run.steps)
        return bool(stop)

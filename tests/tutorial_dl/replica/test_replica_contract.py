"""Each violation of the contract of replicas is found by its own rule (see test_replicas.py)."""

import re

import numpy as np
import pytest
from faults import Counting, Noting

from tutorial_dl import replica
from tutorial_dl.replica import CurveReplica, DenseReplica, Replica, Traits
from tutorial_dl.replica.contract import ContractError

LINE = np.linspace(-1, 1, 9), np.linspace(-1, 1, 9) ** 2 + 0.5


def test_a_new_replica_knows_fifteen_names():
    names = {name for name in vars(Replica) if not name.startswith("_")}
    names |= Replica.__annotations__.keys()
    assert len(names - {"evaluate"}) == 15  # which follows from `measure`


def test_objects_that_only_have_the_methods_keep_it(tmp_path):
    inner = CurveReplica(2, dtype="float64")
    numbered = np.stack([LINE[0], np.arange(9)], axis=1)
    noting = Noting(inner, tmp_path / "noted")
    wrapped = replica.of(noting)
    assert isinstance(wrapped, Replica) and wrapped.traits == Traits(swaps=True)
    assert wrapped.random is None and wrapped.holding is None
    replica.check(noting, [(numbered, LINE[1])])
    counts = np.arange(4), np.zeros(4)
    assert not replica.of(Counting(4)).traits.swaps
    # This replica's loss does not depend on its weights, and it accepts any memory.
    replica.check(Counting(4), [counts], skip=["slope", "outside", "place"])


class Curve(CurveReplica):
    def __init__(self):
        super().__init__(2, dtype="float64", parameters=np.array([0.3, -0.2, 0.1]))


class Strided(Curve):
    def __init__(self):
        super().__init__()
        self.parameters = np.zeros(6)[::2]


class Short(Curve):
    def __init__(self):
        super().__init__()
        self.segments = (type(self.segments[0])("coefficients", 0, (2,)),)


class AnyMemory(Curve):
    def place(self, parameters, gradient):
        parameters[:], gradient[:] = self.parameters, self.gradient
        self._hold(parameters, gradient)


class OldView(Curve):
    def __init__(self):
        super().__init__()
        self.view = self.gradient

    def compute_gradient(self, batch):
        done = super().compute_gradient(batch)
        self.view[:] = self.gradient
        if self.view is not self.gradient:
            self.gradient[:] = 0
        return done


class KeepsItsMemory(Curve):
    def place(self, parameters, gradient):
        super().place(parameters, gradient)
        self.parameters = parameters.copy()


class AddsUp(Curve):
    def compute_gradient(self, batch):
        before = self.gradient.copy()
        done = super().compute_gradient(batch)
        self.gradient += before
        return done


class NoEmptyBatch(Curve):
    def compute_gradient(self, batch):
        return super().compute_gradient(batch) if len(batch[0]) else (0.0, 0)


class Sum(Curve):
    def compute_gradient(self, batch):
        loss, samples = super().compute_gradient(batch)
        self.gradient *= samples
        return loss * samples, samples


class Half(Curve):
    def compute_gradient(self, batch):
        done = super().compute_gradient(batch)
        self.gradient /= 2
        return done


class Copies(Curve):
    def compute_gradient(self, batch):
        if not hasattr(self, "copy"):
            self.copy = self.parameters.copy()
        now, self.parameters = self.parameters, self.copy
        done = super().compute_gradient(batch)
        self.parameters = now
        return done


class Noisy(Curve):
    dice = np.random.default_rng(0)

    def compute_gradient(self, batch):
        loss, samples = super().compute_gradient(batch)
        return loss * (1 + 1e-4 * self.dice.standard_normal()), samples


class MeanOfBatches(Curve):
    def evaluate(self, batches):
        found = [super(MeanOfBatches, self).evaluate([batch]) for batch in batches]
        loss = np.mean([one["loss"] for one in found]) if found else 0.0
        return {"loss": loss, "samples": sum(one["samples"] for one in found)}


class Forgets(Curve):
    state = property(lambda self: np.ones(2), lambda self, value: None)


class SwapsNames(Curve):
    def swap(self):
        values = self.parameters.copy()
        self.parameters[:], self.gradient[:] = self.gradient, values


class AlwaysFinite(Curve):
    traits = Traits(checks_gradient=True)
    gradient_is_finite = True


class Unscaled(Curve):
    traits = Traits(scales_loss=True)
    loss_scale = 1.0

    def compute_gradient(self, batch):
        done = super().compute_gradient(batch)
        self.gradient *= self.loss_scale
        return done


class WrongPlace(Curve):
    traits = Traits(keeps_apart=True)

    def compute_gradient(self, batch, apart=None):
        done = super().compute_gradient(batch)
        if apart is not None:
            self.kept = self.gradient.copy()
            self.own = np.array([[0], [3], [self.kept.ctypes.data]])
            self.own_factor = 0.5
        return done


@pytest.mark.parametrize(
    ("broken", "rule", "words"),
    [
        (Strided, "vectors", "parameters of 3 elements must be contiguous"),
        (Short, "segments", "gradient has 1 elements that are not 0 outside"),
        (AnyMemory, "place", "memory at 8 bytes past a multiple of 64 was accepted"),
        (OldView, "place", "after it, the gradient differs by"),
        (KeepsItsMemory, "place", "parameters not in the memory given"),
        (AddsUp, "gradient", "3 elements were not written, or not finite"),
        (NoEmptyBatch, "empty", "left 3 elements that are not 0"),
        (Sum, "additive", "parts of 3 and 6 samples differ from the whole by"),
        (Half, "slope", "the gradient says"),
        (Copies, "outside", "before and after all parameters changed"),
        (Noisy, "deterministic", "the losses of two calls are"),
        (MeanOfBatches, "evaluate", "loss is .*, in other parts"),
        (Forgets, "state", "of 2 elements assigned, other values were read back"),
        (SwapsNames, "swap", "the vectors have not exchanged their memory"),
        (AlwaysFinite, "finite", "gradient_is_finite is true, the loss is nan"),
        (Unscaled, "scale", "with a loss scale of 8, the gradient differs by"),
        (WrongPlace, "apart", r"with apart=\(1, 3\), the gradient differs by"),
    ],
)
def test_each_way_to_break_it_is_found_by_its_rule(broken, rule, words):
    with pytest.raises(ContractError) as error:
        replica.check(broken(), [LINE])
    own = [line for line in error.value.failures if line.startswith(f"{rule}: ")]
    assert any(re.search(words, line) for line in own), error.value.failures
    assert all("\n" not in line for line in error.value.failures)


def test_random_state_is_put_back():
    """A model with random masks is deterministic if its random state is restored."""

    class Masked(DenseReplica):
        random = np.zeros(2, np.int64)

        def compute_gradient(self, batch):
            mask = np.random.default_rng(self.random).random(5) < 0.5
            self.random = self.random + [0, 1]
            return super().compute_gradient((batch[0] * mask, batch[1]))

    model = Masked((5, 4))
    assert (
        replica.check(model, [(np.random.default_rng(1).normal(size=(13, 5)), np.arange(13) % 4)])
        and not model.random.any()
    )


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="unknown rule 'slopes'; choose from vectors, segments"):
        replica.check(Curve(), [LINE], skip=["slopes"])
    with pytest.raises(ValueError, match="at least one batch"):
        replica.check(Curve(), [])
    with pytest.raises(TypeError, match="is not a model"):
        replica.check({}, [LINE])
    old = Curve()
    old.constrained = True
    older = type("Mine", (Curve,), {"computes_in_float16": True})()
    for model, name in ((old, "Curve.constrained"), (older, "Mine.computes_in_float16")):
        words = rf"^{name}: write traits = Traits\({name.partition('.')[2]}=...\) instead$"
        with pytest.raises(TypeError, match=words):
            replica.of(model)

"""Examples of tutorial_dl.replica."""

# %% A model as two flat vectors
# shows: CurveReplica, Replica, Segment, Batch, SoftmaxReplica, DenseReplica, LayeredReplica
# shows: TransformerReplica
import numpy as np

from tutorial_dl import replica
from tutorial_dl.replica.layered import mlp_layers

line = replica.CurveReplica(degree=1)  # a Replica
x = np.array([0.0, 2.0])  # a Batch is (x, y), or (x, y, weights)
print(line.compute_gradient((x, 2 * x + 1)), line.gradient)
print(line.segments[0])  # a Segment: where a layer's array lies
for model in (
    replica.SoftmaxReplica(4, 3), replica.DenseReplica((4, 8, 3)),
    replica.LayeredReplica(mlp_layers([4, 8, 3])), replica.TransformerReplica(9, 6, 8, 2, 1),
):  # fmt: skip
    print(f"{type(model).__name__:20} {model.parameters.size:5} {model.segments[0].name}")

# %% Does a replica keep its contract?
# shows: check
import numpy as np

from tutorial_dl.replica import CurveReplica, check


class Sum(CurveReplica):
    def compute_gradient(self, batch):
        loss, samples = super().compute_gradient(batch)
        self.gradient *= samples  # wrong: it must be the gradient of the mean
        return loss, samples


x = np.linspace(-1, 1, 7)
print(check(CurveReplica(2), [(x, x**2)])[:4])
try:
    check(Sum(2), [(x, x**2)])
except AssertionError as error:
    print(str(error).splitlines()[1][:90])

# %% A Keras model
# shows: of, KerasReplica
import keras

from tutorial_dl import replica

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile("adam", "mse")
found = replica.of(model)  # a KerasReplica
print(type(found) is replica.KerasReplica, found.parameters.size, [s.name for s in found.segments])

# %% A Keras model cut over ranks, and sequences
# shows: tutorial_dl.model_parallel.KerasTensorReplica
# shows: tutorial_dl.model_parallel.KerasContextReplica
from tutorial_dl import Team, Trainer, data, models
from tutorial_dl.model_parallel import Grid, KerasContextReplica, KerasTensorReplica

text = data.text(length=12, characters=3000)
grid = Grid(Team())  # on one rank, nothing is cut
part = KerasTensorReplica(models.gpt(text, width=12, heads=2, blocks=1), grid)
trainer = Trainer(part, text, optimizer="adam", batch_size=64, progress=False)
print(round(trainer.fit(1).epochs[-1]["loss"], 1), part.holding.words)
print(KerasContextReplica(models.gpt(text), grid).holding.words)

# %% What a replica is, beside its members
# shows: Traits
from tutorial_dl.replica import CurveReplica, Traits

print(CurveReplica(2).traits == Traits(swaps=True))

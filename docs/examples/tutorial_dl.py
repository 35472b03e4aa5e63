"""Examples of tutorial_dl."""

# %% Train a small network on one rank
# shows: Trainer, models, data, strategies, tutorial_dl.training.History
from tutorial_dl import Trainer, data, models, strategies

dataset = data.curve(n=200, noise=0.1)
trainer = Trainer(
    models.dense(dataset), dataset, strategies.Serial(), "adam", batch_size=20, progress=False
)
history = trainer.fit(epochs=3)  # a History: a row per epoch
[round(row["val_loss"], 3) for row in history.epochs]

# %% [4 ranks] The same updates on four ranks
# shows: Trainer, strategies, replica, tutorial_dl.strategies.Synchronous
from tutorial_dl import Team, Trainer, data, replica

team = Team()
dataset = data.curve(n=200, noise=0.1)
options = dict(optimizer="sgd", learning_rate=0.2, batch_size=40, progress=False)
model = replica.CurveReplica(degree=3)
trainer = Trainer(model, dataset, "synchronous", team=team, **options)  # strategies.Synchronous
trainer.fit(epochs=20)
print(model.parameters.round(4))  # as one rank would find them

# %% Roles of ranks
# shows: layout, Layout, tutorial_dl.layout.Layout
from tutorial_dl import Layout, layout

print(Layout(masters=2, workers=2), Layout is layout.Layout)

# %% Learning rates, callbacks, a timeline
# shows: training, schedules, callbacks, timeline, tutorial_dl.training.callbacks
# shows: tutorial_dl.training.timeline
from tutorial_dl import Trainer, callbacks, data, models, schedules, timeline, training

dataset, seen = data.curve(n=100), timeline.Timeline()
trainer = training.Trainer(
    models.curve(dataset), dataset, "serial", "sgd", batch_size=10, progress=False, timeline=seen,
    learning_rate=schedules.warm_up(schedules.cosine(0.3, steps=50), steps=10),
    callbacks=[callbacks.EarlyStopping(patience=2, min_delta=0.01)],
)  # fmt: skip
trainer.fit(epochs=20)
print(len(trainer.history.epochs), "epochs:", trainer.stopped)

# %% What only the notebooks use
# shows: course, exercises, foundations, measure, plotting, traffic, horovod, layers, tuning
# shows: cluster
import tutorial_dl

for name in ("course", "exercises", "foundations", "measure", "plotting", "traffic", "tuning"):
    print(f"{name:12}", getattr(tutorial_dl, name).__doc__.splitlines()[0])
# horovod, layers and cluster have examples of their own.

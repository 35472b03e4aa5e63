"""Examples of tutorial_dl.training."""

# %% A history, saved weights, predictions
# shows: Trainer, History
import numpy as np

from tutorial_dl import Trainer, data, models

dataset = data.curve(n=100)
trainer = Trainer(models.curve(dataset), dataset, "serial", batch_size=10, progress=False)
history = trainer.fit(epochs=5)  # a History
trainer.save("curve.npz")
print(list(history.epochs[0]), np.load("curve.npz").files, trainer.predict(np.zeros(2)).shape)

# %% A run that cannot go on
# shows: TrainingError
import numpy as np

from tutorial_dl import Trainer, data, models
from tutorial_dl.training import TrainingError

dataset = data.curve(n=100)
trainer = Trainer(
    models.curve(dataset),
    dataset,
    "serial",
    "sgd",
    learning_rate=1e6,
    batch_size=10,
    progress=False,
)
try:
    with np.errstate(over="ignore"):  # the loss grows beyond the largest float32
        trainer.fit(epochs=20)
except TrainingError as error:
    print(error)

# %% Learning rates by step
# shows: schedules
from tutorial_dl.training import schedules

rate = schedules.warm_up(schedules.step_decay(0.1, every=10), steps=4)
print([round(rate(step), 4) for step in (0, 2, 4, 9, 10, 20)])
schedules.learning_rates({"warm-up and decay": rate}, steps=30)

# %% A callback of one's own
# shows: callbacks
from tutorial_dl import Trainer, data, models
from tutorial_dl.training import callbacks


class Show(callbacks.Callback):
    def on_epoch_end(self, trainer, row):
        print(row["epoch"], round(row["val_loss"], 3))


dataset = data.curve(n=100)
stop = callbacks.Target("val_loss", 0.1)
trainer = Trainer(
    models.curve(dataset), dataset, "serial", batch_size=10, progress=False, learning_rate=0.05,
    callbacks=[Show(), stop],
)  # fmt: skip
trainer.fit(epochs=50)
print(trainer.stopped)

# %% What a rank did when
# shows: timeline
from tutorial_dl import Trainer, data, models
from tutorial_dl.training import timeline

seen, dataset = timeline.Timeline(), data.curve(n=100)
Trainer(models.dense(dataset), dataset, "serial", batch_size=20, progress=False, timeline=seen).fit(
    epochs=2
)
seen.figure()

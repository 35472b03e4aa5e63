"""Examples of tutorial_dl.strategies."""

# %% By name
# shows: NAMES, get, Serial, Synchronous, Hogwild, Downpour, ElasticAveraging
# shows: GradientEnergyMatching, Rule, LocalSteps, base
from tutorial_dl import Team, strategies

team = Team()
for name in strategies.NAMES:
    strategy = strategies.get(name, team)
    kind = "a Rule" if isinstance(strategy, strategies.Rule) else "one model (base.py)"
    print(f"{type(strategy).__name__:22} {kind}")
# Serial, Synchronous, Downpour, ElasticAveraging, GradientEnergyMatching, Hogwild, LocalSteps ...

# %% Rules in one process, in a given order of events
# shows: Scripted, scripted, Downpour, ElasticAveraging, GradientEnergyMatching, rule, center
import numpy as np

from numba_kernels.optimizers import SGD
from tutorial_dl.strategies import Downpour, ElasticAveraging, GradientEnergyMatching, Scripted

for rule in (Downpour(), ElasticAveraging(), GradientEnergyMatching()):
    run = Scripted(rule, lambda x: x, [1.0], workers=2, optimizer=SGD(0.1))  # scripted.py
    path = run.turns([0, 1, 0, 1])[:, 0]  # of the center (center.py)
    print(f"{type(rule).__name__:24}", np.round(path, 3), "staleness", run.staleness)

# %% [4 ranks] All ranks update one copy of the weights
# shows: Hogwild
import numpy as np

from tutorial_dl import Team, Trainer, data, models, strategies

team, dataset = Team(), data.curve(n=400, noise=0.1)
options = dict(optimizer="sgd", learning_rate=0.05, batch_size=10, progress=False)
trainer = Trainer(models.curve(dataset), dataset, strategies.Hogwild(team), **options)
loss = trainer.fit(epochs=30).epochs[-1]["val_loss"]
print("close to the noise, 0.01:", np.isclose(loss, 0.01, atol=0.01))

# %% [4 ranks] Ranks that seldom talk
# shows: LocalSteps, Gossip
from tutorial_dl import Team, Trainer, data, models
from tutorial_dl.strategies import Gossip, LocalSteps

team, dataset = Team(), data.curve(n=400, noise=0.1)
options = dict(optimizer="sgd", learning_rate=0.05, batch_size=40, progress=False)
for strategy in (LocalSteps(team, inner_steps=5), Gossip(team, inner_steps=5)):
    loss = Trainer(models.curve(dataset), dataset, strategy, **options).fit(30).last["val_loss"]
    if team.rank == 0:
        print(strategy.name, "is close to the noise, 0.01:", loss < 0.015)

# %% Workers that make three steps per exchange; a master with delayed momentum
# shows: DilocoAsync, Scripted
from numba_kernels.optimizers import SGD
from tutorial_dl.strategies import DilocoAsync, Scripted

rule = DilocoAsync(inner_steps=3, outer_rate=0.7, outer_momentum=0.9)
run = Scripted(rule, lambda x: x, [1.0], workers=2, optimizer=SGD(0.1))
print(run.turns([0, 1] * 6)[:, 0].round(3))  # each worker sends at its third turn

# %% [4 ranks] A master and three workers
# shows: Downpour, Rule
from tutorial_dl import Team, Trainer, data, models
from tutorial_dl.strategies import Downpour

team, dataset = Team(), data.curve(n=400, noise=0.1)
options = dict(optimizer="sgd", learning_rate=0.05, batch_size=10, progress=False)
rule = Downpour(team=team)  # a Rule
trainer = Trainer(models.curve(dataset), dataset, rule, **options)
history = trainer.fit(epochs=10)
if team.rank == 0:
    print(len(history.epochs), "epochs; the master made", trainer.steps, "updates")

# %% The arithmetic of a spring, and the scale of a loss
# shows: kernels, loss_scale
import numpy as np

from tutorial_dl.strategies import kernels, loss_scale

center, worker = np.array([0.0]), np.array([1.0])
kernels.spring(center, worker, worker, 0.25)  # both move towards each other
print(center, worker, loss_scale.LossScale().scale)

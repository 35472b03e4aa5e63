"""Examples of tutorial_dl.tuning."""

# %% A space of two numbers and a choice
# shows: Space, samplers
from tutorial_dl.tuning import Space, samplers

space = Space.of({
    "learning_rate": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True},
    "batch_size": {"type": "int", "low": 8, "high": 64},
    "optimizer": {"type": "category", "choices": ["sgd", "adam"]},
})  # fmt: skip
print(space.names, len(space.grid(3)), space.distributions["learning_rate"])
print(samplers.NAMES, type(samplers.get("random", space, seed=0)).__name__)

# %% Ask for values, tell how good they are
# shows: Study
from tutorial_dl.tuning import Space, Study

space = Space.of({"x": {"type": "float", "low": -1.0, "high": 1.0}})
study = Study(space, "random", 4, maximise=False)
for _ in range(4):
    trial, values = study.ask()
    study.tell(trial, values["x"] ** 2)
print(len(study.finished), round(study.best.value, 4) < 1)

# %% [4 ranks] A search on ranks
# shows: Search, run
from tutorial_dl import Team
from tutorial_dl.config import RunConfig
from tutorial_dl.tuning import Search, Space, run

space = Space.of({"learning_rate": {"type": "float", "low": 0.01, "high": 0.3}})
base = RunConfig.of(strategy="serial", data="curve", model="curve", epochs=2)
found = run(Search(space, base, sampler="random", trials=4, groups=3), Team())
if found is not None:  # on rank 0
    study, outcome = found
    print(len(study.rows()), "trials")

# %% From a notebook, on the engines of a cluster
# shows: tune
from tutorial_dl import cluster, tuning


class Hidden:  # in a notebook, leave `show` out: a table is renewed while the search goes on
    def update(self, view):
        pass


c = cluster.start(n=2, name="search")
space = {"learning_rate": {"type": "float", "low": 0.01, "high": 0.3}}
found = tuning.tune(
    c, space, sampler="random", trials=2, data="curve", model="curve", strategy="serial", epochs=1,
    show=lambda *shown, **options: Hidden(),
)  # fmt: skip
print(len(found.trials), "trials, the best with", list(found.best))
c.stop()

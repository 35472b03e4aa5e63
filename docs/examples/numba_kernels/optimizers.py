"""Examples of numba_kernels.optimizers."""

# %% One update by each rule
# shows: NAMES, get, SGD, Adagrad, Adadelta, RMSprop, Adam, AdamW, Nadam, Lion, LARS, LAMB, Muon
# shows: SOAP, Adafactor, ScheduleFreeSGD, ScheduleFreeAdamW, Prodigy, Optimizer, State
import numpy as np

from numba_kernels import optimizers

for name in optimizers.NAMES:
    rule = optimizers.get(name, learning_rate=0.1)  # an Optimizer: SGD, ..., Prodigy
    x, gradient = np.array([1.0, 2.0]), np.array([0.5, -0.5])
    state = rule.init(2, np.float64, segments=[0])  # its State; LARS and LAMB need the layers
    rule.update(x, gradient, state)  # in place, one pass over memory
    print(f"{type(rule).__name__:17} {name:19} {x.round(4)}")
# SGD, Adagrad, Adadelta, RMSprop, Adam, AdamW, Nadam, Lion, LARS, LAMB, Muon, SOAP, Adafactor,
# ScheduleFreeSGD, ScheduleFreeAdamW, Prodigy

# %% SGD with momentum down a parabola
# shows: SGD
import numpy as np

from numba_kernels.optimizers import SGD

x = np.array([1.0])
rule = SGD(learning_rate=0.1, momentum=0.5)
state = rule.init(1, np.float64)
for _ in range(5):
    rule.update(x, x.copy(), state)  # the gradient of x^2 / 2 is x
    print(round(float(x[0]), 4), end=" ")

# %% Adam's first step has the length of the learning rate
# shows: Adam, State
import numpy as np

from numba_kernels.optimizers import Adam

rule = Adam(learning_rate=0.01)
for gradient in (1e-3, 1.0, 1e3):
    x = np.zeros(1)
    state = rule.init(1, np.float64)  # State: updates done, and two running averages
    rule.update(x, np.array([gradient]), state)
    print(gradient, x, state.step, state.slots.shape)

# %% An average of the weights
# shows: Averaged
import numpy as np

from numba_kernels.optimizers import SGD, Averaged

x, rule = np.array([1.0]), Averaged(SGD(0.1), keep=0.5)
state = rule.init(1, np.float64)
for _ in range(3):
    rule.update(x, x.copy(), state)
print("trained", x.round(3), end=" ")
rule.show(x, state, True)
print("shown", x.round(3))  # Averaged: ((0.9 + 0.81) / 2 + 0.729) / 2

# %% Clip a gradient
# shows: clip_by_norm
import numpy as np

from numba_kernels.optimizers import clip_by_norm

g = np.array([3.0, 4.0])
print("length", clip_by_norm(g, 2.5), "is now 2.5:", g)

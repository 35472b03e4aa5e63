"""The names of all optimizers, separate from their code: `--help` need not import Numba."""

# name: (file, class, arguments that the name sets)
RULES = {
    "sgd": ("sgd", "SGD", {}),
    "momentum": ("sgd", "SGD", {"momentum": 0.9}),
    "nesterov": ("sgd", "SGD", {"momentum": 0.9, "nesterov": True}),
    "adagrad": ("adagrad", "Adagrad", {}),
    "adadelta": ("adadelta", "Adadelta", {}),
    "rmsprop": ("rmsprop", "RMSprop", {}),
    "adam": ("adam", "Adam", {}),
    "adamw": ("adamw", "AdamW", {}),
    "nadam": ("nadam", "Nadam", {}),
    "lion": ("lion", "Lion", {}),
    "lars": ("lars", "LARS", {}),
    "lamb": ("lamb", "LAMB", {}),
}
NAMES = tuple(RULES)

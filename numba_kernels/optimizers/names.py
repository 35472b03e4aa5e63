"""The optimizers by name, apart from their code: a command line's --help needs no Numba."""

# name: (file, class, what the name fixes)
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

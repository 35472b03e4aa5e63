"""`described`: what a Keras model is, in short texts by name, which ranks compare."""

from __future__ import annotations

import re
from typing import Any

from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras

# What differs between processes, though nothing does: numbers of names, addresses
OF_PROCESS = re.compile(r"_\d+\b| at 0x[0-9a-f]+")
LEFT_OUT = re.compile("name|seed|build_config")


def described(model: keras.Model) -> dict[str, str]:
    """{"loss": "mse", "metrics": ..., "activation of layer 2 (dense)": "relu", ...}"""
    found = {"loss": _shown(model.loss)}
    if (compiled := model._compile_metrics) is not None:
        found["metrics"] = _shown(compiled._user_metrics)
        found["weighted metrics"] = _shown(compiled._user_weighted_metrics)
    if weights := getattr(model._compile_loss, "_user_loss_weights", None):
        found["weights of losses"] = _shown(weights)
    for number, layer in enumerate(model._flatten_layers(include_self=False), 1):
        place = f"layer {number} ({OF_PROCESS.sub('', layer.name)})"
        found[f"class of {place}"] = type(layer).__name__
        if not isinstance(layer, keras.Model):
            found |= {f"{key} of {place}": text for key, text in _settings(layer).items()}
    return found


def _settings(thing: Any) -> dict[str, str]:
    """What a layer, loss or metric was made with; {} for a function, or if it can't tell."""
    try:
        config = thing.get_config() | getattr(thing, "_fn_kwargs", {})  # a loss leaves these out
    except Exception:
        return {}
    return {k: _shown(v) for k, v in config.items() if not LEFT_OUT.search(k)}


def _shown(given: Any) -> str:
    """A setting, a loss or a metric as text that is equal in all processes if it is."""
    if isinstance(given, dict):
        pairs = {str(k): _shown(v) for k, v in given.items() if not LEFT_OUT.search(str(k))}
        return str(dict(sorted(pairs.items())))
    if isinstance(given, list | tuple | set | frozenset):
        shown = map(_shown, given)
        return f"[{', '.join(sorted(shown) if isinstance(given, set | frozenset) else shown)}]"
    name = getattr(given, "__qualname__", None)
    if name is None and hasattr(given, "get_config"):
        settings = ", ".join(f"{k}={v}" for k, v in _settings(given).items() if v != "None")
        name = f"{type(given).__name__}({settings})"
    return OF_PROCESS.sub("", str(given) if name is None else name)

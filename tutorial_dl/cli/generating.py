"""`python -m tutorial_dl generate`: text from a model that was trained on data `text`."""

from __future__ import annotations

from pathlib import Path


def main(
    model_file: str, model: str | None, prompt: str, characters: int, temperature: float, seed: int
) -> None:
    """Print the prompt and what the model writes after it; ValueError if it is no such model."""
    from .. import data
    from ..data import characters as text
    from ..replica import sampling
    from .applying import check, load

    check("generate", model_file, model, "text", "train")
    if not prompt:
        raise ValueError("--prompt needs at least one character")
    replica = load(model_file, model, data.load("text"))
    shape = None
    if replica.traits.library == "keras":
        shape = replica.model.output_shape
    elif hasattr(replica, "positions"):
        shape = (None, replica.positions, replica.segments[-1].size)
    if shape is None or len(shape) != 3 or shape[2] != len(text.ALPHABET):
        raise ValueError(
            f"{Path(model_file)} has no model of the next of {len(text.ALPHABET)} characters: "
            "train gpt or transformer on data 'text'"
        )
    print(prompt, end="", flush=True)
    start = text.encode(prompt)
    for token in sampling.tokens(replica, start, characters, shape[1], temperature, seed):
        print(text.decode([token]), end="", flush=True)
    print()

"""Sampling draws from the model's probabilities; `generate` writes what a saved model draws."""

import numpy as np
import pytest
from typer.testing import CliRunner

from tutorial_dl import data, models
from tutorial_dl.cli.commands import app
from tutorial_dl.data import characters
from tutorial_dl.replica import sampling


class Next:
    """Predicts token + 1 (of `k`) surely, and notes what it is asked."""

    def __init__(self, k):
        self.k, self.asked = k, []

    def predict(self, x):
        self.asked.append(x[0].tolist())
        return np.eye(self.k)[(x + 1) % self.k]


class Coin:
    def predict(self, x):
        return np.broadcast_to([0.25, 0.75], (*x.shape, 2))


def test_tokens_follow_the_last_ones_that_the_model_sees():
    model = Next(5)
    assert list(sampling.tokens(model, [3], 6, positions=4)) == [4, 0, 1, 2, 3, 4]
    assert model.asked[0] == [3, 0, 0, 0] and model.asked[-1] == [0, 1, 2, 3]


@pytest.mark.parametrize(("temperature", "share"), [(1, 0.75), (0.5, 0.9), (0, 1.0)])
def test_temperature_sharpens(temperature, share):
    """p^(1/T), normalised: 0.75^2 / (0.25^2 + 0.75^2) = 0.9."""
    drawn = list(sampling.tokens(Coin(), [0], 4000, 1, temperature, seed=1))
    assert abs(np.mean(drawn) - share) <= 4 * np.sqrt(share * (1 - share) / 4000)
    assert drawn == list(sampling.tokens(Coin(), [0], 4000, 1, temperature, seed=1))


def test_the_command_writes_what_the_model_draws(tmp_path):
    replica = models.build("transformer", data.load("text"), seed=4)
    replica.parameters *= 3  # an untrained model, but not one that finds all alike
    replica.save(tmp_path / "m.npz")
    words = ["generate", "--model-file", str(tmp_path / "m.npz"), "--model", "transformer"]
    done = CliRunner().invoke(app, [*words, "--characters", "20", "--prompt", "class A"])
    drawn = sampling.tokens(replica, characters.encode("class A"), 20, 64, 0.8)
    assert done.exit_code == 0 and done.output == "class A" + characters.decode(drawn) + "\n"


def test_what_cannot_be_sampled_is_refused():
    with pytest.raises(ValueError, match="temperature must be at least 0, got -1"):
        list(sampling.tokens(Coin(), [0], 1, 1, -1))
    with pytest.raises(ValueError, match="at least one token"):
        list(sampling.tokens(Coin(), [], 1, 1))

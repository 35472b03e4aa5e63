"""Spaces: what they say, and what is refused, in one line that says what would be right."""

from __future__ import annotations

import doctest
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tutorial_dl.config import RunConfig
from tutorial_dl.tuning import options
from tutorial_dl.tuning import space as space_file
from tutorial_dl.tuning.space import Space

RATE = {"type": "float", "low": 1e-4, "high": 1.0, "log": True}
MIXED = {
    "learning_rate": RATE,
    "batch_size": {"type": "int", "low": 1, "high": 6},
    "moving_rate": {
        "type": "float", "low": 0.1, "high": 1.5, "when": {"strategy": "elastic_averaging"}
    },
    "strategy": {"type": "category", "choices": ["synchronous", "elastic_averaging"]},
}  # fmt: skip


def test_the_examples():
    found = doctest.testmod(space_file)
    assert found.attempted and not found.failed


@given(some.floats(1e-4, 1.0), some.integers(1, 6), some.booleans())
def test_values_and_rows_say_the_same(rate, size, elastic):
    space = Space.of(MIXED)
    values = {"learning_rate": rate, "batch_size": size}
    values["strategy"] = "elastic_averaging" if elastic else "synchronous"
    if elastic:
        values["moving_rate"] = 0.7
    row = space.encode(values)
    assert row.shape == (5,) and (row >= 0).all() and (row <= 1).all()
    back = space.decode(row)
    assert back.pop("learning_rate") == pytest.approx(rate, rel=1e-9)
    assert back.pop("moving_rate", 0.7) == pytest.approx(0.7)
    assert back == {name: values[name] for name in ("batch_size", "strategy")}


def test_parameters_of_a_single_value_have_a_row():
    float_, int_ = FloatDistribution, IntDistribution
    for one in (float_(1.0, 1.0, log=True), float_(0.0, 0.0), int_(3, 3)):
        space = Space.of({"x": one, "c": CategoricalDistribution(["only"])})
        values = {"x": one.low, "c": "only"}
        assert space.encode(values).tolist() == [0.5, 1.0]
        assert space.decode(space.encode(values)) == values == space.grid(5)[0]


def test_draws_are_even():
    """A whole number has as much room at the ends of its range; with log, each decade as much."""
    space, random = Space.of(MIXED), np.random.default_rng(0)
    drawn = [space.random(random) for _ in range(3000)]
    sizes = np.bincount([values["batch_size"] for values in drawn], minlength=7)[1:]
    assert abs(sizes - 500).max() < 100  # 5 standard deviations
    decades = np.floor(np.log10([values["learning_rate"] for values in drawn]))
    assert abs(np.bincount((decades + 4).astype(int))[:4] - 750).max() < 120
    elastic = [v for v in drawn if v["strategy"] == "elastic_averaging"]
    assert all(("moving_rate" in v) == (v["strategy"] == "elastic_averaging") for v in drawn)
    assert 1300 < len(elastic) < 1700


def test_a_grid_has_every_combination_once():
    sets = Space.of(MIXED).grid(3)
    # 3 rates, 3 of 6 sizes; synchronous alone, and elastic averaging with 3 moving rates
    assert len(sets) == 3 * 3 * (1 + 3)
    assert len({json.dumps(one, sort_keys=True) for one in sets}) == len(sets)
    rates = sorted({one["learning_rate"] for one in sets})
    assert np.allclose(rates, [1e-4, 1e-2, 1.0])


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({}, "at least one parameter"),
        ({"x": 3}, "'x' must be a table: [x]"),
        ({"x": {"low": 0, "high": 1}}, "needs a type: one of float, int, category"),
        ({"x": RATE | {"type": "flaot"}}, "got 'flaot'"),
        ({"x": RATE | {"hihg": 1}}, "unknown entry 'hihg'; did you mean 'high'?"),
        ({"x": RATE | {"low": 2.0}}, "low must be below high, got 2 and 1"),
        ({"x": RATE | {"low": 0.0}}, "with log, low must be above 0, got 0"),
        ({"x": RATE | {"high": float("inf")}}, "high must be a number, got inf"),
        ({"x": {"type": "int", "low": 1, "high": 2.5}}, "high must be a whole number, got 2.5"),
        ({"x": {"type": "category", "choices": ["a"]}}, "at least 2 different values"),
        ({"x": {"type": "category", "choices": [0.1, 0.2, 0.1]}}, "; 0.1 stands twice"),
        ({"x": RATE | {"when": {"y": 1}}}, "when names 'y'"),
        (
            {"x": RATE | {"when": {"kind": "c"}}, "kind": {"type": "category", "choices": "ab"}},
            "choices must be a list",
        ),
        (
            {
                "x": RATE | {"when": {"kind": "c"}},
                "kind": {"type": "category", "choices": ["a", "b"]},
            },
            "when kind = 'c' never holds; it must be one of 'a', 'b'",
        ),
        (
            {
                "a": {"type": "category", "choices": [1, 2], "when": {"b": 1}},
                "b": {"type": "category", "choices": [1, 2], "when": {"a": 1}},
            },
            "depend on each other in a circle",
        ),
    ],
)
def test_what_is_wrong_with_a_space(tables, said):
    with pytest.raises(ValueError) as error:
        Space.of(tables)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_file_is_named(tmp_path):
    file = tmp_path / "space.toml"
    file.write_text("[x\n")
    with pytest.raises(ValueError, match=r"space .*space.toml: "):
        Space.read(file)
    with pytest.raises(ValueError, match="No such file"):
        Space.read(tmp_path / "none.toml")


# Whether every set of values can be trained --------------------------------------------------


MODEL = """
import nothing_that_exists

def build(width, depth=2, *, activation="relu"):
    pass
"""


@pytest.fixture
def base(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MODEL)
    return RunConfig.of(model=f"{file}:build")


@pytest.mark.parametrize(
    ("tables", "ranks", "said"),
    [
        ({"learnin_rate": RATE}, 1, "did you mean 'learning_rate'?"),
        ({"widht": {"type": "int", "low": 1, "high": 9}}, 1, "did you mean 'width'?"),
        ({"epochs": RATE}, 1, "type must be 'int', got 'float'"),
        ({"schedule": RATE}, 1, "type must be 'category', got 'float'"),
        ({"momentum": RATE}, 1, "momentum must be at least 0 and below 1, got 1"),
        ({"optimizer": {"type": "category", "choices": ["adam", "adan"]}}, 1, "'adan'"),
        ({"data": {"type": "category", "choices": ["a", "b"]}}, 1, "can't change 'data'"),
        ({"checkpoint": {"type": "category", "choices": ["a", "b"]}}, 1, "give --checkpoint"),
        ({"moving_rate": RATE}, 2, "moving_rate needs strategy 'elastic_averaging'"),
        ({"strategy": {"type": "category", "choices": ["serial", "synchronous"]}}, 2, "'serial'"),
        (
            {"strategy": {"type": "category", "choices": ["synchronous", "downpour"]}},
            1,
            "strategy = 'downpour'",
        ),
    ],
)
def test_what_no_training_takes(base, tables, ranks, said):
    with pytest.raises(ValueError) as error:
        options.check(Space.of(tables), base, ranks)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_trainings_take(base):
    tables = MIXED | {
        "width": {"type": "int", "low": 8, "high": 64},
        "activation": {"type": "category", "choices": ["relu", "tanh"]},
    }
    options.check(Space.of(tables), base, 3)
    values = {"learning_rate": 0.1, "strategy": "elastic_averaging", "moving_rate": 0.5}
    made = options.config_of(base, values | {"width": 8})
    assert made.strategy.moving_rate == 0.5 and made.optimizer.learning_rate == 0.1
    assert json.loads(made.data.model_arguments) == {"width": 8}


@pytest.mark.thorough
def test_options_of_another_strategy_are_left_out():
    base = RunConfig.of(strategy="downpour", every=3, epochs=2)
    made = options.config_of(base, {"strategy": "synchronous"})
    assert made.strategy.strategy == "synchronous" and made.schedule.epochs == 2
    assert options.config_of(base, {"every": 5}).strategy.every == 5
